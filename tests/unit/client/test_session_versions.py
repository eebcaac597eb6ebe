"""A session that may speak two versions of the protocol: with servers of the older, of both, and of the newer."""

import random
from typing import Any, cast

import msgpack
import pytest

from rdzv_client.session import Session
from rdzv_client.session_events import Answered, State
from rdzv_proto import codec, limits
from rdzv_proto.agreement import Spoken
from rdzv_proto.codec import Codec
from rdzv_proto.errors import ErrorCode
from rdzv_proto.framing import FrameBuffer
from rdzv_proto.messages import (
    PUSHES,
    REQUESTS,
    AnyRequest,
    Authenticate,
    Barrier,
    Error,
    Goodbye,
    Heartbeat,
    HelloAdmin,
    HelloNode,
    HelloWorker,
    KvGet,
    Message,
    Notice,
    Released,
    Welcome,
)
from tests.nextversion import BOTH, CODEC_2, LATER, ONLY_1, ONLY_2, Nudge, Ping, Pong
from tests.unit.client.driver import HELLO, TOKEN
from tests.unit.proto import golden
from tests.unit.proto.golden import Example

PING = cast("AnyRequest", Ping(text="x"))
OPENS = (HelloNode, HelloWorker, HelloAdmin, Authenticate, Heartbeat)

ASKED = [e for e in golden.load() if e["op"] in REQUESTS and REQUESTS[e["op"]] not in OPENS]
PUSHED = [e for e in golden.load() if e["op"] in PUSHES and e["op"] != Goodbye.op]


class Line:
    """A session, and its server by hand."""

    def __init__(self, spoken: Spoken) -> None:
        self.session = Session(HELLO, random.Random(1), 100.0, where="host:1", spoken=spoken)

    def open(self) -> tuple[bytes, list[Any]]:
        """A connection comes about; returns the preamble and the hello, as msgpack reads it."""
        self.session.connecting()
        self.session.connected(100.0)
        data = self.session.data_to_send()
        (hello,) = self.bodies(data[8:])
        return data[:8], msgpack.unpackb(hello)

    def welcome(self, server: Codec) -> list[Any]:
        """The whole opening; returns the hello."""
        _, hello = self.open()
        welcome = Welcome(
            server="rdzv test", instance="i", epoch=7, session=3, token=TOKEN, lease_ms=15_000
        )
        self.say(server, hello[1], welcome)
        return hello

    def say(self, server: Codec, request_id: int, message: Message) -> None:
        self.session.received(100.0, server.encode(request_id, message))

    def sent(self) -> list[bytes]:
        return self.bodies(self.session.data_to_send())

    @staticmethod
    def bodies(data: bytes) -> list[bytes]:
        frames = FrameBuffer(limits.FRAME_BYTES_MAX)
        return list(frames.split(data))

    def answers(self) -> list[Any]:
        return [e.reply for e in self.session.events() if isinstance(e, Answered)]


# --- the hello ------------------------------------------------------------------------------------


def test_s34_a_client_of_one_version_says_its_hello_as_frozen() -> None:
    preamble, hello = Line(ONLY_1).open()
    assert preamble == b"RDZV\x01\0\0\0"
    assert "protocol_max" not in hello[3]


@pytest.mark.parametrize(
    ("spoken", "oldest", "newest"), [(BOTH, 1, 2), (LATER, 2, 3), (ONLY_2, 2, None)]
)
def test_s34_a_hello_says_the_range_of_versions(
    spoken: Spoken, oldest: int, newest: int | None
) -> None:
    preamble, hello = Line(spoken).open()
    assert preamble == b"RDZV" + bytes((oldest, 0, 0, 0))
    assert hello[0] == oldest
    assert hello[3].get("protocol_max") == newest


# --- with a server of version 1 -------------------------------------------------------------------


@pytest.mark.parametrize("example", ASKED, ids=[e["name"] for e in ASKED])
def test_s34_to_a_server_of_version_1_every_request_goes_as_frozen(example: Example) -> None:
    line = Line(BOTH)
    line.welcome(codec.CURRENT)
    frozen = bytes.fromhex(example["hex"])[4:]
    request_id = line.session.request(cast("AnyRequest", golden.rebuild(example)))
    (body,) = line.sent()
    version, own_id, op, payload = msgpack.unpackb(frozen)
    assert (version, own_id, op) == (1, example["request_id"], example["op"])
    assert body == msgpack.packb([1, request_id, op, payload])


@pytest.mark.parametrize("example", PUSHED, ids=[e["name"] for e in PUSHED])
def test_s34_every_push_of_a_server_of_version_1_is_understood(example: Example) -> None:
    line = Line(BOTH)
    line.welcome(codec.CURRENT)
    line.session.received(100.0, bytes.fromhex(example["hex"]))
    assert line.session.connected_now
    assert not line.session.wants_disconnect


