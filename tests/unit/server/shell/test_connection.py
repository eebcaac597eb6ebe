"""The way in with a token: hello, challenge, proof, on real sockets."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rdzv_proto import auth, codec, limits
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token, Transcript
from rdzv_proto.errors import ErrorCode
from rdzv_proto.framing import LENGTH_BYTES, PREAMBLE
from rdzv_proto.messages import (
    AnyPush,
    AnyReply,
    AnyRequest,
    Authenticate,
    Error,
    Goodbye,
    Heartbeat,
    HelloAdmin,
    HelloNode,
    Join,
    Joined,
    ListRuns,
    Policy,
    Resume,
    Runs,
    Welcome,
)
from rdzv_server.core.settings import Settings
from rdzv_server.shell import gate as gate_module
from rdzv_server.shell import log
from rdzv_server.shell.gate import Delays, Gate
from rdzv_server.shell.listen import listeners
from rdzv_server.shell.server import Server
from rdzv_server.shell.tokens import TokenBook
from tests.lab import identity
from tests.unit.server.shell.peers import Peer, Shell

MASTER = Token(EVERYTHING, b"m" * 32)
HELLO_ID = 99_999
NODE = HelloNode(run="r", node_id="n", name="n", incarnation=b"i" * 16)


@pytest.fixture
def lines() -> list[dict[str, object]]:
    return []


@pytest.fixture
async def shell(
    monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, object]], tmp_path: Path
) -> AsyncIterator[Shell]:
    def note(name: str, level: str = "info", **fields: object) -> None:
        lines.append({"event": name, "level": level, **fields})

    monkeypatch.setattr(log, "event", note)
    monkeypatch.setattr(log, "write", lambda report: note(report.event, report.level))
    path = tmp_path / "token"
    path.write_text(MASTER.text())
    path.chmod(0o600)
    (sock,) = listeners("127.0.0.1", 0)
    server = Server(
        Settings(hello_timeout_s=2.0, guarded=True), identity(), gate=Gate(TokenBook(path))
    )
    accepting = await asyncio.get_running_loop().create_server(server.protocol, sock=sock)
    made = Shell(server, sock.getsockname()[1], accepting)
    yield made
    await made.close()


Reply = AnyReply | AnyPush | None


async def begin(shell: Shell, hello: AnyRequest = NODE) -> tuple[Peer, bytes, bytes]:
    """Say hello; returns the connection, the hello's body and the challenge."""
    peer = await shell.connect()
    frame = codec.encode(HELLO_ID, hello)
    peer.writer.write(PREAMBLE + frame)
    challenge = await peer.next()
    assert isinstance(challenge, Welcome)
    return peer, frame[LENGTH_BYTES:], challenge.challenge


def answer(
    body: bytes, challenge: bytes, token: Token = MASTER, secret: bytes | None = None
) -> tuple[Authenticate, Transcript]:
    transcript = Transcript(body, challenge, b"n" * 32, token.grant)
    message = Authenticate(
        key=bytes.fromhex(token.key), scope=token.grant.scope.value, run=token.grant.run,
        nonce=b"n" * 32, proof=transcript.client_proof(secret or token.secret),
    )  # fmt: skip
    return message, transcript


async def enter(
    shell: Shell, hello: AnyRequest = NODE, token: Token = MASTER
) -> tuple[Peer, Reply]:
    peer, body, challenge = await begin(shell, hello)
    peer.send(answer(body, challenge, token)[0])
    return peer, await peer.next()


async def test_t2_the_challenge_tells_nothing_but_itself(shell: Shell) -> None:
    peer = await shell.connect()
    peer.writer.write(PREAMBLE)
    peer.send(NODE)
    challenge = await peer.next()
    assert challenge == Welcome(
        server="rdzv",
        instance="",
        epoch=0,
        challenge=challenge.challenge,  # type: ignore[union-attr]
    )


