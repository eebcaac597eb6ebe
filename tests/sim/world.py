"""One simulated history: a server, some runs, faults drawn from a seed, and what must hold.

The same seed gives the same history. Safety is checked after every step of the server
(`core/invariants.py`) and with every assignment a node is told; at the end the world is healed and
must come to rest within bounded virtual time.
"""

import hashlib
import random
from collections.abc import Callable

from rdzv_proto.messages import Fence, Joined, Policy
from tests.sim.agent import LEASE_S, Agent, Stage
from tests.sim.meeting import BARRIER_S, Ledger
from tests.sim.net import Clock
from tests.sim.server import SimServer

CHAOS_S = 40.0
CALM_S = LEASE_S + 12.0
"""Lease, last call, scale-up announcement and the slowest worker stop, with room."""


class ViolationError(AssertionError):
    """A rule was broken; the seed reproduces it."""


class World:
    """A seed's history."""

    def __init__(
        self,
        seed: int,
        *,
        keep_trace: bool = False,
        server_crashes: bool = False,
        durable: bool = False,
    ) -> None:
        self.seed = seed
        self._rng = random.Random(seed)
        self.clock = Clock()
        self.hash = hashlib.sha256()
        self.lines: list[str] = []
        self._keep = keep_trace
        self.faults = 0
        self.generations = 0
        self._crashes = server_crashes or durable
        self._told: dict[tuple[str, Fence], dict[int, str]] = {}
        self._digests: dict[tuple[str, Fence], bytes] = {}
        self._last: dict[str, Fence] = {}
        self._processes = 0
        disk = random.Random(f"disk {seed}") if durable else None
        self.server = SimServer(self.clock, self.trace, self._check_lost, disk)
        self.ledger = Ledger(self.server.life)
        self.agents: list[Agent] = []
        self._faults_left = True
        for run in range(self._rng.randint(1, 2)):
            self._open_run(f"run{run}")

    # --- the course -----------------------------------------------------------------------------

    def play(self) -> None:
        """Chaos, then calm; raises ViolationError (or AssertionError from the invariants)."""
        self._plan_fault()
        self.clock.run_until(CHAOS_S)
        self._heal()
        self.clock.run_until(CHAOS_S + CALM_S)
        self._check_rest()

    def trace(self, line: str) -> None:
        text = f"{self.clock.now:.6f} {line}"
        self.hash.update(text.encode())
        if self._keep:
            self.lines.append(text)

    def _open_run(self, run: str) -> None:
        low = self._rng.randint(1, 4)
        high = low + self._rng.randint(0, 3)
        policy = Policy(
            min_nodes=low,
            max_nodes=high,
            join_timeout_ms=10_000,
            last_call_timeout_ms=self._rng.choice((0, 1000, 2000)),
            below_min=self._rng.choice(("stop", "wait")),
            worker_store=self._rng.choice(("rank0", "server")),
        )
        for i in range(high + self._rng.randint(-1, 1)):
            self.clock.after(self._rng.uniform(0, 3), self._starter(run, f"{run}-node{i}", policy))

    def _starter(self, run: str, name: str, policy: Policy) -> Callable[[], None]:
        return lambda: self._start(run, name, policy)

    def _start(self, run: str, name: str, policy: Policy, node_id: str = "") -> None:
        self._processes += 1
        self.agents.append(
            Agent(
                name, run, policy, self.clock, self._rng, self.server, self._check_told,
                self.ledger, self.trace, node_id=node_id, process=self._processes,
                restarts=self._rng.randint(0, 2),
            )
        )  # fmt: skip

    # --- faults ---------------------------------------------------------------------------------

    def _plan_fault(self) -> None:
        if self._faults_left:
            self.clock.after(self._rng.expovariate(0.7), self._fault)

    def _fault(self) -> None:
        if not self._faults_left:
            return
        alive = [a for a in self.agents if a.alive]
        if alive:
            victim = self._rng.choice(alive)
            kinds = [
                self._kill, self._replace, self._freeze, self._reset, self._hole, self._half_hole,
                self._stall, self._fail, self._finish, self._drain, self._newcomer, self._all_reset,
            ]  # fmt: skip
            if self._crashes:
                kinds.append(self._crash)
            kind = self._rng.choice(kinds)
            self.trace(f"fault {kind.__name__} {victim.node_id}")
            self.faults += 1
            kind(victim)
        self._plan_fault()

    def _kill(self, agent: Agent) -> None:
        agent.kill()
        if self._rng.random() < 0.7:
            self.clock.after(
                self._rng.uniform(0, 4), self._starter(agent.run, agent.name, agent.policy)
            )

    def _replace(self, agent: Agent) -> None:
        """A new process with the same node id, while the old one lives or after it died."""
        if self._rng.random() < 0.5:
            agent.kill()
        self._start(agent.run, agent.name, agent.policy, node_id=agent.node_id)

    def _freeze(self, agent: Agent) -> None:
        agent.freeze(self._rng.uniform(0.2, 3 * LEASE_S))

    def _reset(self, agent: Agent) -> None:
        if agent.link is not None:
            agent.link.reset()

    def _all_reset(self, agent: Agent) -> None:
        for other in self.agents:
            if other.alive and other.run == agent.run and other.link is not None:
                other.link.reset()

    def _hole(self, agent: Agent) -> None:
        if agent.link is not None:
            after = self._rng.uniform(0.1, 2 * LEASE_S)
            agent.impaired(after)
            for pipe in agent.link.pipes:
                pipe.hole = True
                self.clock.after(after, pipe.heal)

    def _half_hole(self, agent: Agent) -> None:
        if agent.link is not None:
            pipe = self._rng.choice(agent.link.pipes)
            pipe.hole = True
            after = self._rng.uniform(0.1, 2 * LEASE_S)
            agent.impaired(after)
            self.clock.after(after, pipe.heal)

    def _stall(self, agent: Agent) -> None:
        self.server.stall(self._rng.uniform(0.3, 2 * LEASE_S))

    def _fail(self, agent: Agent) -> None:
        agent.worker_fails()

    def _finish(self, agent: Agent) -> None:
        """One node's work is done; mostly the others' soon after."""
        agent.worker_finishes()
        if self._rng.random() < 0.8:
            for other in self.agents:
                if other.run == agent.run and other is not agent:
                    self.clock.after(self._rng.uniform(0, 2), other.worker_finishes)

    def _drain(self, agent: Agent) -> None:
        agent.terminate()

    def _newcomer(self, agent: Agent) -> None:
        self._start(agent.run, f"{agent.run}-new{self._processes}", agent.policy)

    def _crash(self, agent: Agent) -> None:
        if self.server.up:
            self.server.crash()
            self.clock.after(self._rng.uniform(0.1, 5), self.server.start)

    def _heal(self) -> None:
        self._faults_left = False
        for agent in self.agents:
            if agent.link is not None:
                for pipe in agent.link.pipes:
                    pipe.heal()
            if agent.frozen:
                agent.freeze(0)
        self.trace("healed")

    # --- what must hold -------------------------------------------------------------------------

    def _check_told(self, agent: Agent, told: Joined) -> None:
        key = (agent.run, told.fence)
        digest = self._digests.setdefault(key, told.digest)
        if digest != told.digest:
            raise ViolationError(f"S3: {key} has two member tables")
        ranks = self._told.setdefault(key, {})
        if not ranks:
            self.generations += 1
        holder = ranks.setdefault(told.group_rank, agent.node_id)
        if holder != agent.node_id:
            raise ViolationError(
                f"S1: rank {told.group_rank} of {key}: {holder} and {agent.node_id}"
            )
        if not 0 <= told.group_rank < told.world_size:
            raise ViolationError(f"S1: rank {told.group_rank} of {told.world_size}")
        process = f"{agent.node_id}/{id(agent)}"
        last = self._last.get(process)
        if last is not None and told.fence <= last:
            raise ViolationError(f"S3: {agent.node_id} was told {told.fence} after {last}")
        self._last[process] = told.fence

    def _check_lost(self, incarnation: bytes) -> None:
        """Only the dead, the frozen and the cut off are ever declared lost (S32, S33). Asked of the
        process: another one with the same node id may live, and not have reached the server yet."""
        for agent in self.agents:
            if agent.incarnation == incarnation and agent.alive:
                quiet = self.clock.now - agent.impaired_until
                if quiet > LEASE_S + 1.0:
                    raise ViolationError(f"S33: {agent.node_id} is well and was declared lost")

    def _check_rest(self) -> None:
        """Healed, every living agent is in its run's live generation, finished, waits below the
        minimum, or stands by above the maximum (L3, L4)."""
        for agent in self.agents:
            if not agent.alive:
                continue
            self._check_waits(agent)
            run = self.server.core.tables.runs.get(agent.run)
            if run is None:
                raise ViolationError(f"L4: {agent.node_id} lives and its run does not")
            live = run.live
            if agent.stage is Stage.RUNNING:
                view = agent.session.watch.view
                if live is None or agent.joined is None or agent.joined.fence != live.fence:
                    raise ViolationError(f"L4: {agent.node_id} runs in a dead generation ({view})")
            elif agent.stage is Stage.JOINING:
                few = run.policy is not None and run.counts.ready < run.policy.min_nodes
                if live is None and not few:
                    raise ViolationError(f"L4: {agent.node_id} waits in a run that could form")
                if live is not None and run.announced:
                    raise ViolationError(f"L8: {agent.node_id} waits though it was announced")
            elif agent.stage is not Stage.EXIT:
                raise ViolationError(f"L3: {agent.node_id} hangs in {agent.stage.value}")

    def _check_waits(self, agent: Agent) -> None:
        """Nobody waits at a barrier longer than its time (L3, L5)."""
        for meetings in agent.meetings:
            for name, since in meetings.waiting.items():
                if self.clock.now - since > BARRIER_S + 1.0:
                    raise ViolationError(
                        f"L3: {agent.node_id} waits at {name} since {since:.1f} of {self.clock.now}"
                    )
