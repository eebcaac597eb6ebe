"""Endpoint grammar: what is understood, and what the refusals say."""

import pytest

from rdzv_client import endpoint
from rdzv_client.endpoint import FALLBACK, VARIABLE, Endpoint, find, parse, show


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host:1234", [Endpoint("host", 1234)]),
        ("host", [Endpoint("host", 29500, port_given=False)]),
        ("10.0.0.1:65535", [Endpoint("10.0.0.1", 65535)]),
        ("a-b.c_d.example:1", [Endpoint("a-b.c_d.example", 1)]),
        ("[::1]:29501", [Endpoint("::1", 29501)]),
        ("[fe80::1%eth0]", [Endpoint("fe80::1%eth0", 29500, port_given=False)]),
        ("a:1,b", [Endpoint("a", 1), Endpoint("b", 29500, port_given=False)]),
        (" a:1 , [::2]:2 ,", [Endpoint("a", 1), Endpoint("::2", 2)]),
    ],
)
def test_an_endpoint_is_a_host_and_perhaps_a_port(text: str, expected: list[Endpoint]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "endpoint is empty"),
        (" , ", "HOST:PORT"),
        (":29500", "'' is no host name"),
        ("ho st:1", "'ho st' is no host name"),
        ("host/path:1", "'host/path' is no host name"),
        ("host:", "'' is no port"),
        ("host:0", "'0' is no port (1 to 65535)"),
        ("host:65536", "'65536' is no port"),
        ("host:-1", "'-1' is no port"),
        ("host:http", "'http' is no port"),
        ("host: 1", "' 1' is no port"),
        ("host:1.5", "'1.5' is no port"),
        ("::1:29500", "[::1]:29500"),
        ("fe80::2:80", "[fe80::2]:80"),
        ("[::1", "[ADDRESS]:PORT"),
        ("[::1]29500", "[ADDRESS]:PORT"),
        ("[]:1", "'' is no host name"),
        ("[::1]:", "'' is no port"),
        ("good:1,bad:x", "'bad:x'"),
        ("http://host", "'//host' is no port"),
    ],
)
def test_a_wrong_endpoint_is_named_with_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert words in str(caught.value)
    if text.strip(" ,"):
        assert text.split(",")[-1] in str(caught.value)


@pytest.mark.parametrize("text", ["::1", "fe80::1", "2001:db8::42"])
def test_the_hint_for_an_ipv6_address_without_brackets_is_a_form_that_works(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    hint = str(caught.value).rpartition(" as in ")[2]
    assert parse(hint)[0].host == text


def test_the_hint_for_an_ipv6_address_with_port_is_a_form_that_works() -> None:
    with pytest.raises(ValueError) as caught:
        parse("2001:db8::42:29500")
    assert parse(str(caught.value).rpartition(" as in ")[2]) == [Endpoint("2001:db8::42", 29500)]


@pytest.mark.parametrize("text", ["host:1234", "[::1]:29501", "a:1,[::2]:2"])
def test_what_is_shown_can_be_parsed_again(text: str) -> None:
    assert show(parse(text)) == text


def test_a_port_that_was_left_out_is_shown() -> None:
    assert show(parse("a,[::1]")) == "a:29500,[::1]:29500"


def test_the_endpoint_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "from-env:1")
    assert find("given:2") == [Endpoint("given", 2)]
    assert find(None) == find("") == [Endpoint("from-env", 1)]


def test_without_anything_given_it_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert find() == [Endpoint("127.0.0.1", 29500)]
    monkeypatch.setenv(VARIABLE, "")
    assert show(find()) == FALLBACK == "127.0.0.1:29500"


def test_a_wrong_endpoint_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(endpoint.VARIABLE, "host:x")
    with pytest.raises(ValueError, match="host:x"):
        find()
