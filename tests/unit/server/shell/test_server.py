"""The shell on real sockets and both loops: bytes in, bytes out, rubbish kept away from the core."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import pytest
import structlog

from rdzv_proto import PROTOCOL_VERSION, codec, limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.framing import PREAMBLE
from rdzv_proto.messages import (
    Alive,
    Done,
    Error,
    Goodbye,
    Heartbeat,
    HelloNode,
    Join,
    Joined,
    KvGet,
    KvNumber,
    KvSet,
    Policy,
    Welcome,
)
from rdzv_server.core.events import Effect, Release
from rdzv_server.core.sessions import SOCKET_POLL_S
from rdzv_server.core.settings import Settings
from rdzv_server.shell import log
from rdzv_server.shell import server as server_module
from rdzv_server.shell.connection import Connection
from rdzv_server.shell.listen import listeners
from rdzv_server.shell.server import Server
from tests.lab import identity
from tests.unit.server.shell.peers import PATIENCE_S, Shell


@pytest.fixture
def lines() -> list[dict[str, object]]:
    """What was logged."""
    return []


@pytest.fixture
async def shell(
    monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, object]]
) -> AsyncIterator[Shell]:
    def note(name: str, level: str = "info", **fields: object) -> None:
        lines.append({"event": name, "level": level, **fields})

    monkeypatch.setattr(log, "event", note)
    monkeypatch.setattr(log, "write", lambda report: note(report.event, report.level))
    (sock,) = listeners("127.0.0.1", 0)
    port = sock.getsockname()[1]
    server = Server(Settings(hello_timeout_s=1.0), identity())
    accepting = await asyncio.get_running_loop().create_server(server.protocol, sock=sock)
    made = Shell(server, port, accepting)
    yield made
    await made.close()


async def test_two_nodes_meet_over_sockets(shell: Shell) -> None:
    a, b = await shell.node("a"), await shell.node("b")
    for peer in (a, b):
        peer.send(Join(policy=Policy(min_nodes=2, max_nodes=2)))
    told = [await peer.until(Joined) for peer in (a, b)]
    assert [t.group_rank for t in told] == [0, 1]  # type: ignore[attr-defined]


async def test_input_may_come_one_byte_at_a_time(shell: Shell) -> None:
    peer = await shell.connect()
    hello = HelloNode(run="r", node_id="a", name="a", incarnation=b"a" * 16)
    for byte in PREAMBLE + codec.encode(1, hello) + codec.encode(2, Heartbeat()):
        peer.writer.write(bytes((byte,)))
        await peer.writer.drain()
    await peer.until(Welcome)
    assert isinstance(await peer.until(Alive), Alive)


async def test_all_frames_of_one_read_are_answered_in_order(shell: Shell) -> None:
    peer = await shell.node("a")
    for _ in range(100):
        peer.send(Heartbeat())
    for _ in range(100):
        assert isinstance(await peer.next(), Alive)


async def test_one_reply_goes_to_many_requests(shell: Shell) -> None:
    """Each gets it under its own request id; a connection that is gone is passed over."""
    peers = [await shell.node(name) for name in "abc"]
    waiting = list(shell.server._core.tables.sessions.values())
    shell.server._core.tables.release(
        [(waiting[0], 7), (waiting[1], 70_000), (waiting[2], 3), (waiting[1], 8)],
        KvNumber(value=5),
        keep=True,
    )
    to_a_ghost = Release(((999, 1),), Done())
    shell.server._execute([to_a_ghost, *shell.server._core.tables.effects])
    shell.server._core.tables.effects.clear()
    shell.server.flush()
    for peer, ids in zip(peers, ([7], [70_000, 8], [3]), strict=True):
        for request_id in ids:
            assert await peer.next_frame() == (request_id, KvNumber(value=5))
    assert [list(s.replies) for s in waiting] == [[7], [70_000, 8], [3]]


@pytest.mark.parametrize(
    ("opening", "words"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03", "TLS"),
        (b"\x00\xce\xf7\x85\x3c\x0d\x01\x00\x00\x00", "--rdzv-backend=rdzv here, not c10d"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
        (b"\xde\xad\xbe\xef" * 4, "unknown protocol"),
    ],
)
async def test_a_foreign_protocol_is_closed_with_one_line_in_the_log(
    shell: Shell, lines: list[dict[str, object]], opening: bytes, words: str
) -> None:
    for _ in range(20):
        peer = await shell.connect()
        peer.writer.write(opening)
        with contextlib.suppress(ConnectionError):
            assert await peer.rest() == b""
    said = [line for line in lines if line["event"] == "foreign_protocol"]
    assert 1 <= len(said) <= 3, "at most one line a second"
    assert words in str(said[0]["reason"])


async def test_a_browser_is_told_what_this_port_is(shell: Shell) -> None:
    peer = await shell.connect()
    peer.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"rdzv rendezvous port" in await peer.rest()


async def test_b43c_a_client_of_another_version_is_told_both_versions(shell: Shell) -> None:
    peer = await shell.connect()
    peer.writer.write(b"RDZV" + bytes((PROTOCOL_VERSION + 1, 0, 0, 0)))
    goodbye = await peer.until(Goodbye)
    assert isinstance(goodbye, Goodbye)
    assert goodbye.code == ErrorCode.UNSUPPORTED
    assert f"version {PROTOCOL_VERSION + 1}" in goodbye.message
    assert f"version {PROTOCOL_VERSION} " in goodbye.message
    assert await peer.next() is None


async def test_a_connection_without_preamble_is_closed(shell: Shell) -> None:
    idle, half = await shell.connect(), await shell.connect()
    half.writer.write(b"RDZ")
    for peer in (idle, half):
        with contextlib.suppress(ConnectionError):
            assert await peer.rest() == b""


@pytest.mark.parametrize("greeted", [False, True])
async def test_a_frame_over_the_limit_is_refused_unread_and_nobody_else_notices(
    shell: Shell, greeted: bool
) -> None:
    other = await shell.node("other")
    peer = await shell.connect()
    if greeted:
        await peer.hello()
    else:
        peer.writer.write(PREAMBLE)
    limit = limits.FRAME_BYTES_MAX if greeted else limits.FRAME_BYTES_MAX_HELLO
    peer.writer.write((limit + 1).to_bytes(4, "big") + b"x" * 100)
    goodbye = await peer.until(Goodbye)
    assert isinstance(goodbye, Goodbye)
    assert goodbye.code == ErrorCode.FRAME_TOO_LARGE
    assert str(limit) in goodbye.message
    other.send(Heartbeat())
    assert isinstance(await other.next(), Alive)


async def test_a_large_request_without_values_is_refused_and_the_connection_stays(
    shell: Shell,
) -> None:
    peer = await shell.node("a")
    names = [f"{i:0100d}" for i in range(1000)]
    peer.send(Join(policy=Policy(min_nodes=1, max_nodes=1), expected_nodes=names))
    error = await peer.until(Error)
    assert isinstance(error, Error)
    assert error.code == ErrorCode.FRAME_TOO_LARGE
    peer.send(Heartbeat())
    assert isinstance(await peer.next(), Alive)


async def test_values_of_a_megabyte_pass(shell: Shell) -> None:
    peer = await shell.node("a")
    peer.send(Join(policy=Policy(min_nodes=1, max_nodes=1)))
    joined = await peer.until(Joined)
    assert isinstance(joined, Joined)
    peer.send(KvSet(fence=joined.fence, key="k", value=b"x" * limits.VALUE_BYTES_MAX))
    reply = await peer.next()
    assert reply is not None
    assert reply.op == "done"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"\x94\x01\x07\xa5nosuc\x80", ErrorCode.UNSUPPORTED),
        (b"\x94\x01\x07\xa9heartbeat\x81\xacacknowledged\xa1x", ErrorCode.MALFORMED),
        (b"\x94\x01\x07\xa4join\xc0", ErrorCode.MALFORMED),
    ],
)
async def test_a_bad_request_gets_an_addressed_error_and_the_connection_stays(
    shell: Shell, body: bytes, code: ErrorCode
) -> None:
    peer = await shell.node("a")
    peer.writer.write(len(body).to_bytes(4, "big") + body)
    error = await peer.next()
    assert isinstance(error, Error)
    assert error.code == code
    peer.send(Heartbeat())
    assert isinstance(await peer.next(), Alive)


async def test_rubbish_instead_of_a_frame_ends_the_connection_with_a_reason(shell: Shell) -> None:
    peer = await shell.node("a")
    peer.writer.write(b"\x00\x00\x00\x05rubbi")
    goodbye = await peer.until(Goodbye)
    assert isinstance(goodbye, Goodbye)
    assert goodbye.code == ErrorCode.MALFORMED
    assert await peer.next() is None


async def test_a_reader_that_falls_behind_is_cut(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, object]]
) -> None:
    monkeypatch.setattr(Connection, "write_bytes_max", 1 << 20)
    slow = await shell.node("slow")
    slow.send(Join(policy=Policy(min_nodes=1, max_nodes=1)))
    joined = await slow.until(Joined)
    assert isinstance(joined, Joined)
    value = b"x" * limits.VALUE_BYTES_MAX
    slow.send(KvSet(fence=joined.fence, key="k", value=value))
    await slow.until(Done)
    slow._reader._transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(60):  # far more than the kernel's buffers of both ends
        slow.send(KvGet(fence=joined.fence, key="k"))
    await _until(lambda: any(line["event"] == "slow_reader" for line in lines))
    other = await shell.node("other")
    other.send(Heartbeat())
    assert isinstance(await other.next(), Alive)


async def test_a_closed_connection_is_seen_while_its_join_waits(
    shell: Shell, lines: list[dict[str, object]]
) -> None:
    peer = await shell.node("a")
    peer.send(Join(policy=Policy(min_nodes=2, max_nodes=2)))
    await _until(lambda: any(line["event"] == "node_joined" for line in lines))
    peer.writer.close()
    await _until(lambda: any(line["event"] == "node_lost" for line in lines))


async def test_s32_a_blocked_loop_costs_nobody_its_lease(
    shell: Shell, lines: list[dict[str, object]]
) -> None:
    """The timer may fire before the heartbeats in the sockets are read (SEMANTICS D1)."""
    peers = [await shell.node(f"n{i}", lease_s=0.4) for i in range(20)]
    for peer in peers:
        peer.send(Join(policy=Policy(min_nodes=20, max_nodes=20)))
    for peer in peers:
        await peer.until(Joined)
    for _ in range(3):
        for peer in peers:
            peer.send(Heartbeat())
            await peer.writer.drain()
        time.sleep(0.9)
        for peer in peers:
            await peer.until(Alive)
    assert [line for line in lines if line["event"] == "server_stalled"]
    assert not [line for line in lines if line["event"] == "node_lost"]


async def test_s33_what_is_read_after_a_stop_in_the_middle_of_a_turn_is_heard_then(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop is shorter than what counts as a stall, and nearly as long as the shortest lease (stall
    sweep): the heartbeats that came meanwhile were counted as heard before it."""
    now = time.monotonic()
    readings = iter([now, now + 0.005, now + 0.155])
    heard = []
    with monkeypatch.context() as patch:
        patch.setattr(server_module, "time", SimpleNamespace(monotonic=lambda: next(readings)))
        for _ in range(3):  # three connections that are read in one turn of the loop
            shell.server.begin()
            heard.append(shell.server._core.tables.t)
    assert heard[1] == heard[0]
    assert heard[2] == pytest.approx(heard[0] + 0.155)


