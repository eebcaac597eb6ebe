"""One simulated history: a server, some runs, faults drawn from a seed, and what must hold.

The same seed gives the same history. Safety is checked after every step of the server
(`core/invariants.py`) and with all that nodes are told (`rules`, `meeting`, `communicators`); at the end the
world is healed and must come to rest within bounded virtual time. In liveness mode only a part of it is
healed (`liveness`). Last, what all processes asked and were told goes to the checkers (`check`), which know
nothing of the server.
"""

import enum
import hashlib
import math
import random
from collections.abc import Callable

from rdzv_proto.agreement import Spoken
from rdzv_proto.auth import EVERYTHING, SECRET_BYTES, Grant, Scope, Token
from rdzv_proto.messages import AnyReply, AnyRequest, Error, Joined, Policy
from rdzv_server.core import due
from rdzv_server.core.settings import Settings
from tests import nextversion
from tests.sim import faults
from tests.sim.agent import JOIN_S, LEASE_S, Agent
from tests.sim.check.judge import judge
from tests.sim.check.verdict import Verdict
from tests.sim.communicators import IdLedger
from tests.sim.disk import Disk
from tests.sim.history import Recorder
from tests.sim.liveness import Core
from tests.sim.meeting import Ledger
from tests.sim.net import Clock
from tests.sim.rules import Rules
from tests.sim.server import SimServer

CHAOS_S = 40.0
CALM_S = LEASE_S + 12.0
"""Lease, last call, scale-up announcement and the slowest worker stop, with room."""

AFTERMATH_S = 5.0
"""Within this time the last faults have had all their new processes and restarts."""

LAST_CALLS_S = (0, 1, 2)
"""A run's last call is one of these."""

FAULTS_PER_S = 0.7

DUE_PER_STEP = (1, 3, due.PER_STEP)
"""Deadlines that a step sees to are one of these: as many as in the product are never due at once here."""

WORKERS = 0.2
"""Part of the runs whose training processes have sessions of their own."""

TRIED_MAX = 200_000
"""Configurations of one key, after which the checkers leave it undecided: about ten seconds. Time would not do, for a
seed must have one outcome on all machines."""

MIXED = 0.3
"""Part of the histories in which two versions of the protocol meet."""


class Mode(enum.Enum):
    """What may happen to the server, and how the history ends."""

    STEADY = "steady"
    """It stalls, and no more."""
    CRASHES = "crashes"
    """It crashes and forgets everything."""
    DURABLE = "durable"
    """It crashes, and resumes from what it stored."""
    LIVENESS = "liveness"
    """It crashes or resumes; in the end only a part of each run is healed."""


