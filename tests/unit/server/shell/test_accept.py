"""Accepting on real sockets: what waits, what is cut, what is turned away, and that nothing spins."""

import asyncio
import contextlib
import errno
import itertools
import os
import resource
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import cast

import pytest
import trustme

from rdzv_server.shell import accept, admission
from rdzv_server.shell.accept import Acceptor
from rdzv_server.shell.admission import Admission
from rdzv_server.shell.listen import listeners
from rdzv_server.shell.peer import Peer
from tests.unit.server.shell.waiting import PATIENCE_S, pause, until

BUSY = b"busy"


class Guest(asyncio.Protocol):
    """The server's end: a good hello is b"hello", and is answered with b"welcome"."""

    def __init__(self, books: Admission) -> None:
        self._books = books
        self._transport: asyncio.Transport | None = None
        self.greeted = self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if data == b"hello":
            self.greeted = True
            self._books.greeted(self)
        self._transport.write(b"welcome")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._books.closed(self)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Client:
    """The other end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def hello(self) -> None:
        self.writer.write(b"hello")
        assert await asyncio.wait_for(self._reader.readexactly(7), PATIENCE_S) == b"welcome"

    async def rest(self) -> bytes:
        """Everything up to the end of the stream."""
        return await asyncio.wait_for(self._reader.read(), PATIENCE_S)


class Counted(socket.socket):
    """A listening socket that counts, and fails as it is told."""

    calls = 0
    failing: int | None = None

    def accept(self) -> tuple[socket.socket, object]:
        self.calls += 1
        if self.failing is not None:
            raise OSError(self.failing, os.strerror(self.failing))
        return super().accept()


class House:
    """An acceptor with all that is around it."""

    def __init__(
        self,
        books: Admission,
        host: str = "127.0.0.1",
        tls: Callable[[], ssl.SSLContext] | None = None,
        handshake_s: float = 30,
    ) -> None:
        self.books = books
        (sock,) = listeners(host, 0)
        self.sock = Counted(fileno=sock.detach())
        self.sock.setblocking(False)
        self.port: int = self.sock.getsockname()[1]
        self.lines: list[tuple[str, str, Mapping[str, object]]] = []
        self.guests: list[Guest] = []
        self.behind: list[bool] = []
        """What the acceptor told of its backlog."""
        self._clients: list[Client] = []
        self.acceptor = Acceptor(
            [self.sock],
            self.protocol,
            books,
            lambda *line: self.lines.append(line),
            tls=tls,
            behind=self.behind.append,
            busy=BUSY,
            handshake_s=handshake_s,
        )
        self.acceptor.start()

    def protocol(self) -> Peer:
        self.guests.append(Guest(self.books))
        return cast("Peer", self.guests[-1])

    async def connect(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Client:
        client = Client(
            *await asyncio.open_connection(
                "127.0.0.1",
                self.port,
                local_addr=(host, 0),
                ssl=tls,
                server_hostname=tls and "localhost",
            )
        )
        self._clients.append(client)
        return client

    async def member(self) -> Client:
        client = await self.connect()
        await client.hello()
        return client

    async def opening(self, host: str = "127.0.0.1") -> Client:
        """Connected, accepted, silent."""
        count = len(self.guests) + 1
        client = await self.connect(host)
        await until(lambda: len(self.guests) == count)
        return client

    def lost(self) -> list[int]:
        """Which guests are gone."""
        return [i for i, guest in enumerate(self.guests) if guest.lost]

    async def close(self) -> None:
        await self.acceptor.close()
        for client in self._clients:
            client.writer.transport.abort()
        for guest in self.guests:
            guest.abort()
        await until(lambda: not self.books.connections)


@pytest.fixture
async def open_house() -> AsyncIterator[Callable[..., House]]:
    """Makes acceptors, and closes them; then nobody is left in the books."""
    made: list[House] = []

    def make(*args: object, **options: object) -> House:
        made.append(House(*args, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for house in made:
        await house.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Openings are old soon."""
    monkeypatch.setattr(admission, "EVICT_AFTER_S", 0.05)


@pytest.fixture(scope="module")
def certificates() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts for the server and for its clients."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(client)
    return server, client


# --- openings ---------------------------------------------------------------------------------


