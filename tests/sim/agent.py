"""A model of a torchrun agent around the production client session.

It joins, exchanges ranks over the keys of its generation, polls the waiting count while its workers
run, rejoins when told or when they fail, meets the others in the exit barrier, and leaves. The edge
states of TORCH.md 3.7 and 3.8 are all in here.
"""

import enum
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from rdzv_client.session_events import Event, State, StateChanged
from rdzv_proto.agreement import Spoken
from rdzv_proto.auth import Token
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyReply,
    AnyRequest,
    Error,
    Fence,
    Finished,
    HelloNode,
    Join,
    Joined,
    KvAdd,
    KvGet,
    KvMultiGet,
    KvMultiSet,
    KvNumber,
    KvSet,
    KvWait,
    Leave,
    NcclRevoked,
    Policy,
    View,
)
from tests.sim.client import Client
from tests.sim.communicators import Communicators
from tests.sim.meeting import Meetings
from tests.sim.worker import Worker

if TYPE_CHECKING:
    from tests.sim.world import World

POLL_S = 0.1
LEASE_S = 3.0
JOIN_S = 10.0
STOP_S = 0.5
"""Workers stop within this time."""


class Stage(enum.Enum):
    """Where the agent is."""

    JOINING = "joining"
    EXCHANGE = "exchange"
    RUNNING = "running"
    STOPPING = "stopping"
    EXIT = "exit"
    GONE = "gone"


