"""What must hold of all that the nodes of one history are told. Nothing here looks at how the server does it, but
for the end: whether each node is where it should be."""

from typing import TYPE_CHECKING

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import AnyRequest, Error, Fence, Join, Joined, View
from tests.sim.agent import LEASE_S, Agent, Stage
from tests.sim.communicators import ID_S
from tests.sim.meeting import BARRIER_S
from tests.sim.worker import FINAL, Worker

if TYPE_CHECKING:
    from tests.sim.world import World

WELL_S = LEASE_S + 1.0
"""A node without a fault for this long cannot be lost: its lease, and the grace of a closed connection."""

COME_BACK_S = 1.0
"""So long of it the server must have run: the hello of a node that it forgot before it stood still waits in the kernel,
and proving who says it takes more than a moment (crashes 41198). It is the grace of a closed connection."""

JOIN_REFUSALS = frozenset((
    ErrorCode.JOIN_TIMEOUT, ErrorCode.RUN_CLOSED, ErrorCode.RUN_FINISHED, ErrorCode.RUN_FAILED, ErrorCode.FENCED,
    ErrorCode.CONNECTION_LOST,
))  # fmt: skip
"""How a join may end without a world: a lost session is none of them, the join goes on in a new one."""

NEVER_TOLD = frozenset((
    ErrorCode.MALFORMED, ErrorCode.UNSUPPORTED, ErrorCode.NOT_PERMITTED, ErrorCode.BAD_ROUND,
    ErrorCode.BARRIER_MISMATCH, ErrorCode.POLICY_MISMATCH, ErrorCode.NOT_A_NUMBER, ErrorCode.UNAUTHENTICATED,
))  # fmt: skip
"""What a client that makes no mistake is never told: its requests are right, whatever happened to them on the way."""


class ViolationError(AssertionError):
    """A rule was broken; the seed reproduces it."""