async def test_s33_the_sockets_are_looked_at_between_the_phases_of_an_expiry_however_long_the_first_is(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many sessions it takes longer than the pause between the two, and the second was due at once:
    on uvloop before anything was read (stall sweep, 200 connections)."""
    peer = await shell.node("a")
    core = shell.server._core
    (session,) = core.tables.sessions.values()
    session.heard_at -= 60.0
    core.tables.deadlines.set(("session", session.id, 0), core.tables.t)
    tick = core.tick

    def slow(now: float) -> list[Effect]:
        effects = tick(now)
        if session.expiring_since is not None and not marked:
            marked.append(now)
            peer.send(Heartbeat())
            time.sleep(5 * SOCKET_POLL_S)
        return effects

    marked: list[float] = []
    monkeypatch.setattr(core, "tick", slow)
    await peer.until(Alive)
    assert marked
    assert core.tables.sessions


async def test_shutting_down_says_goodbye_and_ends_by_itself(shell: Shell) -> None:
    peers = [await shell.node(f"n{i}") for i in range(3)]
    began = time.monotonic()
    await shell.server.shut_down()
    assert time.monotonic() - began < 5
    for peer in peers:
        goodbye = await peer.until(Goodbye)
        assert isinstance(goodbye, Goodbye)
        assert goodbye.code == ErrorCode.SHUTTING_DOWN
        assert goodbye.retry_after_ms > 0


def test_log_lines_cannot_be_forged(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("text", "info")
    try:
        log.event("x", reason='a"b\nevent=forged run=r', node="n=1 2")
    finally:
        structlog.reset_defaults()
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.count("event=") == 2
    assert "\\nevent=forged" in line


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.02)


async def test_s30_when_its_lead_is_over_it_answers_nobody_and_drops_everybody(
    shell: Shell,
) -> None:
    peer, silent = await shell.node("a"), await shell.connect()
    shell.server._lead.until = 0.0
    peer.send(Heartbeat())
    for each in (peer, silent):
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(each._reader.read(), PATIENCE_S) == b""
    assert shell.server._lead.over.is_set()
    assert shell.server._lead.why == "its lease was not renewed in time"


async def test_s30_a_lead_that_ran_out_is_noticed_without_any_input(shell: Shell) -> None:
    peer = await shell.node("a")
    shell.server._lead.until = 0.0
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(peer._reader.read(), PATIENCE_S) == b""
    assert not shell.server._connections
