"""Faults that a core could have, each put in by a patch: the machine must find every one of them."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import msgspec

from rdzv_proto.messages import KvAdd
from rdzv_server.core import (
    barriers,
    clock,
    forming,
    generations,
    invariants_runs,
    quorum,
    replies,
    roster,
    sessions,
    waits,
)
from rdzv_server.core.kv import Namespace
from rdzv_server.core.model import Kind
from rdzv_server.core.rounds import Barrier
from rdzv_server.core.tables import Tables

Bug = Callable[[], contextlib.AbstractContextManager[Any]]


def barrier_counts_a_member_twice() -> Any:
    """S13: when it asks again it takes the place of somebody who is missing."""
    right = Barrier.enter

    def enter(self: Barrier, arrival: Any) -> None:
        again = arrival.member in self.arrivals
        right(self, arrival)
        for rank in self.missing()[:again]:
            self.arrivals[rank] = arrival

    return mock.patch.object(Barrier, "enter", enter)


def late_comer_opens_a_round_of_its_own() -> Any:
    """S17: the decision that it has not had is not told to it."""
    return mock.patch.object(Barrier, "owed", return_value=None)


def add_is_done_again_when_it_is_sent_again() -> Any:
    """S23."""
    return mock.patch.object(KvAdd, "recorded", False)


def addition_starts_from_what_it_knew() -> Any:
    """S23: though something else was written there meanwhile."""
    right = Namespace.put

    def put(self: Any, key: str, value: bytes, number: int | None = None) -> Any:
        entry = self.find(key)
        return right(self, key, value, entry.number if entry and number is None else number)

    return mock.patch.object(Namespace, "put", put)


def old_assignment_is_repeated() -> Any:
    """S8: also when its generation is over."""
    return mock.patch.object(replies, "outdated", return_value=False)


@contextlib.contextmanager
def join_without_a_connection_counts() -> Iterator[None]:
    """S7: a phantom is counted to the quorum."""
    right = roster.kind_of

    def kind_of(member: Any) -> Kind:
        if member.join is not None and not member.finished and member.rival is None:
            return Kind.READY_NEW if member.seat is None else Kind.READY_PRIOR
        return right(member)

    with (
        mock.patch.object(roster, "kind_of", kind_of),
        mock.patch.object(invariants_runs, "kind_of", kind_of),
    ):
        yield


def surplus_standby_is_counted() -> Any:
    """B29: one more than may be restarts the world."""
    right = quorum.seats

    def seats(policy: Any, nodes: int) -> int:
        return right(msgspec.structs.replace(policy, max_nodes=policy.max_nodes + 1), nodes)

    return mock.patch.object(forming, "seats", seats)


def stale_fence_is_accepted() -> Any:
    """S10: what is meant for an older generation is done in the live one."""
    right = waits.generation_of

    def generation_of(tables: Any, session: Any, fence: Any) -> Any:
        run = tables.runs.get(session.run_id)
        live = None if run is None else run.live
        return right(tables, session, live.fence if live and fence < live.fence else fence)

    return mock.patch.object(waits, "generation_of", generation_of)


def wait_does_not_see_a_delete() -> Any:
    """S24: it ends though its keys were never there together."""
    right = Namespace.delete

    def delete(self: Any, gone: Any) -> int:
        by_key, self._by_key = self._by_key, {}
        try:
            return right(self, gone)
        finally:
            self._by_key = by_key

    return mock.patch.object(Namespace, "delete", delete)


def departure_of_a_finished_node_is_a_loss() -> Any:
    """S9: it ends the generation of the others."""
    right = generations.depart

    def depart(tables: Any, run: Any, member: Any, ended: Any) -> None:
        live = run.live
        right(tables, run, member, ended)
        if live is not None and member.session.id in live.rank_of:
            generations.end(tables, run, ended)

    return mock.patch.object(generations, "depart", depart)


def lease_is_half_a_second_longer() -> Any:
    """L2."""
    right = sessions._over_at
    return mock.patch.object(sessions, "_over_at", lambda *args: right(*args) + 0.5)


def stall_is_charged() -> Any:
    """S32."""
    return mock.patch.object(clock, "STALL_S", 1e9)


def scale_up_restarts_at_once() -> Any:
    """DESIGN 6.2: newcomers are announced together."""
    return mock.patch.object(forming, "_scale_up_delay", return_value=0.0)


def newcomer_gets_rank_0() -> Any:
    """DESIGN 6.4: survivors keep their order, and one of them has rank 0."""

    def arrange(chosen: Any, last: Any) -> Any:
        return sorted(chosen, key=lambda c: (c.seat is not None, c.seat or 0, c.order))

    return mock.patch.object(quorum, "arrange", arrange)


@contextlib.contextmanager
def one_vote_is_enough() -> Iterator[None]:
    """A round commits if every member votes yes."""
    right = barriers._release

    def release(barrier: Barrier) -> Any:
        reply = right(barrier)
        if reply.committed is False and any(a.vote for a in barrier.arrivals.values()):
            return msgspec.structs.replace(reply, committed=True, against=[])
        return reply

    with mock.patch.object(barriers, "_release", release):
        yield


def fence_is_used_again() -> Any:
    """S2: a run that was forgotten begins with generation 1."""
    right = Tables.forget_run

    def forget_run(self: Tables, run: Any) -> None:
        right(self, run)
        self.tombstones.pop(run.id, None)

    return mock.patch.object(Tables, "forget_run", forget_run)


BUGS: tuple[Bug, ...] = (
    barrier_counts_a_member_twice,
    late_comer_opens_a_round_of_its_own,
    add_is_done_again_when_it_is_sent_again,
    addition_starts_from_what_it_knew,
    old_assignment_is_repeated,
    join_without_a_connection_counts,
    surplus_standby_is_counted,
    stale_fence_is_accepted,
    wait_does_not_see_a_delete,
    departure_of_a_finished_node_is_a_loss,
    lease_is_half_a_second_longer,
    stall_is_charged,
    scale_up_restarts_at_once,
    newcomer_gets_rank_0,
    one_vote_is_enough,
    fence_is_used_again,
)
