"""A server that speaks two versions of the protocol, to clients of the older, of both, and of the newer one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rdzv_proto import auth, codec, limits
from rdzv_proto.agreement import Spoken
from rdzv_proto.auth import EVERYTHING, Token, Transcript
from rdzv_proto.codec import Codec
from rdzv_proto.errors import ErrorCode
from rdzv_proto.framing import LENGTH_BYTES, FrameBuffer, preamble
from rdzv_proto.messages import (
    REQUESTS,
    Alive,
    Authenticate,
    Barrier,
    Error,
    Goodbye,
    Heartbeat,
    HelloAdmin,
    HelloNode,
    HelloWorker,
    Join,
    Joined,
    MemberPage,
    Members,
    Message,
    Policy,
    Released,
    ServerStatus,
    Status,
    ViewChanged,
    Welcome,
)
from rdzv_server.core.events import Release
from rdzv_server.core.settings import Settings
from rdzv_server.shell import log
from rdzv_server.shell.gate import Gate
from rdzv_server.shell.listen import listeners
from rdzv_server.shell.peer import JOINED_BYTES_MAX
from rdzv_server.shell.server import Server
from rdzv_server.shell.tokens import TokenBook
from tests import nextversion
from tests.lab import identity
from tests.nextversion import BOTH, CODEC_2, LATER, ONLY_1, ONLY_2, Nudge, Ping, Pong
from tests.unit.proto import golden
from tests.unit.proto.golden import Example

PATIENCE_S = 10.0
V1 = codec.CURRENT

OPENS = (HelloNode, HelloWorker, HelloAdmin)
ASKED = [
    e for e in golden.load() if e["op"] in REQUESTS and e["op"] not in {kind.op for kind in OPENS}
]
SAID_FIRST = [e for e in golden.load() if e["op"] in {kind.op for kind in OPENS}]


def hello_of(name: str, **more: Any) -> HelloNode:
    fields: dict[str, Any] = {"incarnation": name.encode().ljust(16, b"."), **more}
    return HelloNode(run="r", node_id=name, name=name, **fields)


class Line:
    """The other end of a connection, in bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._frames = FrameBuffer(limits.FRAME_BYTES_MAX_CLIENT)
        self._ids = iter(range(1_000, 10_000))

    def send(self, spoken: Codec, message: Message) -> int:
        request_id = next(self._ids)
        self.writer.write(spoken.encode(request_id, message))
        return request_id

    async def body(self) -> bytes | None:
        """The next frame's body; None at the end of the stream."""
        while (body := self._frames.pop()) is None:
            data = await asyncio.wait_for(self._reader.read(65536), PATIENCE_S)
            if not data:
                return None
            self._frames.feed(data)
        return body

    async def next(self, spoken: Codec) -> Message:
        """The next message, which must be in that version."""
        body = await self.body()
        assert body is not None, "the stream ended"
        assert codec.version_of(body) == spoken.version, body
        return spoken.decode_answer(body)[1]

    async def until(self, kind: type[Message], spoken: Codec) -> Any:
        while not isinstance(message := await self.next(spoken), kind):
            pass
        return message

    async def hello(self, side: Spoken, spoken: Codec, hello: HelloNode) -> None:
        """Open a connection as a client of some versions does, and be answered in one of them."""
        self.writer.write(preamble(side.oldest.version))
        fields = {n: getattr(hello, n) for n in hello.__struct_fields__}
        self.send(side.oldest, HelloNode(**(fields | {"protocol_max": side.protocol_max})))
        assert isinstance(await self.next(spoken), Welcome)