class World:
    """A seed's history."""

    def __init__(self, seed: int, mode: Mode = Mode.STEADY) -> None:
        self.seed, self.mode = seed, mode
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.lines: list[str] = []
        """All that happened, in its order."""
        self.faults = 0
        self.processes = 0
        self.cores: list[Core] = []
        """Of liveness mode."""
        durable = mode is Mode.DURABLE or (mode is Mode.LIVENESS and seed % 2 == 1)
        self._kinds = list(faults.ALWAYS)
        if mode is not Mode.STEADY:
            self._kinds += [faults.crash, faults.wall_jump]
        if durable:
            self._kinds.append(faults.disk_full)
        guarded = self.rng.random() < 0.25
        self.master = Token(EVERYTHING, self.rng.randbytes(SECRET_BYTES)) if guarded else None
        """Of a server that asks for proof."""
        self._with_workers: set[str] = set()
        self._mixed = random.Random(f"versions {seed}").random() < MIXED
        self.agents: list[Agent] = []
        self.verdict: Verdict | None = None
        """Of the checkers, once all is over."""
        self.rules = Rules(self)
        self.server = SimServer(
            self.clock, self.trace, self.rules.lost, self.rng,
            disk=Disk(random.Random(f"disk {seed}")) if durable else None,
            tokens=() if self.master is None else (self.master,),
            settings=Settings(run_keep_s=self.rng.choice((1.0, 5.0, 600.0))),
            spoken=lambda start: self._spoken(f"start {start}"),
            due_per_step=random.Random(f"due {seed}").choice(DUE_PER_STEP),
        )  # fmt: skip
        self.recorder = Recorder(self.server.epochs, self.server.lives)
        self.ledger = Ledger(self.server.lives.of)
        self.id_ledger = IdLedger()
        self._faults_left = True
        self.calm = False
        """What can be healed was healed."""
        self.policies: dict[str, Policy] = {}
        for run in range(self.rng.choice((1, 1, 2, 3))):
            self._open_run(f"run{run}")

    # --- the course -----------------------------------------------------------------------------

    def play(self) -> None:
        """Chaos, then calm.

        Raises:
            AssertionError: a rule was broken, by the name of the rule.
        """
        self._plan_fault()
        if self.mode is Mode.LIVENESS:
            self.clock.run_until(CHAOS_S - AFTERMATH_S)
            self._faults_left = False
            self.clock.run_until(CHAOS_S)
            self.calm = True
            self.server.heal()
            for run in self.policies:
                self.cores.append(Core(self, run))
            self.clock.run_until(CHAOS_S + max(core.bound_s for core in self.cores))
            for core in self.cores:
                core.check()
        else:
            self.clock.run_until(CHAOS_S)
            self._faults_left, self.calm = False, True
            self._heal()
            self.clock.run_until(CHAOS_S + CALM_S)
            self.rules.at_rest()
        self.verdict = judge(self.recorder.history(), math.inf, TRIED_MAX)
        assert not self.verdict.violations, self.verdict.violations[0]

    def trace(self, line: str) -> None:
        self.lines.append(f"{self.clock.now:.6f} {line}")

    @property
    def hash(self) -> str:
        """Of the whole trace: the same history has the same."""
        return hashlib.sha256("".join(self.lines).encode()).hexdigest()

    def watched(
        self,
        label: str,
        run: str,
        message: AnyRequest,
        mine: Joined | None,
        refused: Callable[[Error], None],
        done: Callable[[AnyReply], None],
    ) -> Callable[[AnyReply], None]:
        """What an answer is given to: the rules, if it is a refusal; the record; and whoever asked.

        Args:
            label: of the process that asks.
            mine: its place, if it has one.
        """
        begun = self.recorder.asked(label, run, message, self.clock.now, mine)

        def answered(reply: AnyReply) -> None:
            if isinstance(reply, Error):
                refused(reply)
            self.recorder.answered(begun, reply, self.clock.now)
            done(reply)

        return answered

    def of_run(self, run: str) -> list[Agent]:
        """Its living agents."""
        return [agent for agent in self.agents if agent.run == run and agent.alive]

    def token_of(self, run: str) -> Token:
        """A token for one run only."""
        assert self.master is not None, "this server asks for no token"
        return self.master.derive(Grant(Scope.JOIN, run))

    def start(self, run: str, name: str, policy: Policy, node_id: str = "") -> Agent:
        """A new process of a node."""
        self.processes += 1
        token = None
        if self.master is not None:
            token = self.master if self.rng.random() < 0.2 else self.token_of(run)
        rng = self.rng
        late_s = faults.late_times(rng) if rng.random() < faults.LATE else None
        agent = Agent(
            self, name, run, policy, node_id=node_id, process=self.processes, restarts=self.rng.randint(0, 2),
            token=token, late_s=late_s, spoken=self._spoken(f"process {self.processes}"),
        )  # fmt: skip
        self.agents.append(agent)
        return agent

    def has_workers(self, run: str) -> bool:
        """Its training processes attach to the server."""
        return run in self._with_workers

    def spoken_by_worker(self, process: int, mine: Joined) -> Spoken:
        """A training image may have another release than its agent."""
        return self._spoken(f"worker of {process} in {mine.fence}")

    def _open_run(self, run: str) -> None:
        rng = self.rng
        if random.Random(f"workers of {run} {self.seed}").random() < WORKERS:
            self._with_workers.add(run)
            self._kinds += faults.OF_WORKERS
        low = rng.randint(1, 4)
        high = low + rng.randint(0, 3)
        policy = self.policies[run] = Policy(
            min_nodes=low,
            max_nodes=high,
            join_timeout_ms=round(JOIN_S * 1000),
            last_call_timeout_ms=1000 * rng.choice(LAST_CALLS_S),
            below_min=rng.choice(("stop", "wait")),
            worker_store=rng.choice(("rank0", "server")),
        )
        for i in range(high + rng.randint(-1, 1)):
            self.clock.after(rng.uniform(0, 3), self.starter(run, f"{run}-node{i}", policy))

    def _spoken(self, whose: str) -> Spoken:
        """Versions of the protocol that a start of the server, or a process, speaks: in some histories half of them
        are of the next release, so that there are upgrades, and ways back."""
        later = self._mixed and random.Random(f"{whose} of {self.seed}").random() < 0.5
        return nextversion.BOTH if later else nextversion.ONLY_1

    def starter(self, run: str, name: str, policy: Policy, node_id: str = "") -> Callable[[], None]:
        """Starts it, when it is called."""

        def begin() -> None:
            self.start(run, name, policy, node_id)

        return begin

    # --- faults ---------------------------------------------------------------------------------

    def _plan_fault(self) -> None:
        if self._faults_left:
            self.clock.after(self.rng.expovariate(FAULTS_PER_S), self._fault)

    def _fault(self) -> None:
        if not self._faults_left:
            return
        alive = [agent for agent in self.agents if agent.alive]
        if alive:
            victim = self.rng.choice(alive)
            kind = self.rng.choice(self._kinds)
            self.trace(f"fault {kind.__name__} {victim.node_id}")
            self.faults += 1
            kind(self, victim)
        self._plan_fault()

    def _heal(self) -> None:
        for agent in self.agents:
            agent.heal()
        self.trace("healed")