async def test_t11_the_surplus_of_openings_waits_in_the_backlog_and_is_served_later(
    open_house: Callable[..., House],
) -> None:
    house = open_house(Admission(100, 4))
    clients = [await house.connect() for _ in range(20)]
    await until(lambda: house.books.crowded)
    calls = house.sock.calls
    await pause(0.3)
    assert len(house.guests) == 4
    assert house.sock.calls == calls, "nobody asks for connections that cannot be taken"
    for client in clients:
        await client.hello()
    assert (len(house.guests), house.books.openings, house.books.evicted) == (20, 0, 0)
    assert not house.lines


async def test_l10_while_connections_wait_the_acceptor_says_so_and_when_none_does_any_more(
    open_house: Callable[..., House],
) -> None:
    house = open_house(Admission(100, 4))
    for _ in range(4):
        await house.opening()
    assert not house.behind, "all are accepted"
    waiting = [await house.connect() for _ in range(3)]
    await until(lambda: house.behind == [True])
    await pause(0.5)
    assert house.behind == [True]
    for guest in house.guests[:3]:
        guest.abort()
    for client in waiting:
        await client.hello()
    await until(lambda: house.behind == [True, False])


async def test_l10_connections_that_gave_up_waiting_do_not_wait_for_ever(
    open_house: Callable[..., House],
) -> None:
    house = open_house(Admission(100, 1))
    first = await house.opening()
    gone = await house.connect()
    await until(lambda: house.behind == [True])
    gone.writer.transport.abort()
    first.writer.transport.abort()
    await until(lambda: house.behind == [True, False])


async def test_b24_a_burst_of_good_hellos_gets_in_whole(open_house: Callable[..., House]) -> None:
    house = open_house(Admission(1000, 8))
    await asyncio.gather(*[house.member() for _ in range(200)])
    assert house.books.connections == 200
    assert not house.lines


@pytest.mark.usefixtures("impatient")
async def test_t11_silent_ones_are_evicted_oldest_first_and_only_as_many_as_are_needed(
    open_house: Callable[..., House],
) -> None:
    house = open_house(Admission(100, 2))
    first, second = await house.opening(), await house.opening()
    await pause(0.2)
    assert house.lost() == [], "without pressure they have all their time"
    await house.member()
    assert house.lost() == [0]
    assert await first.rest() == b""
    await second.hello()


@pytest.mark.usefixtures("impatient")
async def test_t11_an_address_with_many_silent_ones_is_evicted_first(
    open_house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "OPENINGS_PER_HOST", 1)
    house = open_house(Admission(100, 3))
    slow = await house.opening("127.0.0.1")
    for _ in range(2):
        await house.opening("127.0.0.2")
    await house.member()
    assert house.lost() == [1]
    await slow.hello()


@pytest.mark.usefixtures("impatient")
async def test_d1_a_stall_of_the_server_evicts_nobody_whose_hello_waits_in_the_socket(
    open_house: Callable[..., House],
) -> None:
    house = open_house(Admission(100, 2))
    clients = [await house.opening(), await house.opening()]
    late = await house.connect()
    await pause(0.01)
    hellos = [asyncio.ensure_future(client.hello()) for client in (*clients, late)]
    await asyncio.wait(hellos, timeout=0)
    time.sleep(0.4)
    await asyncio.gather(*hellos)
    assert house.books.evicted == 0


# --- no descriptor left -----------------------------------------------------------------------


async def test_t12_above_the_limit_everybody_is_told_why_and_members_stay(
    open_house: Callable[..., House],
) -> None:
    house = open_house(Admission(3, 3))
    members = [await house.member() for _ in range(3)]
    for _ in range(5):
        client = await house.connect()
        client.writer.write(b"hello")
        assert await client.rest() == BUSY, "and no reset, though its hello was not wanted"
    for member in members:
        await member.hello()
    assert house.lost() == []
    assert house.books.turned_away == 5
    assert {line[:2] for line in house.lines} == {("connections_full", "error")}
    fields = house.lines[0][2]
    assert (fields["connections"], fields["limit"]) == (3, 3)
    assert "turned away 1 new connections: 3 are open, of at most 3" in str(fields["text"])
    assert "`ulimit -n`" in str(fields["text"])
    members[0].writer.close()
    await until(lambda: not house.books.full)
    await house.member()


async def test_a_flood_above_the_limit_is_turned_away_in_portions(
    open_house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "ACCEPTS_PER_TURN", 4)
    monkeypatch.setattr(accept, "TURN_AWAY_PAUSE_S", 0.01)
    house = open_house(Admission(1, 1))
    await house.member()
    clients = await asyncio.gather(*[house.connect() for _ in range(30)])
    assert {await client.rest() for client in clients} == {BUSY}
    assert len(house.lines) >= 30 / 4


