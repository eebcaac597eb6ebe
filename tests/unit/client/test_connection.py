"""One open connection: what it wakes up for, what it keeps, how it ends."""

import selectors
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rdzv_client.connection import READ_BYTES, Connection
from rdzv_client.credentials import Credentials
from rdzv_client.tls import Tls
from tests.unit.client.certificates import NAMES, Authority, server_context
from tests.unit.client.fake_server import PATIENCE_S

READ, BOTH = selectors.EVENT_READ, selectors.EVENT_READ | selectors.EVENT_WRITE


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with closing(near), closing(far):
        yield Connection(near), far


def wait_readable(connection: Connection) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, READ)
        assert selector.select(PATIENCE_S), "nothing came"


def test_what_is_sent_arrives_and_nothing_is_kept(pair: tuple[Connection, socket.socket]) -> None:
    connection, far = pair
    connection.send(b"hello")
    assert far.recv(100) == b"hello"
    assert (connection.unsent, connection.interest) == (b"", READ)


def test_what_does_not_go_is_kept_in_order_and_woken_up_for(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, far = pair
    data = bytes(range(256)) * 20_000
    connection.send(data)
    assert connection.unsent
    assert connection.interest == BOTH
    connection.send(b"end")
    got = b""
    while not got.endswith(b"end"):
        got += far.recv(1 << 20)
        connection.send(b"")
    assert got == data + b"end"


def test_nothing_yet_is_no_end(pair: tuple[Connection, socket.socket]) -> None:
    connection, far = pair
    assert connection.receive() == b""
    far.sendall(b"hello")
    assert connection.receive() == b"hello"
    far.close()
    with pytest.raises(ConnectionResetError, match="the server closed the connection"):
        connection.receive()


def test_a_failed_write_is_left_to_the_read_side(pair: tuple[Connection, socket.socket]) -> None:
    connection, far = pair
    far.close()
    connection.send(b"x")
    connection.send(b"x")
    assert connection.unsent == b""


class Moody(ssl.SSLSocket):
    """Does what a test says, as OpenSSL may."""

    moods: list[Any]

    def _next(self) -> Any:
        mood = self.moods.pop(0)
        if isinstance(mood, Exception):
            raise mood
        return mood

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        return bytes(self._next())

    def send(self, data: Any, flags: int = 0) -> int:
        return int(self._next())

    def pending(self) -> int:
        return len(self.moods)


def moody(*moods: Any) -> Connection:
    made: Any = Moody.__new__(Moody)
    made.moods = list(moods)
    return Connection(made)


def test_tls_that_must_write_before_it_can_read_is_woken_up_when_it_can() -> None:
    connection = moody(ssl.SSLWantWriteError(), b"hello")
    assert connection.receive() == b""
    assert connection.interest == BOTH
    assert connection.readable(selectors.EVENT_WRITE)
    assert connection.receive() == b"hello"
    assert connection.interest == READ
    assert not connection.readable(selectors.EVENT_WRITE)


def test_tls_that_must_read_before_it_can_write_does_not_spin() -> None:
    connection = moody(ssl.SSLWantReadError(), ssl.SSLWantWriteError(), b"data", 5)
    connection.send(b"hello")
    assert (connection.unsent, connection.interest) == (b"hello", READ)
    connection.send(b"")
    assert (connection.unsent, connection.interest) == (b"hello", BOTH)


def test_what_tls_has_decrypted_already_is_read_too() -> None:
    connection = moody(b"one", b"two", b"three")
    assert connection.receive() == b"onetwothree"


def test_tls_without_anything_to_read_yet_is_no_end() -> None:
    assert moody(ssl.SSLWantReadError()).receive() == b""


def test_a_broken_tls_connection_says_why() -> None:
    error = ssl.SSLError(1, "odd")
    with pytest.raises(ssl.SSLError):
        moody(error).receive()


def test_over_real_tls_records_larger_than_a_read_arrive_whole(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    context = server_context(ca.issue(*NAMES))
    near, far = socket.socketpair()
    near.settimeout(PATIENCE_S)
    far.settimeout(PATIENCE_S)
    data = bytes(range(256)) * (READ_BYTES // 64)

    def serve() -> None:
        with context.wrap_socket(far, server_side=True) as spoken:
            spoken.sendall(data)
            assert spoken.recv(10) == b""

    thread = threading.Thread(target=serve)
    thread.start()
    tls = Tls(Credentials(tls_ca=ca.file))
    sock = tls.handshake(near, "localhost")
    sock.setblocking(False)
    connection = Connection(sock, tls)
    got = b""
    while len(got) < len(data):
        wait_readable(connection)
        got += connection.receive()
    connection.close()
    thread.join(PATIENCE_S)
    assert got == data
    assert not thread.is_alive()
