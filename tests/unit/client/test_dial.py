"""From a name and a port to a socket."""

import errno
import os
import socket
from contextlib import closing

import pytest

from rdzv_client import dial
from rdzv_client.endpoint import Endpoint
from tests.ports import free_port
from tests.unit.client.fake_server import PATIENCE_S


def test_a_connection_blocks_nobody_and_delays_no_small_frame() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        to = Endpoint("127.0.0.1", listener.getsockname()[1])
        with closing(dial.connect(to, PATIENCE_S)) as sock:
            assert sock.getpeername() == listener.getsockname()
            assert not sock.getblocking()
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_failure_of_the_last_address_is_the_one_that_is_told() -> None:
    with pytest.raises(ConnectionRefusedError):
        dial.connect(Endpoint("127.0.0.1", free_port()), PATIENCE_S)


def test_a_name_without_addresses_left_to_try_is_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, **more: [])
    with pytest.raises(TimeoutError, match="no answer"):
        dial.connect(Endpoint("rdzv.example", 1), PATIENCE_S)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "Connection refused"),
        (socket.gaierror(socket.EAI_AGAIN, "Try again"), "name lookup failed: Try again"),
        (TimeoutError("timed out"), "timed out"),
        (OSError(), "OSError"),
        (OSError(errno.ENETDOWN, os.strerror(errno.ENETDOWN)), "Network is down"),
    ],
)
def test_a_reason_is_never_empty(error: OSError, words: str) -> None:
    assert dial.reason(error) == words


def test_both_ends_are_named_and_a_broken_connection_has_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = dial.connect(Endpoint("127.0.0.1", server.getsockname()[1], True), 5)
        assert dial.hosts(sock) == ("127.0.0.1", "127.0.0.1")
        sock.close()
    assert dial.hosts(sock) == ("", "")
