"""TCPStore clients over real sockets: a store of a run, and the one at the main port."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import pytest

from rdzv_proto import codec
from rdzv_proto.framing import PREAMBLE, FrameBuffer
from rdzv_proto.messages import HelloNode, Join, Joined, Leave, Policy
from rdzv_server.core.settings import Settings
from rdzv_server.core.tcpstore.stores import LINGER_S
from rdzv_server.shell import log
from rdzv_server.shell.listen import listeners
from rdzv_server.shell.server import Server
from rdzv_server.shell.store_connection import SLICE_BYTES, StoreConnection
from tests.lab import identity
from tests.unit.proto.tcpstore_bytes import HELLO, YES, blob, get, multi_get, ping, set_, wait
from tests.unit.server.shell.waiting import pause, until

PATIENCE_S = 10.0


class Client:
    """A TCPStore client in bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, data: bytes, answer: bytes) -> None:
        """Send, and read exactly this."""
        self.send(data)
        assert await self.read(len(answer)) == answer

    async def read(self, count: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(count), PATIENCE_S)

    async def rest(self) -> bytes:
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(-1), PATIENCE_S)
        return b""


class Shell:
    def __init__(self, server: Server, port: int, accepting: asyncio.Server) -> None:
        self.server, self.port, self._accepting = server, port, accepting
        self.node: asyncio.StreamWriter | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def client(self, port: int = 0, hello: bytes = HELLO) -> Client:
        made = Client(*await asyncio.open_connection("127.0.0.1", port or self.port))
        self._writers.append(made.writer)
        made.send(hello)
        return made

    async def store_port(self) -> int:
        """Join as the only node of a run with a store."""
        reader, self.node = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(self.node)
        hello = HelloNode(run="r", node_id="a", name="a", incarnation=b"a" * 16)
        policy = Policy(min_nodes=1, max_nodes=1, worker_store="server")
        frames = (codec.encode(1, hello), codec.encode(2, Join(policy=policy)))
        self.node.write(PREAMBLE + b"".join(frames))
        buffer = FrameBuffer(1 << 20)
        while True:
            while (body := buffer.pop()) is not None:
                message = codec.decode_answer(body)[1]
                if isinstance(message, Joined):
                    return message.store_port
            data = await asyncio.wait_for(reader.read(65536), PATIENCE_S)
            assert data, "the server closed the connection"
            buffer.feed(data)

    async def end_generation(self) -> None:
        assert self.node is not None
        self.node.write(codec.encode(3, Leave(kind="drained")))
        await self.node.drain()

    async def close(self) -> None:
        self._accepting.close()
        await self.server.shut_down()
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@pytest.fixture
def lines() -> list[dict[str, object]]:
    """What was logged."""
    return []


@pytest.fixture
async def shell(
    monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, object]]
) -> AsyncIterator[Shell]:
    monkeypatch.setattr(
        log, "event", lambda name, level="", **fields: lines.append({"event": name, **fields})
    )
    monkeypatch.setattr(
        log, "write", lambda report: lines.append({"event": report.event} | report.fields)
    )
    (sock,) = listeners("127.0.0.1", 0)
    port = sock.getsockname()[1]
    server = Server(Settings(hello_timeout_s=1.0), identity(), tcpstore=True)
    accepting = await asyncio.get_running_loop().create_server(server.protocol, sock=sock)
    made = Shell(server, port, accepting)
    yield made
    await made.close()


async def test_a_store_of_a_run_answers_at_its_own_port(shell: Shell) -> None:
    port = await shell.store_port()
    assert port not in (0, shell.port)
    a, b = await shell.client(port), await shell.client(port)
    await a.ask(ping(7), struct.pack("<I", 7))
    a.send(wait(b"/k"))
    await b.ask(set_(b"/k", b"v") + get(b"/k"), blob(b"v"))
    await a.ask(b"", YES)


async def test_bytes_may_come_one_at_a_time(shell: Shell) -> None:
    client = await shell.client(await shell.store_port(), b"")
    for byte in HELLO + ping(7) + set_(b"/k", b"v") + get(b"/k"):
        client.send(bytes((byte,)))
        await client.writer.drain()
    assert await client.read(13) == struct.pack("<I", 7) + blob(b"v")