class Agent:
    """One simulated agent process.

    Args:
        world: whose clock, network, server and rules it has.
        node_id: of an earlier process whose place it takes; empty: one of its own.
        token: proves who this is, where the server asks for it.
        late_s: of its first connection, see `Client`.
        spoken: versions of the protocol; None: the present one.
    """

    def __init__(
        self,
        world: "World",
        name: str,
        run: str,
        policy: Policy,
        *,
        node_id: str = "",
        process: int = 0,
        restarts: int = 0,
        token: Token | None = None,
        late_s: tuple[float, float] | None = None,
        spoken: Spoken | None = None,
    ) -> None:
        self.world, self.name, self.run, self.policy = world, name, run, policy
        self.node_id = node_id or f"{name}-{process}"
        self.process, self.restarts = process, restarts
        self._clock, self.rng, self._trace = world.clock, world.rng, world.trace
        self._token, self.lease_ms = token, round(LEASE_S * 1000)
        self.meetings: list[Meetings] = []
        self.communicators: list[Communicators] = []
        self.worker: Worker | None = None
        """Its training process, in the runs that have some with a session of their own."""
        self.stage = Stage.JOINING
        self.outcome = ""
        self.refusal: int | None = None
        """Code of the refusal of its join."""
        self.leaving = False
        """It has said so; a join that crosses that is refused."""
        self.joined: Joined | None = None
        self.asked_at = 0.0
        """When it joined last."""
        self.met: dict[Fence, float] = {}
        """When it first passed a barrier of all, by generation."""
        self.incarnation = hashlib.sha256(f"{self.node_id}/{process}".encode()).digest()[:16]
        hello = HelloNode(
            run=run,
            node_id=self.node_id,
            name=name,
            incarnation=self.incarnation,
            lease_ms=self.lease_ms,
        )
        self.client = Client(
            hello, world.clock, world.rng, world.server, self._event, token=token, spoken=spoken
        )
        self.client.late_s = late_s
        self._join()
        self.client.start()
        self._poll()

    @property
    def alive(self) -> bool:
        return self.stage is not Stage.GONE

    @property
    def label(self) -> str:
        """Unlike any other process of the history."""
        return f"{self.node_id}/{self.process}"

    def runs(self, mine: Joined) -> bool:
        """True while its workers run in that generation."""
        return self.stage is Stage.RUNNING and self.joined is mine

    # --- what happens to it ---------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing slows or holds its traffic any more, nor its worker's."""
        self.client.heal()
        if self.worker is not None:
            self.worker.client.heal()

    def kill(self) -> None:
        """SIGKILL: the kernel closes the socket, nothing else is said."""
        self._gone("killed")

    def vanish(self) -> None:
        """Its host loses power: not even the kernel says anything."""
        self.client.cut_for_ever("both ways")
        self._gone("killed")

    def worker_fails(self) -> None:
        if self.stage is not Stage.RUNNING:
            return
        if self.restarts > 0:
            self.restarts -= 1
            self._stop_workers()
        else:
            self._leave(Leave(kind="failed", exit_code=7), "worker failed")

    def worker_finishes(self) -> None:
        """All its workers exit 0: finished, then the exit barrier on the generation's keys."""
        if self.stage is not Stage.RUNNING or self.joined is None:
            return
        self.stage = Stage.EXIT
        self._end_worker()
        fence, world = self.joined.fence, self.joined.world_size
        self.ask(Finished(fence=fence), lambda _: None)
        self.ask(KvAdd(fence=fence, key="exit", delta=1), lambda r: self._arrived(r, world))

    def terminate(self) -> None:
        """SIGTERM while its workers run."""
        if self.stage is Stage.RUNNING:
            self._leave(Leave(kind="drained"), "drained")

    # --- the agent's own course -----------------------------------------------------------------

    def ask(self, message: AnyRequest, done: Callable[[AnyReply], None]) -> None:
        """Make a request; no answer may be one that is never told."""
        told = self.world.watched(
            self.label, self.run, message, self.joined,
            lambda refusal: self.world.rules.refused(self, message, refusal), done,
        )  # fmt: skip
        self.client.ask(message, told)

    def _join(self) -> None:
        self.stage, self.asked_at = Stage.JOINING, self._clock.now
        ask = Join(policy=self.policy, last=self.client.session.watch.view.fence)
        self.ask(ask, self._join_answered)

    def _join_answered(self, reply: AnyReply) -> None:
        if isinstance(reply, Joined):
            self._trace(f"{self.node_id} joined {reply.fence} as {reply.group_rank}")
            self.world.rules.told(self, reply)
            self.joined = reply
            self.stage = Stage.EXCHANGE
            self._exchange(reply)
        else:
            assert isinstance(reply, Error), reply
            self._trace(f"{self.node_id} refused: {reply.message}")
            self.refusal = reply.code
            self._gone(ErrorCode(reply.code).name)

    def _exchange(self, mine: Joined) -> None:
        fence, rank = mine.fence, mine.group_rank
        self.ask(KvSet(fence=fence, key=f"role/{rank}", value=b"r"), lambda _: None)
        if rank == 0:
            keys = [f"role/{i}" for i in range(mine.world_size)]
            self.ask(
                KvMultiGet(fence=fence, keys=keys, timeout_ms=60_000),
                lambda _: self._assign(mine),
            )
        self.ask(
            KvGet(fence=fence, key=f"rank/{rank}", timeout_ms=60_000),
            lambda reply: self._start_workers(mine, reply),
        )

    def _assign(self, mine: Joined) -> None:
        keys = [f"rank/{i}" for i in range(mine.world_size)]
        values = [b"%d" % i for i in range(mine.world_size)]
        self.ask(KvMultiSet(fence=mine.fence, keys=keys, values=values), lambda _: None)

    def _start_workers(self, mine: Joined, reply: AnyReply) -> None:
        # A stale generation gives placeholders: the workers start and are stopped by the next poll.
        if self.joined is mine and self.stage is Stage.EXCHANGE:
            self.stage = Stage.RUNNING
            self.meetings.append(Meetings(self, mine))
            if not self.world.has_workers(self.run):
                self.communicators.append(Communicators(self, mine))
            else:
                self.worker = Worker(
                    self, mine, self._token, self.world.spoken_by_worker(self.process, mine)
                )

    def _poll(self) -> None:
        if not self.alive:
            return
        waiting = self.client.session.watch.view.waiting
        if waiting and not self.client.frozen and self.stage is Stage.RUNNING:
            self._stop_workers()
        self._clock.after(POLL_S, self._poll)

    def _stop_workers(self) -> None:
        self.stage = Stage.STOPPING
        self._clock.after(
            self.rng.uniform(0, STOP_S), lambda: self.client.when_running(self._stopped)
        )

    def _stopped(self) -> None:
        if self.stage is Stage.STOPPING:
            self._end_worker()
            self._join()

    def _arrived(self, reply: AnyReply, world: int) -> None:
        if not isinstance(reply, KvNumber) or self.joined is None:
            self._exit_over()
            return
        fence = self.joined.fence
        if reply.value == world:
            self.ask(KvSet(fence=fence, key="last", value=b"1"), lambda _: None)
        ask = KvWait(fence=fence, keys=["last"], timeout_ms=300_000)
        self.ask(ask, lambda _: self._exit_over())

    def _exit_over(self) -> None:
        self._leave(Leave(kind="finished"), "finished")

    def _leave(self, ask: Leave, outcome: str) -> None:
        self.leaving = True
        self._end_worker()
        self.ask(ask, lambda _: self._gone(outcome))

    def _end_worker(self) -> None:
        if self.worker is not None:
            self.worker.end()

    def _gone(self, outcome: str) -> None:
        if self.alive:
            self.stage, self.outcome = Stage.GONE, outcome
            self._trace(f"{self.node_id} gone: {outcome}")
            self.client.end(killed=outcome == "killed")
            if self.worker is not None:
                self.worker.orphaned()

    def _event(self, event: Event) -> None:
        match event:
            case StateChanged(State.OVER, reason):
                if self.alive:
                    self.world.rules.over(self, self.client.session.failure)
                self._gone(f"over: {reason}")
            case View():
                self.world.rules.viewed(self, event)
                if event.ended is not None:
                    self._trace(f"{self.node_id} told {event.fence} ended: {event.ended.kind}")
            case NcclRevoked():
                for one in self.communicators:
                    one.revoked(event)
            case _:
                pass
