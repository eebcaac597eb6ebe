"""A training process that an agent started: `Client.from_env()` on the virtual clock.

It attaches to its agent's node and generation, meets the other workers at barriers, makes communicators with them and
uses keys until it is stopped, fails, or learns that the generation is over. It outlives an agent that is killed, for a while.
"""

import hashlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from rdzv_client.session_events import Event, State, StateChanged
from rdzv_proto.agreement import Spoken
from rdzv_proto.auth import Token
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyReply,
    AnyRequest,
    Fence,
    HelloWorker,
    Joined,
    NcclRevoked,
    View,
)
from tests.sim.client import Client
from tests.sim.communicators import Communicators
from tests.sim.meeting import Meetings

if TYPE_CHECKING:
    from tests.sim.agent import Agent

ORPHAN_S = 8.0
"""After its agent was killed a worker lives on for up to this time."""

CRASH = 0.2
"""Part of the workers that fail of themselves when their generation ends: a broken collective is often seen
before the agent has stopped them."""

FINAL = frozenset((
    ErrorCode.STALE_GENERATION, ErrorCode.UNKNOWN_EPOCH, ErrorCode.UNKNOWN_RUN, ErrorCode.CONNECTION_LOST,
))  # fmt: skip
"""What may end a worker's session for good: its generation, the server's memory, or patience."""


class Worker:
    """One process, with the global rank that is its node's group rank.

    Args:
        agent: that started it.
        mine: the generation it works in.
        token: proves who this is, where the server asks for it.
        spoken: versions of the protocol.
    """

    def __init__(self, agent: "Agent", mine: Joined, token: Token | None, spoken: Spoken) -> None:
        self.agent, self.mine = agent, mine
        self.world, self.run, self.met = agent.world, agent.run, dict[Fence, float]()
        self.label = f"{agent.label}/worker of {mine.fence}"
        self._clock = agent.world.clock
        rng = self.rng = random.Random(f"{self.label} {agent.world.seed}")
        self.alive = True
        hello = HelloWorker(
            run=agent.run, node_id=agent.node_id, fence=mine.fence, rank=mine.group_rank,
            worker_token=mine.worker_token, incarnation=hashlib.sha256(self.label.encode()).digest()[:16],
            lease_ms=agent.lease_ms,
        )  # fmt: skip
        self.client = Client(
            hello, self._clock, rng, agent.world.server, self._event, token=token, spoken=spoken
        )
        self._attaches = agent.world.recorder.attaches(
            self.label, self.run, agent.label, mine, self._clock.now
        )
        self.meetings = Meetings(self, mine, of="workers")
        self.communicators = Communicators(self, mine)
        self.client.start()

    def runs(self, mine: Joined) -> bool:
        """True while it does what the agent started it for."""
        return self.alive and self.mine is mine

    def ask(self, message: AnyRequest, done: Callable[[AnyReply], None]) -> None:
        """Make a request; no answer may be one that is never told."""
        told = self.world.watched(
            self.label, self.run, message, self.mine,
            lambda refusal: self.world.rules.refused_worker(self, message, refusal), done,
        )  # fmt: skip
        self.client.ask(message, told)

    # --- how it ends ----------------------------------------------------------------------------

    def end(self, *, killed: bool = False) -> None:
        """Exit, or SIGKILL."""
        if self.alive:
            self.alive = False
            self.client.end(killed=killed)

    def orphaned(self) -> None:
        """Its agent was killed."""
        self._clock.after(self.rng.uniform(0, ORPHAN_S), self.end)

    def fails(self) -> None:
        """It crashes, and its agent sees that."""
        if self.alive:
            self.end(killed=True)
            agent = self.agent
            if agent.runs(self.mine):
                agent.client.when_running(agent.worker_fails)

    def _event(self, event: Event) -> None:
        match event:
            case StateChanged(State.CONNECTED) if not self._attaches.known:
                self.world.recorder.attached(self._attaches, self._clock.now)
            case StateChanged(State.OVER, _):
                if self.alive:
                    self.world.rules.worker_over(self, self.client.session.failure)
                self._clock.after(0, self.fails)
            case View(ended=ended) if ended is not None:
                self.world.rules.worker_told(self, event)
                if self.rng.random() < CRASH:
                    self._clock.after(self.rng.uniform(0, 1), self.fails)
            case NcclRevoked():
                self.communicators.revoked(event)
            case _:
                pass
