"""Limits of the HTTP side's connections."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from rdzv_server.http import door
from rdzv_server.http.door import CONNECTIONS_MAX, Door, Gone, connections_max
from rdzv_server.shell.listen import bind
from tests.unit.server.http.kit import Log
from tests.unit.server.shell.waiting import PATIENCE_S, pause, until


class Guest(asyncio.Protocol):
    """The server's end; says nothing."""

    def __init__(self, gone: Gone) -> None:
        self._gone = gone

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()


Open = Callable[..., "tuple[Door, int]"]


@pytest.fixture
async def log() -> Log:
    return Log()


@pytest.fixture
async def make(log: Log) -> AsyncIterator[Open]:
    doors: list[Door] = []

    def made(sockets: list[socket.socket] | None = None, **more: float) -> tuple[Door, int]:
        listening = sockets or bind("127.0.0.1", 0)
        doors.append(Door(listening, Guest, log, **more))  # type: ignore[arg-type]
        doors[-1].start()
        return doors[-1], listening[0].getsockname()[1]

    yield made
    for each in doors:
        await each.close(0)


@pytest.fixture
def clients() -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for each in made:
        each.close()


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S, (source, 0))
    sock.setblocking(False)
    return sock


async def closed(sock: socket.socket) -> bool:
    """Wait until the server has closed it."""
    with sock, contextlib.suppress(ConnectionError):
        loop = asyncio.get_running_loop()
        return await asyncio.wait_for(loop.sock_recv(sock, 1), PATIENCE_S) == b""
    return True


async def test_the_surplus_is_closed_at_once_and_the_others_stay(
    make: Open, log: Log, clients: list[socket.socket]
) -> None:
    door, port = make(most=3)
    for _ in range(3):
        clients.append(connect(port))
    await until(lambda: door.connections == 3)
    assert await closed(connect(port))
    assert door.connections == 3
    assert log.events == ["http_full"]
    clients.pop().close()
    await until(lambda: door.connections == 2)
    clients.append(connect(port))
    await until(lambda: door.connections == 3)


async def test_a_connection_is_cut_whatever_it_does(make: Open) -> None:
    door, port = make(life_s=0.2)
    sock = connect(port)
    await until(lambda: door.connections == 1)
    assert await closed(sock)
    await until(lambda: door.connections == 0)


async def test_one_address_cannot_take_what_all_may_have(
    make: Open, monkeypatch: pytest.MonkeyPatch, clients: list[socket.socket]
) -> None:
    monkeypatch.setattr(door, "BURST", 2)
    monkeypatch.setattr(door, "RATE_PER_S", 0.0)
    made, port = make()
    for _ in range(2):
        clients.append(connect(port))
    await until(lambda: made.connections == 2)
    assert await closed(connect(port))
    clients.append(connect(port, "127.0.0.2"))
    await until(lambda: made.connections == 3)


async def test_a_flood_leaves_the_loop_alone(make: Open, log: Log) -> None:
    made, port = make(most=1)
    keep = connect(port)
    await until(lambda: made.connections == 1)
    for _ in range(200):
        connect(port).close()
    await until(lambda: bool(log.events))
    # It rests after each turn that refused somebody, so a flood costs a bounded number of turns.
    await pause(0.2)
    assert len(log.events) <= 8
    keep.close()


async def test_addresses_are_forgotten_beyond_a_number(
    make: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "HOSTS_KEPT", 3)
    made, _ = make()
    for number in range(10):
        made._allowed(f"10.0.0.{number}")
    assert list(made._hosts) == ["10.0.0.7", "10.0.0.8", "10.0.0.9"]


class Failing(socket.socket):
    """A listening socket without descriptors left."""

    calls = 0
    failing = True

    def accept(self) -> tuple[socket.socket, object]:
        self.calls += 1
        if self.failing:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def test_without_descriptors_it_rests_says_so_and_goes_on(
    make: Open, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "EXHAUSTED_PAUSE_S", 0.1)
    sock = Failing(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    sock.setblocking(False)
    made, port = make([sock])
    client = connect(port)
    await until(lambda: bool(log.events))
    assert log.events[0] == "http_accept_failed"
    assert sock.calls < 10
    sock.failing = False
    await until(lambda: made.connections == 1)
    client.close()


async def test_closing_waits_for_answers_and_then_cuts(make: Open) -> None:
    made, port = make()
    sock = connect(port)
    await until(lambda: made.connections == 1)
    await made.close(0.05)
    assert await closed(sock)
    await until(lambda: made.connections == 0)
    with pytest.raises(ConnectionError):
        connect(port)


async def test_closing_with_nobody_there_takes_no_time(make: Open) -> None:
    made, _ = make()
    loop = asyncio.get_running_loop()
    before = loop.time()
    await made.close(5)
    assert loop.time() - before < 2


def test_the_share_of_all_descriptors_is_small_and_never_none() -> None:
    assert connections_max(1 << 20) == CONNECTIONS_MAX
    assert connections_max(960) == 60
    assert connections_max(64) == 4
    assert connections_max(1) == 1