async def test_a_large_value_comes_back_whole(shell: Shell) -> None:
    client = await shell.client(await shell.store_port())
    value = bytes(range(256)) * (8 << 12)
    await client.ask(set_(b"/k", value) + get(b"/k"), blob(value))


async def test_a_bad_request_is_closed_after_the_answers_before_it(shell: Shell) -> None:
    client = await shell.client(await shell.store_port())
    client.send(ping(7) + b"\x4d")
    assert await client.rest() == struct.pack("<I", 7)


async def test_answers_before_a_half_close_are_sent(shell: Shell) -> None:
    client = await shell.client(await shell.store_port())
    client.send(ping(7))
    client.writer.write_eof()
    assert await client.rest() == struct.pack("<I", 7)


async def test_the_port_ends_with_its_generation_and_its_clients_a_little_later(
    shell: Shell,
) -> None:
    port = await shell.store_port()
    client = await shell.client(port)
    await client.ask(set_(b"/k", b"v") + get(b"/k"), blob(b"v"))
    began = asyncio.get_running_loop().time()
    await shell.end_generation()

    async def refused() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            return True
        writer.close()
        return False

    while not await refused():
        assert asyncio.get_running_loop().time() - began < 3
    await client.ask(get(b"/k"), blob(b"v"))
    assert await client.rest() == b""
    assert asyncio.get_running_loop().time() - began > LINGER_S - 0.5


async def test_the_main_port_serves_tcpstore_clients_in_one_store(shell: Shell) -> None:
    a, b = await shell.client(), await shell.client()
    await a.ask(ping(1) + set_(b"/k", b"v"), struct.pack("<I", 1))
    await b.ask(get(b"/k"), blob(b"v"))
    port = await shell.store_port()
    await (await shell.client(port)).ask(get(b"/k"), blob(b""))


async def test_the_main_port_takes_a_hello_in_pieces(shell: Shell) -> None:
    client = await shell.client(hello=b"")
    for byte in HELLO + ping(7):
        client.send(bytes((byte,)))
        await client.writer.drain()
    assert await client.read(4) == struct.pack("<I", 7)


async def test_a_client_at_the_main_port_outlives_the_time_for_a_preamble(shell: Shell) -> None:
    client = await shell.client()
    await client.ask(ping(7), struct.pack("<I", 7))
    await pause(1.2)  # longer than the time for a hello, which must not strike here
    await client.ask(ping(8), struct.pack("<I", 8))


async def test_a_client_without_a_hello_is_closed(
    shell: Shell, lines: list[dict[str, object]]
) -> None:
    client = await shell.client(await shell.store_port(), b"")
    assert await client.rest() == b""
    assert any("no hello" in str(line.get("reason")) for line in lines)


async def test_a_reader_that_falls_behind_is_cut(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, object]]
) -> None:
    monkeypatch.setattr(StoreConnection, "write_bytes_max", 1 << 20)
    client = await shell.client(await shell.store_port())
    value = b"v" * (1 << 20)
    await client.ask(set_(b"/k", value) + ping(1), struct.pack("<I", 1))
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.send(multi_get(*[b"/k"] * 40))  # far more than the kernel's buffers of both ends
    await until(lambda: any(line["event"] == "slow_reader" for line in lines))


async def test_a_stopping_server_closes_its_stores(shell: Shell) -> None:
    client = await shell.client(await shell.store_port())
    shared = await shell.client()
    await client.ask(ping(1), struct.pack("<I", 1))
    await shared.ask(ping(1), struct.pack("<I", 1))
    began = asyncio.get_running_loop().time()
    await shell.server.shut_down()
    assert await client.rest() == b""
    assert await shared.rest() == b""
    assert asyncio.get_running_loop().time() - began < 1.5


async def test_l10_a_flood_of_requests_is_done_a_slice_at_a_time_in_order(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    received = shell.server.stores.received

    def note(connection: StoreConnection, data: bytes) -> None:
        sizes.append(len(data))
        received(connection, data)

    monkeypatch.setattr(shell.server.stores, "received", note)
    client = await shell.client(await shell.store_port())
    count = 20_000
    client.send(b"".join(ping(n) for n in range(count)))
    assert await client.read(4 * count) == b"".join(struct.pack("<I", n) for n in range(count))
    assert max(sizes) <= SLICE_BYTES