@pytest.mark.usefixtures("impatient")
async def test_a_silent_one_goes_before_anybody_is_turned_away(
    open_house: Callable[..., House],
) -> None:
    house = open_house(Admission(2, 2))
    member = await house.member()
    await house.opening()
    await pause(0.1)
    await house.member()
    await member.hello()
    assert house.lost() == [1]
    assert house.books.turned_away == 0


async def test_t12_without_descriptors_accepting_rests_and_goes_on_when_there_are_some(
    open_house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "EXHAUSTED_PAUSE_S", 0.05)
    house = open_house(Admission(100))
    member = await house.member()
    before = house.sock.calls
    raw = socket.socket()
    raw.setblocking(False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        raw.connect_ex(("127.0.0.1", house.port))
        await pause(0.5)
        tries = house.sock.calls - before
        await member.hello()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with raw:
        await until(lambda: len(house.guests) == 2)
    assert 2 <= tries <= 12
    assert {line[:2] for line in house.lines} == {("accept_failed", "error")}
    assert house.lines[0][2]["nofile"] == free
    assert "Too many open files; 1 are open, of at most 100" in str(house.lines[0][2]["text"])


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EPROTO])
async def test_an_error_of_one_connection_is_none_of_the_socket(
    open_house: Callable[..., House], number: int
) -> None:
    house = open_house(Admission(100))
    house.sock.failing = number
    client = await house.connect()
    await until(lambda: house.sock.calls > 0)
    house.sock.failing = None
    await client.hello()
    assert not house.lines


async def test_an_error_that_nobody_foresaw_does_not_spin(
    open_house: Callable[..., House],
) -> None:
    house = open_house(Admission(100))
    house.sock.failing = errno.EINVAL
    client = await house.connect()
    await pause(0.3)
    assert house.sock.calls == 1
    assert "Invalid argument" in str(house.lines[0][2]["text"])
    house.sock.failing = None
    await client.hello()


async def test_a_flood_of_connects_leaves_every_turn_of_the_loop_to_others_too(
    open_house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "ACCEPTS_PER_TURN", 16)
    house = open_house(Admission(1000, 1000))
    clients = [socket.create_connection(("127.0.0.1", house.port), 5) for _ in range(100)]
    accepted: list[int] = []

    def turn() -> None:
        accepted.append(len(house.guests))
        if accepted[-1] < 100:
            asyncio.get_running_loop().call_soon(turn)

    turn()
    await until(lambda: accepted[-1] == 100)
    for client in clients:
        client.close()
    assert max(after - before for before, after in itertools.pairwise(accepted)) == 16


# --- TLS --------------------------------------------------------------------------------------

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


async def test_a_connection_under_tls_is_one_opening_from_its_handshake_to_its_hello(
    open_house: Callable[..., House], certificates: Contexts
) -> None:
    server, client = certificates
    house = open_house(Admission(100), tls=lambda: server)
    guest = await house.connect(tls=client)
    assert (house.books.connections, house.books.openings) == (1, 1)
    await guest.hello()
    assert (house.books.connections, house.books.openings) == (1, 0)
    guest.writer.transport.abort()
    await until(lambda: house.books.connections == 0)
    assert not house.lines


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "http request"),
        (b"\x00\xce\xf7\x85\x3c\x0d\x01\x00\x00\x00", ""),
    ],
)
async def test_a_peer_without_tls_is_closed_and_reported_once(
    open_house: Callable[..., House], certificates: Contexts, sent: bytes, words: str
) -> None:
    house = open_house(Admission(100), tls=lambda: certificates[0])
    client = await house.connect()
    client.writer.write(sent)
    with contextlib.suppress(ConnectionError):
        await client.rest()
    await until(lambda: bool(house.lines))
    ((event, level, fields),) = house.lines
    assert (event, level) == ("handshake_failed", "warning")
    assert fields["peer"] == "{}:{}".format(*client.writer.get_extra_info("sockname"))
    assert words in str(fields["reason"])
    assert house.books.connections == 0