async def test_t2_who_proves_the_token_is_welcomed_with_the_servers_proof(shell: Shell) -> None:
    peer, body, challenge = await begin(shell)
    message, transcript = answer(body, challenge)
    peer.send(message)
    welcome = await peer.next()
    assert isinstance(welcome, Welcome)
    assert welcome.session
    assert welcome.proof == transcript.server_proof(MASTER.secret)
    peer.send(Join(policy=Policy(min_nodes=1, max_nodes=1)))
    assert isinstance(await peer.until(Joined), Joined)


@pytest.mark.parametrize(
    "token", [Token(EVERYTHING, b"w" * 32), Token(EVERYTHING, b"w" * 32, MASTER.key)]
)
async def test_t2_a_wrong_token_is_refused_and_logged_with_its_peer(
    shell: Shell, lines: list[dict[str, object]], token: Token
) -> None:
    peer, reply = await enter(shell, token=token)
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.UNAUTHENTICATED
    assert token.key in reply.message
    assert await peer.next() is None
    (line,) = [line for line in lines if line["event"] == "auth_failed"]
    assert str(line["peer"]).startswith("127.0.0.1:")


async def test_t19_unknown_keys_and_wrong_secrets_look_the_same(shell: Shell) -> None:
    _, one = await enter(shell, token=Token(EVERYTHING, b"w" * 32))
    _, other = await enter(shell, token=Token(EVERYTHING, b"w" * 32, MASTER.key))
    assert isinstance(one, Error)
    assert isinstance(other, Error)
    keys = Token(EVERYTHING, b"w" * 32).key, MASTER.key
    assert one.message.replace(keys[0], "KEY") == other.message.replace(keys[1], "KEY")


async def test_t2_without_a_proof_nothing_happens(shell: Shell) -> None:
    peer = await shell.connect()
    peer.writer.write(PREAMBLE)
    for request in (Join(policy=Policy(min_nodes=1, max_nodes=1)), Heartbeat(), ListRuns()):
        peer.send(request)
        refused = await peer.next()
        assert isinstance(refused, Error)
        assert refused.code == ErrorCode.NOT_A_MEMBER
    peer.send(NODE)
    assert isinstance(await peer.next(), Welcome)
    peer.send(Join(policy=Policy(min_nodes=1, max_nodes=1)))
    assert isinstance(await peer.next(), Error)
    assert not shell.server._core.tables.sessions


