"""Clients that are no agents: tools of an operator, thieves of sessions, holders of another run's token."""

import random
from typing import TYPE_CHECKING

from rdzv_client.session_events import Event, State, StateChanged
from rdzv_proto import codec, limits
from rdzv_proto.auth import Token
from rdzv_proto.errors import ErrorCode
from rdzv_proto.framing import PREAMBLE, FrameBuffer
from rdzv_proto.messages import (
    AnyReply,
    CloseRun,
    Error,
    HelloAdmin,
    HelloNode,
    ListRuns,
    Members,
    Resume,
    ShowGeneration,
    Status,
)
from tests.sim.agent import Agent
from tests.sim.client import Client
from tests.sim.net import Link, Pipe
from tests.sim.rules import ViolationError

if TYPE_CHECKING:
    from tests.sim.world import World

TURNED_AWAY = frozenset((
    ErrorCode.UNAUTHENTICATED, ErrorCode.SESSION_LOST, ErrorCode.UNKNOWN_EPOCH, ErrorCode.FENCED,
))  # fmt: skip
"""What a resume with a wrong secret may be answered with: it tells nothing about the right one."""


class Tool:
    """`rdzv`: one look at everything, or the end of a run."""

    def __init__(self, world: "World", run: str, token: Token | None, *, close: bool) -> None:
        self._client = Client(
            HelloAdmin(client="sim"), world.clock, world.rng, world.server, self._event, token=token,
            reconnect_timeout_s=10.0,
        )  # fmt: skip
        self._left = 0
        asks = (
            [CloseRun(run=run)]
            if close
            else [Status(), ListRuns(), Members(run=run), ShowGeneration(run=run)]
        )
        for ask in asks:
            self._left += 1
            self._client.ask(ask, self._told)  # type: ignore[arg-type]
        self._client.start()

    def _told(self, reply: AnyReply) -> None:
        self._left -= 1
        if not self._left:
            self._client.end()

    def _event(self, event: Event) -> None:
        pass


class Foreigner:
    """A node with a good token of another run (T3)."""

    def __init__(self, world: "World", run: str, token: Token) -> None:
        self._run = run
        hello = HelloNode(
            run=run, node_id="foreigner", name="foreigner", incarnation=world.rng.randbytes(16)
        )
        self._client = Client(hello, world.clock, world.rng, world.server, self._event, token=token)
        self._client.start()

    def _event(self, event: Event) -> None:
        if isinstance(event, StateChanged) and event.state is State.CONNECTED:
            raise ViolationError(f"T3: a token of another run lets a node into {self._run}")


class Thief:
    """Knows everything about a node's session but its secret (T5)."""

    def __init__(self, world: "World", victim: Agent, rng: random.Random) -> None:
        welcome = victim.client.session.welcome
        if welcome is None or not world.server.up:
            return
        resume = Resume(welcome.epoch, welcome.session, rng.randbytes(16))
        hello = HelloNode(
            run=victim.run, node_id=victim.node_id, name=victim.name, incarnation=victim.incarnation,
            attempt=1_000_000, resume=resume,
        )  # fmt: skip
        self._victim = victim.label
        self._frames = FrameBuffer(limits.FRAME_BYTES_MAX_CLIENT)
        link = Link()
        link.down = Pipe(world.clock, rng, self._received, lambda reason: None)
        link.up = Pipe(
            world.clock, rng,
            lambda data: world.server.received(conn, data), lambda reason: world.server.lost(conn, reason),
        )  # fmt: skip
        self._link = link
        conn = world.server.accept(link, b"")
        link.up.send(PREAMBLE + codec.encode(1, hello))

    def _received(self, data: bytes) -> None:
        self._frames.feed(data)
        body = self._frames.pop()
        if body is not None:
            _, answer = codec.decode_answer(body)
            if not isinstance(answer, Error) or answer.code not in TURNED_AWAY:
                raise ViolationError(
                    f"T5: a thief of {self._victim}'s session was told {answer.op}"
                )
            self._link.down.dead = True
            self._link.up.close("connection closed")
