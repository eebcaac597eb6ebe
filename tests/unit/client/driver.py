"""Drives a client session with hand-made server bytes, in virtual time."""

import random
from typing import Any, TypeVar

from rdzv_client.proving import Prover
from rdzv_client.session import Session
from rdzv_client.session_events import Answered, Event, StateChanged
from rdzv_client.wire import Hello
from rdzv_proto import codec, limits
from rdzv_proto.framing import PREAMBLE, FrameBuffer
from rdzv_proto.messages import (
    AnyPush,
    AnyReply,
    AnyRequest,
    Fence,
    HelloAdmin,
    HelloNode,
    HelloWorker,
    Join,
    Joined,
    Policy,
    Welcome,
)

E = TypeVar("E")
M = TypeVar("M")

HELLO = HelloNode(run="llama", node_id="node-1", name="node-1", incarnation=b"i" * 16)
TOKEN = b"t" * 16
JOIN = Join(policy=Policy(min_nodes=2, max_nodes=4))
FENCE = Fence(7, 1)
LEASE_S = 15.0


def joined(fence: Fence = FENCE, **more: Any) -> Joined:
    fields: dict[str, Any] = {"group_rank": 0, "world_size": 2, "digest": b"d", "reason": "all in"}
    return Joined(fence=fence, **(fields | more))


class Driver:
    """A session and the two ends of its wire."""

    def __init__(
        self,
        hello: Hello = HELLO,
        *,
        connect_timeout_s: float = 60.0,
        reconnect_timeout_s: float = 30.0,
    ) -> None:
        self.now = 100.0
        self.prover: Prover | None = None
        """Of the next connection."""
        self.hello_body = b""
        """Of the last hello, as it was sent."""
        self.session = Session(
            hello,
            random.Random(1),
            self.now,
            connect_timeout_s=connect_timeout_s,
            reconnect_timeout_s=reconnect_timeout_s,
            where="host:29500",
        )

    # --- the network --------------------------------------------------------------------------

    def connect(self, *, doubtful: bool = False) -> list[tuple[int, AnyRequest]]:
        """A connection comes about; returns the frames behind the preamble."""
        self.session.connecting()
        self.session.connected(self.now, self.prover, doubtful=doubtful)
        data = self.session.data_to_send()
        assert data.startswith(PREAMBLE), "a connection starts with the preamble"
        return self._read(data[len(PREAMBLE) :])

    def sent(self) -> list[tuple[int, AnyRequest]]:
        """What the session wants sent now."""
        return self._read(self.session.data_to_send())

    def say(self, request_id: int, message: AnyReply | AnyPush) -> None:
        """The server sends a message."""
        self.session.received(self.now, codec.encode(request_id, message))

    def drop(self, reason: str = "the server closed the connection") -> None:
        """The connection ends."""
        self.session.disconnected(self.now, reason)

    def wants_out(self) -> bool:
        """The session wants its connection closed."""
        return self.session.wants_disconnect

    def hang_up(self) -> None:
        """The shell closes the connection because the session wants that."""
        assert self.wants_out()
        self.session.disconnected(self.now, self.session.last_error)

    # --- courses of events --------------------------------------------------------------------

    def welcome(self, **fields: Any) -> list[tuple[int, AnyRequest]]:
        """Connect and be welcomed; returns what is sent after the welcome."""
        ((hello_id, _),) = self.connect()
        return self.greet(hello_id, **fields)

    def greet(self, hello_id: int, **fields: Any) -> list[tuple[int, AnyRequest]]:
        """The server accepts a hello; returns what is sent after that."""
        given: dict[str, Any] = {
            "server": "rdzv test",
            "instance": "i1",
            "epoch": 7,
            "session": 3,
            "token": TOKEN,
            "lease_ms": round(LEASE_S * 1000),
        }
        self.say(hello_id, Welcome(**(given | fields)))
        return self.sent()

    def ask(self, message: AnyRequest = JOIN) -> int:
        return self.session.request(message)

    def in_generation(self, fence: Fence = FENCE) -> None:
        """Welcomed and in a generation, with nothing left to read."""
        self.welcome()
        self.say(self.ask(), joined(fence))
        self.sent()
        self.events()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.session.tick(self.now)

    # --- looking ------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        return self.session.events()

    def answers(self) -> dict[int, AnyReply]:
        """Replies since the last look, by request id; other events are dropped."""
        return {e.request_id: e.reply for e in self.events() if isinstance(e, Answered)}

    def _read(self, data: bytes) -> list[tuple[int, AnyRequest]]:
        frames = FrameBuffer(limits.FRAME_BYTES_MAX)
        frames.feed(data)
        got = []
        while (body := frames.pop()) is not None:
            got.append(codec.decode_request(body))
            if isinstance(got[-1][1], HelloNode | HelloWorker | HelloAdmin):
                self.hello_body = body
        assert len(frames) == 0, "half a frame was sent"
        return got


def only(events: list[Event], kind: type[E]) -> E:
    """The one event of a kind."""
    (found,) = [e for e in events if isinstance(e, kind)]
    return found


def changes(events: list[Event]) -> list[StateChanged]:
    return [e for e in events if isinstance(e, StateChanged)]
