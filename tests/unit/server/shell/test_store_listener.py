"""Ports for stores: from a range or any, taken at once, given back at once."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Mapping
from typing import cast

import pytest

from rdzv_server.shell import store_listener
from rdzv_server.shell.accept import Acceptor, Reporter
from rdzv_server.shell.admission import Admission
from rdzv_server.shell.store_connection import StoreConnection
from rdzv_server.shell.store_listener import NoPortError, StoreListeners, StorePorts
from tests.ports import free_ports
from tests.unit.server.shell.waiting import PATIENCE_S, pause, until


class Accepted(asyncio.Protocol):
    """Stands for a store's connection; its transport is closed at once."""

    def __init__(self, listener: int, seen: list[int]) -> None:
        self.listener, self._seen = listener, seen

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._seen.append(self.listener)
        transport.close()

    def abort(self) -> None:
        """Nothing is left to cut."""


@pytest.fixture
def seen() -> list[int]:
    """Listeners that somebody connected to."""
    return []


def listeners(
    seen: list[int],
    low: int = 0,
    high: int = 0,
    admission: Admission | None = None,
    report: Reporter | None = None,
) -> StoreListeners:
    def protocol(listener: int) -> StoreConnection:
        return cast("StoreConnection", Accepted(listener, seen))

    ports = StorePorts("127.0.0.1", low, high)
    return StoreListeners(ports, protocol, admission or Admission(1000), report or silent)


def silent(event: str, level: str, fields: Mapping[str, object]) -> None:
    """No log."""


@pytest.fixture
async def any_port(seen: list[int]) -> AsyncIterator[StoreListeners]:
    made = listeners(seen)
    yield made
    made.close_all()


def refused(port: int) -> bool:
    """Nobody listens there."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


async def test_a_port_can_be_connected_to_before_the_loop_accepts(
    any_port: StoreListeners, seen: list[int]
) -> None:
    port = any_port.open(7)
    with socket.create_connection(("127.0.0.1", port), 5):
        assert not seen, "the loop had no chance yet"
        await until(lambda: bool(seen))
    assert seen == [7]


async def test_every_listener_has_a_port_of_its_own(any_port: StoreListeners) -> None:
    assert len({any_port.open(n) for n in range(5)}) == 5


@pytest.mark.parametrize("accepting", [False, True])
async def test_a_closed_one_takes_nobody(any_port: StoreListeners, accepting: bool) -> None:
    port, other = any_port.open(1), any_port.open(2)
    if accepting:
        await pause(0.05)
    any_port.close(1)
    any_port.close(1)
    any_port.close(99)
    await until(lambda: refused(port))
    assert not refused(other)


async def test_ports_come_from_the_range_and_the_one_used_longest_ago_is_next(
    seen: list[int],
) -> None:
    low, high = free_ports(3)
    made = listeners(seen, low, high)
    assert [made.open(n) for n in range(3)] == [low, low + 1, high]
    made.close(0)
    made.close(2)
    assert made.open(3) == low
    assert made.open(4) == high
    made.close(3)
    made.close(4)
    assert made.open(5) == low
    made.close_all()


async def test_a_port_of_somebody_else_is_left_out(seen: list[int]) -> None:
    low, high = free_ports(2)
    made = listeners(seen, low, high)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", low))
        taken.listen()
        assert made.open(1) == high
        with pytest.raises(NoPortError, match=rf"all 2 ports of --store-ports {low}-{high} are in"):
            made.open(2)
    assert made.open(3) == low
    made.close_all()


async def test_too_many_open_files_is_said_in_words(
    any_port: StoreListeners, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_socket(host: str, port: int) -> list[socket.socket]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(store_listener, "bind", no_socket)
    with pytest.raises(NoPortError, match=r"Too many open files \(raise the limit of open files"):
        any_port.open(1)


async def test_all_addresses_of_a_name_have_the_same_port(seen: list[int]) -> None:
    made = StoreListeners(
        StorePorts("localhost"),
        lambda n: cast("StoreConnection", Accepted(n, seen)),
        Admission(1000),
        silent,
    )
    port = made.open(1)
    found = {a[4][0] for a in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM)}
    for host in found:
        socket.create_connection((str(host), port), 5).close()
    made.close_all()


async def test_open_ports_count_among_the_descriptors_and_are_given_back(seen: list[int]) -> None:
    admission = Admission(2)
    made = listeners(seen, admission=admission)
    made.open(1)
    made.open(2)
    assert admission.full
    with pytest.raises(NoPortError, match="has 2 connections and store ports, as many as it may"):
        made.open(3)
    made.close(1)
    made.open(3)
    made.close_all()
    assert admission.connections == 0


async def test_above_the_limit_clients_are_closed_without_a_word(seen: list[int]) -> None:
    admission, lines = Admission(2), []
    made = listeners(
        seen, admission=admission, report=lambda event, level, fields: lines.append((event, level))
    )
    port = made.open(1)
    member = object()
    admission.hold(member)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    assert (seen, lines) == ([], [("connections_full", "error")])
    admission.closed(member)
    with socket.create_connection(("127.0.0.1", port), 5):
        await until(lambda: bool(seen))
    writer.close()
    made.close_all()


async def test_a_port_that_the_loop_cannot_watch_is_no_port(
    seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(acceptor: Acceptor) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Acceptor, "start", start)
    admission = Admission(2)
    with pytest.raises(NoPortError, match="No space left on device"):
        listeners(seen, admission=admission).open(1)
    assert admission.connections == 0
