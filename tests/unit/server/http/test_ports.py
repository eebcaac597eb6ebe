"""What `--http-port` and `--http-host` mean."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from rdzv_server.http import ports
from rdzv_server.http.ports import NEEDS, check, open_sockets
from rdzv_server.shell import log
from rdzv_server.shell.listen import ListenError
from tests.ports import free_port, free_ports


@contextlib.contextmanager
def opened(text: str, main_port: int = 0) -> Iterator[list[int]]:
    sockets = open_sockets(text, "127.0.0.1", main_port)
    try:
        yield [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was logged."""
    said: list[str] = []
    monkeypatch.setattr(log, "event", lambda name, *_, text: said.append(f"{name}: {text}"))
    return said


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is not installed."""
    monkeypatch.setattr(ports, "find_spec", lambda name: None)


def test_the_default_is_one_above_the_main_port() -> None:
    main, _ = free_ports(2)
    with opened("", main) as found:
        assert found == [main + 1]


def test_beside_any_free_port_the_default_is_any_free_port() -> None:
    with opened("", 0) as found:
        assert len(found) == 1
        assert found[0] > 1


def test_a_port_can_be_named_or_left_open() -> None:
    port = free_port()
    with opened(str(port), 29500) as found:
        assert found == [port]
    with opened("0", 29500) as found:
        assert found[0] not in (0, 29501)


def test_off_is_off() -> None:
    with opened("off", 29500) as found:
        assert found == []


def test_a_port_in_use_is_told_in_one_line_that_names_the_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenError) as caught:
            open_sockets(str(port), "127.0.0.1", 0)
    assert f"127.0.0.1:{port} for HTTP" in str(caught.value)
    assert "--http-port" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("bare")
def test_without_the_extra_the_default_is_off_and_one_line_says_so(lines: list[str]) -> None:
    with opened("", 29500) as found:
        assert found == []
    assert len(lines) == 1
    assert NEEDS[0] in lines[0]


@pytest.mark.usefixtures("bare")
def test_without_the_extra_a_port_that_was_asked_for_is_refused_with_its_name() -> None:
    with pytest.raises(ListenError, match=r'pip install "rdzv\[server,http\]"'):
        open_sockets("29501", "127.0.0.1", 29500)


@pytest.mark.usefixtures("bare")
def test_without_the_extra_off_is_still_off(lines: list[str]) -> None:
    assert open_sockets("off", "127.0.0.1", 29500) == []
    assert lines == []


def test_above_the_last_port_there_is_none(lines: list[str]) -> None:
    with opened("", 65535) as found:
        assert found == []
    assert "65535" in lines[0]


@pytest.mark.parametrize("text", ["", "off", "0", "29501", "65535"])
def test_ports_and_off_are_understood(text: str) -> None:
    check(text)


@pytest.mark.parametrize("text", ["on", "-1", "65536", "29501x", "٣", "off "])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--http-port"):
        check(text)