async def test_t6_a_challenge_is_good_for_one_try(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, body, challenge = await begin(shell)
    peer.send(answer(body, challenge, secret=b"x" * 32)[0])
    peer.send(answer(body, challenge)[0])
    refused = await peer.next()
    assert isinstance(refused, Error)
    assert refused.code == ErrorCode.UNAUTHENTICATED
    assert await peer.next() is None
    assert not shell.server._core.tables.sessions


async def test_t6_a_proof_that_was_seen_on_another_connection_opens_nothing(shell: Shell) -> None:
    peer, body, challenge = await begin(shell)
    seen, _ = answer(body, challenge)
    peer.send(seen)
    assert isinstance(await peer.next(), Welcome)
    thief, _, _ = await begin(shell)
    thief.send(seen)
    assert isinstance(await thief.next(), Error)


async def test_t6_an_answer_without_a_question_is_refused(shell: Shell) -> None:
    peer = await shell.connect()
    peer.writer.write(PREAMBLE)
    peer.send(answer(b"", b"c" * 32)[0])
    refused = await peer.next()
    assert isinstance(refused, Error)
    assert refused.code == ErrorCode.NOT_A_MEMBER


async def test_t21_a_relayed_proof_does_not_open_a_session_for_another_node(shell: Shell) -> None:
    """A hello that was changed on the way has another transcript."""
    peer, _, challenge = await begin(shell)
    other = codec.encode(1, HelloNode(run="r", node_id="m", name="m", incarnation=b"i" * 16))
    peer.send(answer(other[LENGTH_BYTES:], challenge)[0])
    assert isinstance(await peer.next(), Error)


async def test_t5_a_wrong_proof_does_not_touch_the_session_it_names(shell: Shell) -> None:
    owner, welcome = await enter(shell)
    assert isinstance(welcome, Welcome)
    resume = Resume(welcome.epoch, welcome.session, welcome.token)
    stolen = HelloNode(
        run="r", node_id="n", name="n", incarnation=b"i" * 16, attempt=9, resume=resume
    )
    _, reply = await enter(shell, stolen, Token(EVERYTHING, b"w" * 32))
    assert isinstance(reply, Error)
    owner.send(Heartbeat())
    assert (await owner.next()) is not None


async def test_t3_a_run_token_sees_its_own_run_only(shell: Shell) -> None:
    for run in ("a", "b"):
        hello = HelloNode(run=run, node_id="n", name="n", incarnation=b"i" * 16)
        node, welcome = await enter(shell, hello)
        assert isinstance(welcome, Welcome)
        node.send(Join(policy=Policy(min_nodes=1, max_nodes=1)))
        assert isinstance(await node.until(Joined), Joined)
    token = MASTER.derive(Grant(Scope.READ, "a"))
    peer, welcome = await enter(shell, HelloAdmin(), token)
    assert isinstance(welcome, Welcome)
    peer.send(ListRuns())
    runs = await peer.next()
    assert isinstance(runs, Runs)
    assert [run.run for run in runs.runs] == ["a"]


async def test_t3_a_token_of_another_run_is_told_so_late_and_cut(
    shell: Shell, lines: list[dict[str, object]]
) -> None:
    peer, reply = await enter(shell, token=MASTER.derive(Grant(Scope.JOIN, "other")))
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.NOT_PERMITTED
    assert await peer.next() is None
    assert "auth_failed" in {line["event"] for line in lines}


async def test_t19_a_right_proof_is_not_delayed_by_wrong_ones_of_its_address(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusals never come in this test: the welcome does."""
    monkeypatch.setattr(Delays, "next_s", lambda *_: 3600.0)
    for _ in range(5):
        peer, body, challenge = await begin(shell)
        peer.send(answer(body, challenge, secret=b"x" * 32)[0])
    _, welcome = await enter(shell)
    assert isinstance(welcome, Welcome)


async def test_after_a_hello_that_was_refused_the_next_needs_a_new_proof(shell: Shell) -> None:
    """A client whose session is gone says hello anew on the same connection."""
    stale = HelloNode(
        run="r", node_id="n", name="n", incarnation=b"i" * 16, resume=Resume(1, 1, b"t" * 16)
    )
    peer, reply = await enter(shell, stale)
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.UNKNOWN_EPOCH
    request_id = peer.send(NODE)
    body = codec.encode(request_id, NODE)[LENGTH_BYTES:]
    challenge = await peer.next()
    assert isinstance(challenge, Welcome)
    peer.send(answer(body, challenge.challenge)[0])
    welcome = await peer.next()
    assert isinstance(welcome, Welcome)
    assert welcome.session


async def test_t8_nobody_gets_large_frames_before_the_proof(shell: Shell) -> None:
    peer, _, _ = await begin(shell)
    peer.writer.write((limits.FRAME_BYTES_MAX_HELLO + 1).to_bytes(4, "big"))
    goodbye = await peer.next()
    assert isinstance(goodbye, Goodbye)
    assert goodbye.code == ErrorCode.FRAME_TOO_LARGE


async def test_t11_a_hello_without_its_proof_is_cut_in_time(shell: Shell) -> None:
    peer, _, _ = await begin(shell)
    goodbye = await peer.next()
    assert isinstance(goodbye, Goodbye)
    assert "no hello within 2 s" in goodbye.message
    assert await peer.next() is None


def test_delays_hide_how_long_a_check_took() -> None:
    assert gate_module.DELAY_S[0] >= 0.1
    assert Delays(random.Random(0)).next_s("a", 0.0) >= gate_module.DELAY_S[0]
    assert auth.same(b"a", b"a")
    assert not auth.same(b"a", b"b")