def test_what_only_the_newer_version_has_is_answered_here_with_both_versions() -> None:
    line = Line(BOTH)
    line.welcome(codec.CURRENT)
    line.session.request(PING)
    assert line.sent() == []
    (error,) = line.answers()
    assert error.code == ErrorCode.UNSUPPORTED
    assert error.message == (
        "ping is not in protocol version 1, which is spoken with host:1; this client speaks versions 1 to 2"
    )
    assert error.action


def test_what_waited_for_a_connection_is_judged_when_the_version_is_known() -> None:
    """Asked for before there was any server, and again while it was away."""
    line = Line(BOTH)
    line.session.request(PING)
    assert line.answers() == []
    line.welcome(codec.CURRENT)
    assert [reply.code for reply in line.answers()] == [ErrorCode.UNSUPPORTED]
    assert line.sent() == []

    line = Line(BOTH)
    line.session.request(PING)
    line.welcome(CODEC_2)
    (body,) = line.sent()
    assert CODEC_2.decode_request(body)[1] == PING


# --- with a server of both ------------------------------------------------------------------------


def test_s34_after_a_welcome_in_version_2_everything_is_said_in_it() -> None:
    line = Line(BOTH)
    line.welcome(CODEC_2)
    assert line.session.wire.version == 2
    barrier = Barrier(name="b", timeout_ms=5_000)
    request_id = line.session.request(barrier)
    (body,) = line.sent()
    assert msgpack.unpackb(body) == [2, request_id, "barrier", {"name": "b", "within_ms": 5_000}]
    line.say(CODEC_2, request_id, Released(round=1, against=[1]))
    assert line.answers() == [Released(round=1)]
    ping_id = line.session.request(PING)
    line.say(CODEC_2, ping_id, Pong(text="x"))
    assert line.answers() == [Pong(text="x")]
    line.say(CODEC_2, 0, Nudge(by="a"))
    assert line.session.connected_now


def test_s34_a_server_that_is_exchanged_is_spoken_with_in_the_version_of_the_next_one() -> None:
    """Forth and back, as an upgrade that is taken back."""
    line = Line(BOTH)
    line.welcome(codec.CURRENT)
    request_id = line.session.request(Barrier(name="b", timeout_ms=9))
    assert [codec.version_of(body) for body in line.sent()] == [1]
    for server in (CODEC_2, codec.CURRENT):
        line.session.disconnected(100.0, "it is upgraded")
        hello = line.welcome(server)
        assert hello[0] == 1
        assert hello[3]["resume"]["session"] == 3
        (again,) = line.sent()
        assert codec.version_of(again) == server.version
        assert server.decode_request(again) == (request_id, Barrier(name="b", timeout_ms=9))


@pytest.mark.parametrize(("spoken", "server"), [(ONLY_1, CODEC_2), (LATER, codec.CURRENT)])
def test_a_version_that_this_client_does_not_speak_is_not_believed(
    spoken: Spoken, server: Codec
) -> None:
    """No server does so, and whoever does may be nobody: it is tried again."""
    line = Line(spoken)
    line.welcome(server)
    assert line.session.wants_disconnect
    assert not line.session.over
    assert line.session.last_error == (
        "host:1 does not speak the rdzv protocol (it chose protocol version "
        f"{server.version}; this client speaks {spoken})"
    )


def test_s34_no_version_in_common_is_final_and_both_sides_are_named() -> None:
    line = Line(LATER)
    line.open()
    text = "the client speaks protocol versions 2 to 3, this server version 1 (rdzv 0.1.0)"
    line.say(codec.CURRENT, 0, Goodbye(code=ErrorCode.UNSUPPORTED, message=text))
    assert line.session.state is State.OVER
    assert line.session.failure == Error(
        code=ErrorCode.UNSUPPORTED,
        message=text,
        action="Upgrade the older side; both versions are in the message.",
    )


# --- growth within a version ----------------------------------------------------------------------


def test_a_push_that_is_newer_than_this_client_is_passed_over() -> None:
    line = Line(ONLY_1)
    line.welcome(codec.CURRENT)
    request_id = line.session.request(KvGet(key="k"))
    new = msgpack.packb([1, 0, "weather", {"sky": "blue"}])
    line.session.received(100.0, len(new).to_bytes(4, "big") + new)
    line.say(codec.CURRENT, 0, Notice(message="hear"))
    assert line.session.connected_now
    assert not line.session.wants_disconnect
    assert Notice(message="hear") in line.session.events()
    line.say(codec.CURRENT, request_id, Error(code=ErrorCode.WAIT_TIMEOUT, message="no"))
    assert len(line.answers()) == 1


def test_an_answer_that_is_no_message_is_still_a_fault_of_the_server() -> None:
    for body in ([1, 5, "weather", {}], [1, 0, "notice", {}], [1, 0]):
        line = Line(ONLY_1)
        line.welcome(codec.CURRENT)
        data = msgpack.packb(body)
        line.session.received(100.0, len(data).to_bytes(4, "big") + data)
        assert line.session.wants_disconnect
        assert "does not speak the rdzv protocol" in line.session.last_error
