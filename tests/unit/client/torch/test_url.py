"""`rdzv://…` URLs: what they say, and what is refused with a hint."""

import pytest

from rdzv_client.credentials import Credentials
from rdzv_client.options import NodeOptions
from rdzv_client.torch.url import parse


def test_a_url_names_the_server_the_run_and_the_world() -> None:
    target = parse("rdzv://host:29500/llama?min=2&max=4", {})
    assert (target.url, target.servers, target.run) == (
        "rdzv://host:29500/llama", "host:29500", "llama",
    )  # fmt: skip
    options = NodeOptions(run=target.run, **target.options)
    assert (options.min_nodes, options.max_nodes, options.rank) == (2, 4, None)
    assert (options.join_timeout_s, options.worker_store) == (600, "rank0")
    assert target.local_addr == ""


def test_the_largest_world_is_the_smallest_unless_given() -> None:
    options = parse("rdzv://host/llama?min=3", {}).options
    assert (options["min_nodes"], options["max_nodes"]) == (3, 3)


@pytest.mark.parametrize(
    ("url", "servers", "run"),
    [
        ("rdzv://a:1,b:2/r?min=1", "a:1,b:2", "r"),
        ("rdzv://[::1]:29500/r?min=1", "[::1]:29500", "r"),
        ("rdzv://[fe80::1%25eth0]:29500/r?min=1", "[fe80::1%eth0]:29500", "r"),
        ("rdzv:///r?min=1", "", "r"),
        ("rdzv://Host/my%20run/7/?min=1", "Host", "my run/7"),
    ],
)
def test_servers_and_runs_of_every_kind(url: str, servers: str, run: str) -> None:
    target = parse(url, {})
    assert (target.servers, target.run) == (servers, run)


def test_every_conf_key_is_a_parameter_and_the_environment_fills_in() -> None:
    target = parse(
        "rdzv://h/r?min=2&timeout=45&last_call_timeout=3&node_id=n&node_unit=2&below_min=wait"
        "&keep_alive_interval=2&expected_nodes=a%3Bb&close_timeout=7&local_addr=10.0.0.5",
        {"RDZV_CONNECT_TIMEOUT": "9", "RDZV_LAST_CALL_TIMEOUT": "99"},
    )
    options = NodeOptions(run=target.run, **target.options)
    assert (options.join_timeout_s, options.last_call_timeout_s) == (45, 3)
    assert (options.connect_timeout_s, options.lease_s) == (9, 6)
    assert (options.node_id, options.node_unit, options.below_min) == ("n", 2, "wait")
    assert options.expected_nodes == ("a", "b")
    assert (target.close_timeout_s, target.local_addr) == (7, "10.0.0.5")


def test_a_world_size_is_smallest_and_largest_and_a_rank_is_a_wish() -> None:
    target = parse("rdzv://h/r?rank=1&world_size=2", {})
    assert (target.options["min_nodes"], target.options["max_nodes"], target.rank) == (2, 2, 1)
    both = parse("rdzv://h/r?min=1&max=4&world_size=3", {})
    assert (both.options["min_nodes"], both.options["max_nodes"], both.rank) == (3, 3, None)


def test_a_world_size_that_torch_was_not_given_says_nothing() -> None:
    assert parse("rdzv://h/r?min=1&max=4&world_size=-1", {}).options["max_nodes"] == 4


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("rdzv://h:29500", "the form is rdzv://HOST:29500/RUN?min=2&max=4"),
        ("rdzv://h:29500/?min=2", "the form is rdzv://HOST:29500/RUN?min=2&max=4"),
        ("tcp://h:29500/r?min=2", "the form is rdzv://HOST:29500/RUN?min=2&max=4"),
        ("rdzv://h/r", "min is missing; the form is rdzv://"),
        ("rdzv://h/r?max=2", "min is missing"),
        ("rdzv://h/r?min=2&mx=4", "unknown parameter 'mx': did you mean 'max'?"),
        ("rdzv://h/r?min=2&join_timout=4", "did you mean 'join_timeout'?"),
        ("rdzv://h/r?min=2&qqq=4", "unknown parameter 'qqq': known: below_min, "),
        ("rdzv://h/r?min=2&min=3", "min is given twice"),
        ("rdzv://h/r?min=", "min has no value"),
        ("rdzv://h/r?min=two", "min=two: must be a whole number, 1 or more"),
        ("rdzv://h/r?min=0", "min=0: must be a whole number, 1 or more"),
        ("rdzv://h/r?min=3&max=2", "min=3 is larger than max=2"),
        ("rdzv://h/r?min=2&world_size=1", "world_size=1 does not agree with min=2"),
        ("rdzv://h/r?min=1&max=2&world_size=3", "world_size=3 does not agree with min=1, max=2"),
        ("rdzv://h/r?world_size=2&rank=2", "rank=2 does not fit into a world of 2"),
        ("rdzv://h/r?min=2&rank=-1", "h/r: rank=-1: must be a whole number"),
        ("rdzv://h/r?min=2&timeout=5&join_timeout=6", "timeout and join_timeout are the same"),
        ("rdzv://h/r?min=2&timeout=soon", "h/r: join_timeout=soon: must be a number of seconds"),
    ],
)
def test_what_is_wrong_is_a_value_error_that_names_it(url: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(url, {})
    assert words in str(caught.value)


def test_credentials_are_parameters_and_variables_too() -> None:
    url = "rdzv://host/llama?min=1&token_file=/run/token&tls_server_name=rdzv"
    target = parse(url, {"RDZV_TLS_CA": "/run/ca.pem", "RDZV_TOKEN_FILE": "/env/token"})
    assert target.credentials == Credentials(
        token_file="/run/token", tls_ca="/run/ca.pem", tls_server_name="rdzv"
    )
    assert "token" not in target.url, "what is shown"
    with pytest.raises(ValueError, match="rdzv://host/r: tls_key is given"):
        parse("rdzv://host/r?min=1&tls_key=/k", {})