class House:
    """A server in this process, and lines to it."""

    def __init__(self, lines: list[dict[str, object]], tmp_path: Path) -> None:
        self.lines = lines
        self._tmp_path = tmp_path
        self._stack = contextlib.AsyncExitStack()

    async def open(self, *, token: Token | None = None) -> None:
        gate = None
        if token is not None:
            path = self._tmp_path / "token"
            path.write_text(token.text())
            path.chmod(0o600)
            gate = Gate(TokenBook(path))
        (sock,) = listeners("127.0.0.1", 0)
        self._port = sock.getsockname()[1]
        self.server = server = Server(Settings(hello_timeout_s=2.0), identity(), gate=gate)
        accepting = await asyncio.get_running_loop().create_server(server.protocol, sock=sock)
        self._stack.push_async_callback(server.shut_down)
        self._stack.callback(accepting.close)

    async def line(self) -> Line:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)

        async def close() -> None:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        self._stack.push_async_callback(close)
        return Line(reader, writer)

    async def close(self) -> None:
        await self._stack.aclose()


@pytest.fixture
async def house(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[House]:
    lines: list[dict[str, object]] = []

    def note(name: str, level: str = "info", **fields: object) -> None:
        lines.append({"event": name, "level": level, **fields})

    monkeypatch.setattr(log, "event", note)
    monkeypatch.setattr(log, "write", lambda report: note(report.event, report.level))
    made = House(lines, tmp_path)
    yield made
    await made.close()


# --- frozen frames --------------------------------------------------------------------------------


async def heard(house: House, *frozen: bytes, agreed: Codec = V1) -> list[list[Any]]:
    """Everything that a client gets for these frames of version 1 and a heartbeat behind them in the version that is
    agreed on, as msgpack reads it, with the times of this very moment left out."""
    await house.open()
    line = await house.line()
    end = agreed.encode(77_777, Heartbeat())
    line.writer.write(b"RDZV\x01\0\0\0" + b"".join(frozen) + end)
    got: list[list[Any]] = []
    while (body := await line.body()) is not None:
        got.append(msgpack.unpackb(body))
        for field in ("left_ms", "uptime_ms"):
            got[-1][3].pop(field, None)
        if got[-1][1] == 77_777:
            break
    await house.close()
    return got


@pytest.mark.parametrize("example", ASKED, ids=[e["name"] for e in ASKED])
async def test_s34_frozen_requests_of_version_1_get_the_answers_of_a_server_of_version_1(
    house: House, monkeypatch: pytest.MonkeyPatch, example: Example
) -> None:
    (hello,) = (e for e in SAID_FIRST if e["name"] == "hello_node/required")
    frames = [bytes.fromhex(e["hex"]) for e in (hello, example)]
    old = await heard(house, *frames)
    nextversion.install(monkeypatch)
    new = await heard(house, *frames)
    assert new == old
    assert {frame[0] for frame in new} == {1}
    assert new[-1][2] == "alive", "and the connection is good after it"


@pytest.mark.parametrize("example", SAID_FIRST, ids=[e["name"] for e in SAID_FIRST])
async def test_s34_frozen_hellos_of_version_1_are_answered_as_by_a_server_of_version_1(
    house: House, monkeypatch: pytest.MonkeyPatch, example: Example
) -> None:
    """`…/all-2` says that its client speaks versions above 1 as well: those of version 2 then follow."""
    frame = bytes.fromhex(example["hex"])
    old = await heard(house, frame)
    nextversion.install(monkeypatch)
    newer = example["payload"].get("protocol_max", 0) > 1
    new = await heard(house, frame, agreed=CODEC_2 if newer else V1)
    assert [answer[1:] for answer in new] == [answer[1:] for answer in old]
    assert {answer[0] for answer in old} == {1}
    assert {answer[0] for answer in new} == {2 if newer else 1}


async def test_t21_behind_the_welcome_a_frame_of_another_version_is_refused_and_does_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fields may mean something else in the version that was agreed on: here how long a barrier waits."""
    nextversion.install(monkeypatch)
    await house.open()
    line = await house.line()
    await line.hello(BOTH, CODEC_2, hello_of("a"))
    line.send(V1, Join(policy=Policy(min_nodes=1, max_nodes=1)))
    refusal = await line.until(Error, CODEC_2)
    assert refusal.code == ErrorCode.MALFORMED
    assert refusal.message == "a frame of protocol version 1, where version 2 was agreed on"
    assert "r" not in house.server.tables.runs, "nobody has joined"
    line.send(CODEC_2, Heartbeat())
    assert isinstance(await line.until(Alive, CODEC_2), Alive), "the connection is good after it"


# --- one server, clients of all kinds -------------------------------------------------------------


async def test_s34_clients_of_both_versions_meet_in_one_run_and_each_is_spoken_to_in_its_own(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    nextversion.install(monkeypatch)
    await house.open()
    sides = {"old": (ONLY_1, V1), "both": (BOTH, CODEC_2), "new": (ONLY_2, CODEC_2)}
    lines = {name: await house.line() for name in sides}
    for name, (side, spoken) in sides.items():
        await lines[name].hello(side, spoken, hello_of(name, client=f"client {name}"))
        lines[name].send(spoken, Join(policy=Policy(min_nodes=3, max_nodes=3)))
    worlds = {name: await lines[name].until(Joined, spoken) for name, (_, spoken) in sides.items()}
    assert sorted(world.group_rank for world in worlds.values()) == [0, 1, 2]
    fence = worlds["old"].fence

    # A round of one barrier, asked for in two forms, released in two forms (the same tail to two of them).
    barrier = Barrier(fence=fence, name="b", timeout_ms=9_000, vote=False)
    for name, (_, spoken) in sides.items():
        lines[name].send(spoken, barrier)
    ends = {name: await lines[name].until(Released, s) for name, (_, s) in sides.items()}
    assert ends["old"] == Released(round=1, committed=False, against=[0, 1, 2])
    assert ends["both"] == ends["new"] == Released(round=1, committed=False)

    # What only version 2 has: it is answered, and those of version 1 hear nothing of it.
    lines["new"].send(CODEC_2, Ping(text="x"))
    assert await lines["new"].until(Pong, CODEC_2) == Pong(text="x")
    assert await lines["both"].until(Nudge, CODEC_2) == Nudge(by="new")
    lines["old"].send(V1, Heartbeat())
    assert await lines["old"].next(V1) == Alive(), "and no push before it"

    lines["old"].send(V1, Members(run="r"))
    page = await lines["old"].until(MemberPage, V1)
    told = {row.name: (row.protocol, row.client) for row in page.members}
    assert told == {
        "old": (1, "client old"), "both": (2, "client both"), "new": (2, "client new"),
    }  # fmt: skip

    # One push to all: each reads it in its own version.
    lines["old"].writer.close()
    for name in ("both", "new"):
        assert (await lines[name].until(ViewChanged, CODEC_2)).view.ended.kind == "lost"


@pytest.mark.parametrize("size", [1, JOINED_BYTES_MAX], ids=["joined", "shared"])
async def test_s34_one_reply_to_many_requests_is_encoded_once_for_each_version(
    house: House, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    nextversion.install(monkeypatch)
    await house.open()
    sides = {"old": (ONLY_1, V1), "both": (BOTH, CODEC_2), "new": (ONLY_2, CODEC_2)}
    lines = {name: await house.line() for name in sides}
    for name, (side, spoken) in sides.items():
        await lines[name].hello(side, spoken, hello_of(name))
    reply = Released(round=1, payloads=[b"x" * size], against=[2])
    to = [(conn, 7) for conn in house.server.tables.connections]
    for order in (to, to[::-1]):  # what one version lacks must not be lacking in the other
        house.server._execute([Release(tuple(order), reply)])
        house.server.flush()
        assert await lines["old"].next(V1) == reply
        for name in ("both", "new"):
            assert await lines[name].next(CODEC_2) == Released(round=1, payloads=[b"x" * size])


async def test_s34_an_operation_of_version_2_is_unknown_on_a_connection_of_version_1(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    nextversion.install(monkeypatch)
    await house.open()
    line = await house.line()
    await line.hello(ONLY_1, V1, hello_of("old"))
    line.send(CODEC_2, Ping(text="x"))
    error = await line.next(V1)
    assert isinstance(error, Error)
    assert error.code == ErrorCode.UNSUPPORTED
    assert error.message == "unknown operation 'ping' (protocol version 1)"
    line.send(V1, Heartbeat())
    assert await line.next(V1) == Alive(), "the connection stays"


async def test_s34_the_server_says_which_versions_it_speaks(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spoken, told in ((ONLY_1, (1, 0)), (BOTH, (2, 1)), (ONLY_2, (2, 0))):
        nextversion.install(monkeypatch, spoken)
        await house.open()
        line = await house.line()
        line.writer.write(preamble(spoken.oldest.version))
        line.send(spoken.oldest, HelloAdmin())
        await line.until(Welcome, spoken.oldest)
        line.send(spoken.oldest, Status())
        status = await line.until(ServerStatus, spoken.oldest)
        assert (status.protocol, status.protocol_min) == told
        await house.close()


# --- no version in common -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "client", "text"),
    [
        (ONLY_1, ONLY_2, "the client speaks protocol version 2, this server version 1 (rdzv test)"),
        (ONLY_1, LATER, "the client speaks protocol version 2, this server version 1 (rdzv test)"),
        (ONLY_2, ONLY_1, "the client speaks protocol version 1 (me 1), this server version 2 (rdzv test)"),
        (LATER, ONLY_1, "the client speaks protocol version 1 (me 1), this server versions 2 to 3 (rdzv test)"),
    ],
)  # fmt: skip
async def test_s34_no_version_in_common_is_refused_at_the_hello_with_those_of_both_sides(
    house: House, monkeypatch: pytest.MonkeyPatch, server: Spoken, client: Spoken, text: str
) -> None:
    nextversion.install(monkeypatch, server)
    await house.open()
    line = await house.line()
    line.writer.write(preamble(client.oldest.version))
    line.send(client.oldest, hello_of("a", client="me 1", protocol_max=client.protocol_max))
    goodbye = await line.next(server.oldest)
    assert goodbye == Goodbye(code=ErrorCode.UNSUPPORTED, message=text)
    assert await line.body() is None
    (said,) = [line for line in house.lines if line["event"] == "version_refused"]
    assert said["reason"] == text


@pytest.mark.parametrize("version", [0, 3, 255])
async def test_a_preamble_of_a_version_that_is_not_spoken_is_refused_unread(
    house: House, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    nextversion.install(monkeypatch)
    await house.open()
    line = await house.line()
    line.writer.write(b"RDZV" + bytes((version, 0, 0, 0)))
    goodbye = await line.next(V1)
    assert isinstance(goodbye, Goodbye)
    assert f"version {version}, this server versions 1 to 2" in goodbye.message
    assert await line.body() is None


# --- with a token ---------------------------------------------------------------------------------

MASTER = Token(EVERYTHING, b"m" * 32)


@pytest.mark.parametrize("touched", [False, True], ids=["as it was sent", "made older on its way"])
async def test_t21_s34_a_hello_that_was_made_older_on_its_way_proves_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch, touched: bool
) -> None:
    """Somebody in between takes `protocol_max` out, so that both sides speak the older version."""
    nextversion.install(monkeypatch)
    await house.open(token=MASTER)
    line = await house.line()
    sent, arrived = (
        V1.encode(1_000, hello_of("a", protocol_max=newest)) for newest in (2, 0 if touched else 2)
    )
    line.writer.write(preamble(1) + arrived)
    spoken = V1 if touched else CODEC_2
    challenge = await line.next(spoken)
    assert isinstance(challenge, Welcome)
    transcript = Transcript(sent[LENGTH_BYTES:], challenge.challenge, b"n" * 32, MASTER.grant)
    line.send(
        spoken,
        Authenticate(
            key=bytes.fromhex(MASTER.key), scope="admin", nonce=b"n" * auth.NONCE_BYTES,
            proof=transcript.client_proof(MASTER.secret),
        ),
    )  # fmt: skip
    answer = await line.next(spoken)
    if touched:
        assert isinstance(answer, Error)
        assert answer.code == ErrorCode.UNAUTHENTICATED
    else:
        assert isinstance(answer, Welcome)
        assert answer.proof == transcript.server_proof(MASTER.secret)