async def test_t10_a_peer_that_says_nothing_has_no_longer_than_a_hello_has(
    open_house: Callable[..., House], certificates: Contexts
) -> None:
    house = open_house(Admission(100), tls=lambda: certificates[0], handshake_s=0.2)
    client = await house.connect()
    with contextlib.suppress(ConnectionError):
        assert await client.rest() == b""
    await until(lambda: house.books.connections == 0)
    assert [line[0] for line in house.lines] == ["handshake_failed"]
    assert "longer than 0.2 seconds" in str(house.lines[0][2]["reason"])


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_peer_that_leaves_during_its_handshake_leaves_nothing_behind(
    open_house: Callable[..., House], certificates: Contexts, how: str
) -> None:
    house = open_house(Admission(100), tls=lambda: certificates[0])
    client = await house.opening()
    client.writer.write(b"\x16\x03\x01\x02\x00")
    if how == "close":
        client.writer.close()
    else:
        linger = (1).to_bytes(4, "little") + bytes(4)
        client.writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, linger
        )
        client.writer.transport.abort()
    await until(lambda: house.books.connections == 0)
    assert [line[0] for line in house.lines] == ["handshake_failed"]


@pytest.mark.usefixtures("impatient")
async def test_handshakes_are_limited_and_the_oldest_silent_one_makes_way(
    open_house: Callable[..., House], certificates: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "TLS_HANDSHAKES_MAX", 2)
    server, tls = certificates
    house = open_house(Admission(100), tls=lambda: server)
    first, _ = await house.opening(), await house.opening()
    client = await house.connect(tls=tls)
    await client.hello()
    assert await first.rest() == b""
    assert (len(house.guests), house.books.openings, house.books.evicted) == (3, 1, 1)
    assert not house.lines, "a peer that had to go did nothing wrong"


async def test_a_handshake_that_ends_lets_the_next_one_in(
    open_house: Callable[..., House], certificates: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "TLS_HANDSHAKES_MAX", 1)
    monkeypatch.setattr(accept, "RETRY_S", 60.0)
    server, tls = certificates
    house = open_house(Admission(100), tls=lambda: server)
    for client in await asyncio.gather(*[house.connect(tls=tls) for _ in range(10)]):
        await client.hello()


async def test_the_next_connection_gets_the_certificate_of_then(
    open_house: Callable[..., House], certificates: Contexts
) -> None:
    server, tls = certificates
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(other)
    contexts = [server]
    house = open_house(Admission(100), tls=lambda: contexts[0])
    await (await house.connect(tls=tls)).hello()
    contexts[0] = other
    with pytest.raises(ssl.SSLCertVerificationError):
        await house.connect(tls=tls)
    await until(lambda: bool(house.lines))
    assert house.lines[0][2]["reason"] == "closed during the handshake"


# --- the end ----------------------------------------------------------------------------------


async def test_closing_cuts_handshakes_and_keeps_connections(
    open_house: Callable[..., House], certificates: Contexts
) -> None:
    server, tls = certificates
    house = open_house(Admission(100), tls=lambda: server)
    member = await house.connect(tls=tls)
    await member.hello()
    shaking = await house.opening()
    await house.acceptor.close()
    await house.acceptor.close()
    assert house.books.connections == 1
    assert await shaking.rest() == b""
    await member.hello()
    with pytest.raises(ConnectionRefusedError):
        await house.connect()


async def test_stopping_takes_nobody_new_and_keeps_what_is_there(
    open_house: Callable[..., House],
) -> None:
    house = open_house(Admission(100, 2))
    member, opening = await house.member(), await house.opening()
    house.acceptor.stop()
    house.acceptor.stop()
    with pytest.raises(ConnectionRefusedError):
        await house.connect()
    await member.hello()
    await opening.hello()


async def test_stopping_while_there_is_no_room_stays_stopped(
    open_house: Callable[..., House],
) -> None:
    house = open_house(Admission(100, 1))
    opening = await house.opening()
    waiting = await house.connect()
    await pause(0.05)
    house.acceptor.stop()
    await opening.hello()
    with contextlib.suppress(ConnectionError):
        assert await waiting.rest() == b""
    assert len(house.guests) == 1


async def test_what_was_accepted_in_the_turn_of_the_end_is_closed(
    open_house: Callable[..., House],
) -> None:
    house = open_house(Admission(100))
    ends: list[asyncio.Task[None]] = []
    plain = house.protocol

    def protocol() -> Peer:
        ends.append(asyncio.ensure_future(house.acceptor.close()))
        return plain()

    house.acceptor._protocol = protocol
    client = await house.connect()
    assert await client.rest() == b""
    await asyncio.gather(*ends)
    assert house.books.connections == 0
