"""Liveness: a part of each run is healed, the rest stays broken for ever, and the part must go on.

Safety mode heals everybody, which hides what waits for somebody who never comes back: a node that is frozen, dead
without a word, or cut off in one direction. Here a random core of at least the minimum is healed, the rest is
broken for good, and the core must form a generation and pass a barrier within bounded time.
"""

from typing import TYPE_CHECKING

from rdzv_client.backoff import CAP_S
from rdzv_proto.errors import ErrorCode
from rdzv_server.core.tcpstore.stores import RETRY_S
from tests.sim.agent import JOIN_S, LEASE_S, STOP_S, Agent, Stage
from tests.sim.client import BOTH_WAYS, DOWN, UP
from tests.sim.meeting import TURN_S_MAX
from tests.sim.rules import ViolationError

if TYPE_CHECKING:
    from tests.sim.world import World

SETTLED = frozenset((ErrorCode.RUN_FAILED, ErrorCode.RUN_FINISHED, ErrorCode.RUN_CLOSED))
"""Refusals that end what had failed, finished or been closed before: nobody hangs."""

HALF_DEAD_S = LEASE_S / 3 + LEASE_S / 2
"""A client that hears nothing any more sends its next heartbeat within a third of the lease, and closes the
connection when half a lease passed without an answer."""

GONE_S = HALF_DEAD_S + LEASE_S
"""By then everybody who is broken has been declared lost: the silent after a lease, and those whose connections
closed together with most of the run's after a lease from then."""

SLACK_S = 1.0
"""Round trips, commits and ticks."""


class Core:
    """The healed part of one run, from the moment it is healed.

    Attributes:
        bound_s: within this time it must have passed a barrier.
        took_s: how long it took; None: its run was over already, or is not over and too small by what had
            happened before.
    """

    def __init__(self, world: "World", run: str) -> None:
        self._world, self._run = world, run
        self._healed_at = world.clock.now
        self._policy = policy = world.policies[run]
        self.took_s: float | None = None
        # What is lost is lost; then the survivors stop their workers and rejoin, the last call passes, a port for the
        # workers' store may be refused once, and the first barrier comes with the members' next turn.
        last_call_s = policy.last_call_timeout_ms / 1000
        self.bound_s = max(GONE_S, CAP_S) + STOP_S + last_call_s + RETRY_S + TURN_S_MAX + SLACK_S
        rng = world.rng
        able = [agent for agent in world.of_run(run) if self._may_go_on(agent)]
        size = rng.randint(policy.min_nodes, policy.max_nodes)
        self.members = rng.sample(able, min(size, len(able)))
        for agent in world.of_run(run):
            if agent in self.members:
                agent.heal()
            else:
                self._break(agent)
        while len(self.members) < policy.min_nodes:
            self.members.append(world.start(run, f"{run}-core{world.processes}", policy))
        world.trace(f"core of {run}: {sorted(agent.label for agent in self.members)}")

    def _may_go_on(self, agent: Agent) -> bool:
        """Its work is not done, its host is there, and no newer process took its place."""
        newer = (
            o
            for o in self._world.agents
            if o.node_id == agent.node_id and o.process > agent.process
        )
        return agent.stage is not Stage.EXIT and not agent.client.cut and not any(newer)

    def _break(self, agent: Agent) -> None:
        """For good."""
        kind = self._world.rng.randrange(5)
        if kind == 0:
            agent.vanish()
        elif kind == 1:
            agent.client.freeze_for_ever()
        else:
            agent.client.cut_for_ever((UP, DOWN, BOTH_WAYS)[kind - 2])

    def check(self) -> None:
        """Called when the bound has passed (L1, L4, L11).

        Raises:
            ViolationError: the core did not go on.
        """
        left = [agent for agent in self.members if agent.alive]
        for agent in left:
            self._world.rules.waits(agent)
        excused = [agent for agent in self.members if not agent.alive and self._excused(agent)]
        few = len(self.members) - len(excused) < self._policy.min_nodes
        for agent in self.members:
            if agent in left or agent in excused:
                continue
            if not (few and agent.refusal == ErrorCode.JOIN_TIMEOUT):  # with whom should it meet
                raise ViolationError(f"L4: {agent.label} of the core is gone: {agent.outcome}")
        if len(left) < self._policy.min_nodes:
            return
        run = self._world.server.core.tables.runs.get(self._run)
        live = None if run is None else run.live
        if live is not None and live.finished:
            return  # its work is nearly done: nobody is restarted, and no barrier of all can be passed
        if live is None:
            where = "no run" if run is None else run.reason
            raise ViolationError(f"L4: the core of {self._run} is not in a world: {where}")
        took_s = 0.0
        for agent in left:
            met_at = agent.met.get(live.fence)
            if met_at is None:
                raise ViolationError(
                    f"L4: {agent.label} of the core has not met the others in {live.fence}: {agent.stage.value}"
                )
            took_s = max(took_s, met_at - self._healed_at)
        self.took_s = took_s

    def _excused(self, agent: Agent) -> bool:
        """Its run, or its patience, had come to an end by what happened before."""
        if agent.refusal == ErrorCode.JOIN_TIMEOUT:
            return (
                agent.asked_at < self._healed_at and self._world.clock.now - agent.asked_at > JOIN_S
            )
        failure = agent.client.session.failure
        if ErrorCode.FENCED in (agent.refusal, None if failure is None else failure.code):
            return self._twin_came_back(agent)
        return agent.refusal in SETTLED or agent.outcome in ("finished", "drained", "worker failed")

    def _twin_came_back(self, agent: Agent) -> bool:
        """A server that forgot everything takes whoever says hello last for the newer process: an older one, which had
        stood still, got in just before the healing, and the core's has yet to hear of it."""
        met = self._world.server.met
        return any(
            o.process < agent.process and met.get(o.incarnation, 0) > met.get(agent.incarnation, 0)
            for o in self._world.agents
            if o.node_id == agent.node_id
        )