class Rules:
    """What one history's nodes were told so far."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.generations = 0
        self._holders: dict[tuple[str, Fence], dict[int, str]] = {}
        self._digests: dict[tuple[str, Fence], tuple[bytes, int]] = {}
        self._last: dict[int, Fence] = {}
        self._epochs: dict[int, list[int]] = {}
        """Epochs that a process had places in, in their order: none comes twice (S2)."""
        self._viewed: dict[int, Fence] = {}
        self._newest: dict[tuple[str, str, int], tuple[Agent, Fence]] = {}
        """The newest process of a node that got a place, by run, node and epoch, and its last one."""

    def told(self, agent: Agent, told: Joined) -> None:
        """An assignment (S1, S3, S4)."""
        key = (agent.run, told.fence)
        table = (told.digest, told.world_size)
        if self._digests.setdefault(key, table) != table:
            raise ViolationError(f"S3: {key} has two member tables")
        ranks = self._holders.setdefault(key, {})
        if not ranks:
            self.generations += 1
        holder = ranks.setdefault(told.group_rank, agent.label)
        if holder != agent.label:
            raise ViolationError(f"S1: rank {told.group_rank} of {key}: {holder} and {agent.label}")
        if not 0 <= told.group_rank < told.world_size:
            raise ViolationError(f"S1: rank {told.group_rank} of {told.world_size}")
        if not agent.policy.min_nodes <= told.world_size <= agent.policy.max_nodes:
            raise ViolationError(
                f"S1: {agent.policy.min_nodes} to {agent.policy.max_nodes}, not {told.world_size}"
            )
        last = self._last.get(agent.process)
        if last is not None and told.fence.epoch == last.epoch and told.fence <= last:
            raise ViolationError(f"S3: {agent.label} was told {told.fence} after {last}")
        self._last[agent.process] = told.fence
        believes = agent.client.session.watch.view.fence
        if believes is None or believes.epoch != told.fence.epoch:
            raise ViolationError(f"S31: {agent.label} was told {told.fence} and sees {believes}")
        epochs = self._epochs.setdefault(agent.process, [])
        if epochs[-1:] != [told.fence.epoch]:
            if told.fence.epoch in epochs:
                raise ViolationError(
                    f"S2: {agent.label} is told an epoch that was over: {told.fence}"
                )
            epochs.append(told.fence.epoch)
        node = (agent.run, agent.node_id, told.fence.epoch)
        newest, fence = self._newest.get(node, (agent, told.fence))
        met = self._world.server.met_by_epoch[told.fence.epoch]
        if met.get(agent.incarnation, 0) < met.get(newest.incarnation, 0):
            if told.fence >= fence:
                raise ViolationError(
                    f"S5: {agent.label} got a place after a newer process of its node"
                )
        else:
            self._newest[node] = agent, told.fence

    def viewed(self, agent: Agent, view: View) -> None:
        """What a node believes never goes back to an older generation (S3, S10)."""
        last = self._viewed.get(agent.process)
        if view.fence is None:
            return
        if last is not None and view.fence.epoch == last.epoch and view.fence < last:
            raise ViolationError(f"S10: {agent.label} believes in {view.fence} after {last}")
        self._viewed[agent.process] = view.fence

    def refused(self, agent: Agent, asked: AnyRequest, reply: Error) -> None:
        """A request was refused for a mistake that its sender did not make, or a join for no good reason."""
        crossed = agent.leaving and reply.code == ErrorCode.NOT_A_MEMBER
        if isinstance(asked, Join) and reply.code not in JOIN_REFUSALS and not crossed:
            raise ViolationError(f"L4: {agent.label} joined and was told: {reply.message}")
        self._never_told(agent.label, asked, reply)

    def over(self, agent: Agent, failure: Error | None) -> None:
        """A session is over for good: it was fenced by a newer process (S5), or away for too long. Newer is
        who the server met later: a process whose first hello was under way for long is new to it."""
        if failure is None:
            return
        if failure.code == ErrorCode.FENCED:
            others = [o.incarnation for o in self._world.agents if o.node_id == agent.node_id]
            if not any(
                met.get(other, 0) > met.get(agent.incarnation, 0)
                for met in self._world.server.met_by_start
                for other in others
            ):
                raise ViolationError(f"S5: {agent.label} was fenced, and by no newer process")
        elif failure.code != ErrorCode.CONNECTION_LOST:
            raise ViolationError(f"T5: {agent.label} was turned away: {failure.message}")

    def refused_worker(self, worker: Worker, asked: AnyRequest, reply: Error) -> None:
        """A training process that makes no mistake is refused only because its generation, or the server's memory of
        it, is gone."""
        self._never_told(worker.label, asked, reply)

    def _never_told(self, label: str, asked: AnyRequest, reply: Error) -> None:
        if reply.code in NEVER_TOLD:
            raise ViolationError(f"S23: {label} asked {asked.op} and was told: {reply.message}")

    def worker_told(self, worker: Worker, view: View) -> None:
        """The generation of a training process has ended (S9): not before that is true."""
        run = self._world.server.core.tables.runs.get(worker.run)
        live = None if run is None or not self._world.server.up else run.live
        if live is not None and live.fence == worker.mine.fence:
            why = None if view.ended is None else view.ended.reason
            raise ViolationError(f"S9: {worker.label} was told that a live generation ended: {why}")

    def worker_over(self, worker: Worker, failure: Error | None) -> None:
        """Its session is over for good: its generation is, or it was away for too long."""
        if failure is not None and failure.code not in FINAL:
            raise ViolationError(f"T5: {worker.label} was turned away: {failure.message}")

    def lost(self, incarnation: bytes, unread: bool) -> None:
        """Only the dead, the frozen and the cut off are ever declared lost (S32, S33). Asked of the
        process: another one with the same node id may live, and not have reached the server yet.

        Args:
            unread: something that it said had arrived, and the server had not looked.
        """
        for agent in self._world.agents:
            if agent.incarnation == incarnation and agent.alive:
                if unread:
                    raise ViolationError(
                        f"S33: {agent.label} had been heard by the kernel, and was declared lost"
                    )
                well_since = agent.client.impaired_until
                if (
                    self._world.clock.now - well_since > WELL_S
                    and self._world.server.ran_s(well_since) > COME_BACK_S
                ):
                    raise ViolationError(f"S33: {agent.label} is well and was declared lost")

    def at_rest(self) -> None:
        """Healed, every living agent is in its run's live generation, finished, waits below the
        minimum, or stands by above the maximum (L3, L4)."""
        for agent in self._world.agents:
            if agent.alive:
                self.waits(agent)
                self._rests(agent)

    def _rests(self, agent: Agent) -> None:
        run = self._world.server.core.tables.runs.get(agent.run)
        if run is None:
            raise ViolationError(f"L4: {agent.label} lives and its run does not")
        live = run.live
        if agent.stage is Stage.RUNNING:
            view = agent.client.session.watch.view
            if live is None or agent.joined is None or agent.joined.fence != live.fence:
                raise ViolationError(f"L4: {agent.label} runs in a dead generation ({view})")
        elif agent.stage is Stage.JOINING:
            few = run.policy is not None and run.counts.ready < run.policy.min_nodes
            if live is None and not few:
                raise ViolationError(f"L4: {agent.label} waits in a run that could form")
            if live is not None and run.announced:
                raise ViolationError(f"L8: {agent.label} waits though it was announced")
        elif agent.stage is not Stage.EXIT:
            raise ViolationError(f"L3: {agent.label} hangs in {agent.stage.value}")

    def waits(self, agent: Agent) -> None:
        """Nobody waits at a barrier or for an id longer than its time (L3, L5)."""
        now = self._world.clock.now
        workers = [] if agent.worker is None or not agent.worker.alive else [agent.worker]
        for meetings in [*agent.meetings, *(worker.meetings for worker in workers)]:
            for name, since in meetings.waiting.items():
                if now - since > BARRIER_S + 1.0:
                    raise ViolationError(
                        f"L3: {agent.label} waits at {name} since {since:.1f} of {now}"
                    )
        for one in [*agent.communicators, *(worker.communicators for worker in workers)]:
            asked_at = one.waiting_since
            if asked_at is not None and now - asked_at > ID_S + 1.0:
                raise ViolationError(
                    f"L3: {agent.label} waits for an id since {asked_at:.1f} of {now}"
                )
