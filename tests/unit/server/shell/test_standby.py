"""What clients meet at a server that stands by, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rdzv_proto import codec
from rdzv_proto.errors import ErrorCode
from rdzv_proto.framing import PREAMBLE, FrameBuffer
from rdzv_proto.messages import Goodbye, HelloAdmin
from rdzv_server.shell import standby as module
from rdzv_server.shell.admission import UNLIMITED, Admission
from rdzv_server.shell.standby import Standby
from tests.unit.server.shell.waiting import PATIENCE_S, pause, until

HELLO = PREAMBLE + codec.encode(1, HelloAdmin(client="test"))
LEADER = "10.0.0.7:29500"


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def rest(self) -> bytes:
        try:
            return await asyncio.wait_for(self._reader.read(), PATIENCE_S)
        except ConnectionResetError:
            return b""

    async def goodbye(self) -> Goodbye:
        frames = FrameBuffer(1 << 20)
        frames.feed(await self.rest())
        body = frames.pop()
        assert body is not None
        number, message = codec.decode_answer(body)
        assert number == 0
        assert isinstance(message, Goodbye)
        assert message.code == ErrorCode.NOT_LEADER
        assert frames.pop() is None
        return message


class House:
    def __init__(self, port: int) -> None:
        self.books = Admission(UNLIMITED, UNLIMITED)
        self.standby = Standby("me:1", self.books)
        self._port = port
        self._clients: list[Client] = []

    async def connect(self, data: bytes = HELLO) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self._port))
        client.writer.write(data)
        self._clients.append(client)
        return client

    def end(self) -> None:
        for client in self._clients:
            client.writer.close()


@asynccontextmanager
async def house() -> AsyncIterator[House]:
    made: list[House] = []
    server = await asyncio.get_running_loop().create_server(
        lambda: made[0].standby.protocol(), "127.0.0.1", 0
    )
    made.append(House(server.sockets[0].getsockname()[1]))
    try:
        yield made[0]
    finally:
        made[0].end()
        made[0].standby.close()
        server.close()
        await server.wait_closed()
        await until(lambda: not made[0].standby._ends)


async def test_while_the_leader_lives_clients_are_sent_to_it_at_once() -> None:
    async with house() as there:
        there.standby.told(LEADER, True)
        bye = await (await there.connect()).goodbye()
        assert bye.leader == LEADER
        assert bye.retry_after_ms == 0
        assert LEADER in bye.message
        await until(lambda: there.books.connections == 0)


async def test_a_client_waits_for_a_new_leader_and_hears_of_it_at_once() -> None:
    async with house() as there:
        there.standby.told("old:1", False)
        client = await there.connect()
        await until(lambda: bool(there.standby._waiting))
        there.standby.told("", False)
        await pause(0.05)
        assert there.standby._waiting
        there.standby.told("new:1", True)
        assert (await client.goodbye()).leader == "new:1"


async def test_who_has_not_asked_etcd_yet_keeps_nobody() -> None:
    """A leader that lost etcd is one: its clients are wanted elsewhere, within the time of their recovery."""
    async with house() as there:
        assert (await (await there.connect()).goodbye()).leader == ""
        there.standby.told("", False)
        await there.connect()
        await until(lambda: bool(there.standby._waiting))


async def test_a_server_that_cannot_ask_etcd_sends_everybody_on_to_the_others() -> None:
    async with house() as there:
        there.standby.told("", False)
        client = await there.connect()
        await until(lambda: bool(there.standby._waiting))
        there.standby.blind()
        for each in (client, await there.connect()):
            bye = await each.goodbye()
            assert bye.leader == ""
            assert bye.retry_after_ms == module.RETRY_AFTER_MS
        there.standby.told(LEADER, True)
        assert (await (await there.connect()).goodbye()).leader == LEADER


async def test_when_this_server_leads_those_who_wait_are_sent_to_itself() -> None:
    async with house() as there:
        there.standby.told("", False)
        client = await there.connect()
        await until(lambda: bool(there.standby._waiting))
        there.standby.lead()
        assert (await client.goodbye()).leader == "me:1"


async def test_nobody_waits_longer_than_its_patience_with_a_hello(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HOLD_S", (0.05, 0.05))
    async with house() as there:
        there.standby.told("", False)
        bye = await (await there.connect()).goodbye()
        assert bye.leader == ""
        assert bye.retry_after_ms == module.RETRY_AFTER_MS
        there.standby.told("silent:1", False)
        assert (await (await there.connect()).goodbye()).leader == "silent:1"


async def test_its_own_address_is_a_start_before_this_one_and_leads_nobody_anywhere() -> None:
    async with house() as there:
        there.standby.told("me:1", True)
        await there.connect()
        await until(lambda: bool(there.standby._waiting))
        assert there.standby.leader == ""


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        PREAMBLE + b"\xff\xff\xff\xff",
        PREAMBLE + b"\x00\x00\x00\x02\xc1\xc1",
    ],
    ids=["http", "huge", "rubbish"],
)
async def test_what_is_no_hello_is_cut_without_a_word(data: bytes) -> None:
    async with house() as there:
        there.standby.told(LEADER, True)
        assert await (await there.connect(data)).rest() == b""


async def test_who_says_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELLO_S", 0.05)
    async with house() as there:
        for data in (b"", PREAMBLE[:2], HELLO[:-1]):
            assert await (await there.connect(data)).rest() == b""
        await until(lambda: there.books.connections == 0)


async def test_another_version_is_sent_to_the_leader_too() -> None:
    async with house() as there:
        there.standby.told(LEADER, True)
        other = PREAMBLE[:4] + b"\x63" + PREAMBLE[5:]
        assert (await (await there.connect(other)).goodbye()).leader == LEADER
