"""A model of a torchrun agent around the production client session.

It joins, exchanges ranks over the keys of its generation, polls the waiting count while its workers
run, rejoins when told or when they fail, meets the others in the exit barrier, and leaves. The edge
states of TORCH.md 3.7 and 3.8 are all in here.
"""

import enum
import hashlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from rdzv_client.session import Session
from rdzv_client.session_events import Answered, State, StateChanged
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyReply,
    Error,
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
    Policy,
    View,
)
from tests.sim.meeting import Ledger, Meetings
from tests.sim.net import Clock, Link, Pipe

if TYPE_CHECKING:
    from tests.sim.server import SimServer

POLL_S = 0.1
LEASE_S = 3.0


class Stage(enum.Enum):
    """Where the agent is."""

    JOINING = "joining"
    EXCHANGE = "exchange"
    RUNNING = "running"
    STOPPING = "stopping"
    EXIT = "exit"
    GONE = "gone"


class Agent:
    """One simulated agent process."""

    def __init__(
        self,
        name: str,
        run: str,
        policy: Policy,
        clock: Clock,
        rng: random.Random,
        server: "SimServer",
        told: Callable[["Agent", Joined], None],
        ledger: Ledger,
        trace: Callable[[str], None],
        *,
        node_id: str = "",
        process: int = 0,
        restarts: int = 0,
    ) -> None:
        self.name, self.run, self.policy = name, run, policy
        self.node_id = node_id or f"{name}-{process}"
        self.restarts = restarts
        self._clock, self._rng, self._server = clock, rng, server
        self._told, self._trace = told, trace
        self._ledger = ledger
        self.meetings: list[Meetings] = []
        self.stage = Stage.JOINING
        self.outcome = ""
        self.joined: Joined | None = None
        self.link: Link | None = None
        self._conn = 0
        self.frozen = False
        self.impaired_until = 0.0
        """No fault of the node or its network reaches beyond this time."""
        self._held: list[Callable[[], None]] = []
        self._asked: dict[int, Callable[[AnyReply], None]] = {}
        self.incarnation = hashlib.sha256(f"{self.node_id}/{process}".encode()).digest()[:16]
        hello = HelloNode(
            run=run,
            node_id=self.node_id,
            name=name,
            incarnation=self.incarnation,
            lease_ms=round(LEASE_S * 1000),
        )
        self.session = Session(hello, rng, clock.now, reconnect_timeout_s=30)
        self._join()
        self._pump()
        self._poll()

    @property
    def alive(self) -> bool:
        return self.stage is not Stage.GONE

    def runs(self, mine: Joined) -> bool:
        """True while its workers run in that generation."""
        return self.stage is Stage.RUNNING and self.joined is mine

    # --- what happens to it ---------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL: the kernel closes the socket, nothing else is said."""
        self._gone("killed")
        if self.link is not None:
            self.link.up.close("connection closed")
            self.link.down.dead = True

    def freeze(self, seconds: float) -> None:
        """SIGSTOP and, later, SIGCONT."""
        self.frozen = True
        self.impaired(seconds)
        self._clock.after(seconds, self._thaw)

    def impaired(self, seconds: float) -> None:
        """A fault of the node or its network; it may be lost without the server's fault."""
        self.impaired_until = max(self.impaired_until, self._clock.now + seconds)

    def worker_fails(self) -> None:
        if self.stage is not Stage.RUNNING:
            return
        if self.restarts > 0:
            self.restarts -= 1
            self._stop_workers()
        else:
            self.ask(Leave(kind="failed", exit_code=7), lambda _: self._gone("worker failed"))

    def worker_finishes(self) -> None:
        """All its workers exit 0: finished, then the exit barrier on the generation's keys."""
        if self.stage is not Stage.RUNNING or self.joined is None:
            return
        self.stage = Stage.EXIT
        fence, world = self.joined.fence, self.joined.world_size
        self.ask(Finished(fence=fence), lambda _: None)
        self.ask(KvAdd(fence=fence, key="exit", delta=1), lambda r: self._arrived(r, world))

    def terminate(self) -> None:
        """SIGTERM while its workers run."""
        if self.stage is Stage.RUNNING:
            self.ask(Leave(kind="drained"), lambda _: self._gone("drained"))

    # --- the agent's own course -----------------------------------------------------------------

    def _join(self) -> None:
        self.stage = Stage.JOINING
        ask = Join(policy=self.policy, last=self.session.watch.view.fence)
        self.ask(ask, self._join_answered)

    def _join_answered(self, reply: AnyReply) -> None:
        if isinstance(reply, Joined):
            self._trace(f"{self.node_id} joined {reply.fence} as {reply.group_rank}")
            self._told(self, reply)
            self.joined = reply
            self.stage = Stage.EXCHANGE
            self._exchange(reply)
        else:
            assert isinstance(reply, Error), reply
            self._trace(f"{self.node_id} refused: {reply.message}")
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
            clock = self._clock
            self.meetings.append(
                Meetings(self, mine, self._ledger, self._rng, clock.after, lambda: clock.now)
            )

    def _poll(self) -> None:
        if not self.alive:
            return
        if not self.frozen and self.stage is Stage.RUNNING and self.session.watch.view.waiting:
            self._stop_workers()
        self._clock.after(POLL_S, self._poll)

    def _stop_workers(self) -> None:
        self.stage = Stage.STOPPING
        self._clock.after(self._rng.uniform(0, 0.5), self._stopped)

    def _stopped(self) -> None:
        if self.frozen:
            self._held.append(self._stopped)
        elif self.stage is Stage.STOPPING:
            self._join()
            self._pump()

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
        self.ask(Leave(kind="finished"), lambda _: self._gone("finished"))

    def _gone(self, outcome: str) -> None:
        if self.alive:
            self.stage, self.outcome = Stage.GONE, outcome
            self._trace(f"{self.node_id} gone: {outcome}")
            self.session.close()
            if self.link is not None and outcome != "killed":
                self.link.up.close("connection closed")

    # --- the shell ------------------------------------------------------------------------------

    def ask(self, message: object, done: Callable[[AnyReply], None]) -> None:
        self._asked[self.session.request(message)] = done  # type: ignore[arg-type]
        self._clock.after(0, self._pump)

    def _thaw(self) -> None:
        self.frozen = False
        held, self._held = self._held, []
        for action in held:
            action()
        self._pump()

    def _run(self, action: Callable[[], None]) -> None:
        if self.frozen:
            self._held.append(action)
        elif self.alive:
            action()
            self._pump()

    def _pump(self) -> None:
        """Send, act, reconnect, and come back at the next deadline."""
        session = self.session
        if not self.alive or self.frozen:
            return
        now = self._clock.now
        session.tick(now)
        if session.wants_disconnect and self.link is not None:
            link, self.link = self.link, None
            link.up.close("closed by the client")
            link.down.dead = True
            session.disconnected(now, session.last_error)
        attempt_at = session.reconnect.attempt_at
        if self.link is None and attempt_at is not None and now >= attempt_at:
            self._connect()
        data = session.data_to_send()
        if data and self.link is not None:
            self.link.up.send(data)
        for event in session.events():
            match event:
                case Answered(request_id, reply):
                    self._asked.pop(request_id)(reply)
                case StateChanged(State.OVER, reason):
                    self._gone(f"over: {reason}")
                case View() if event.ended is not None:
                    self._trace(f"{self.node_id} told {event.fence} ended: {event.ended.kind}")
        due = session.next_deadline()
        if due is not None and self.alive:
            self._clock.at(max(due, now + 0.001), self._pump_if_due)

    def _pump_if_due(self) -> None:
        due = self.session.next_deadline()
        if due is not None and due <= self._clock.now:
            self._pump()

    def _connect(self) -> None:
        self.session.connecting()
        if not self._server.up:
            self.session.disconnected(self._clock.now, "connection refused")
            return
        link = Link()
        link.down = Pipe(
            self._clock, self._rng,
            lambda data: self._run(lambda: self.session.received(self._clock.now, data)),
            lambda reason: self._run(lambda: self._dropped(link, reason)),
        )  # fmt: skip
        self.link = link
        link.up = Pipe(
            self._clock, self._rng,
            lambda data: self._server.received(conn, data),
            lambda reason: self._server.lost(conn, reason),
        )  # fmt: skip
        conn = self._server.accept(link)
        self.session.connected(self._clock.now)

    def _dropped(self, link: Link, reason: str) -> None:
        if self.link is link:
            self.link = None
            self.session.disconnected(self._clock.now, reason)
