"""Mutants of barriers: who counts, what is decided, who learns it."""

from typing import Any

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Error, Released
from rdzv_server.core import barriers, coordinator, waits
from rdzv_server.core.model import Generation, Run
from rdzv_server.core.refusal import Refused
from rdzv_server.core.rounds import Arrival, Barrier, Terms
from rdzv_server.core.tables import Tables
from tests.sim.mutants.mutant import Collection, Patch

MUTANTS = Collection()
mutant = MUTANTS.mutant


def _release_of_those_here(barrier: Barrier) -> Released:
    here = barrier.arrivals
    ranks = [] if barrier.terms is None else list(barrier.terms.ranks())
    return Released(
        round=barrier.round, payloads=[here[rank].payload if rank in here else None for rank in ranks]
    )  # fmt: skip


@mutant("S13")
def arrival_counted_twice(patch: Patch) -> None:
    """a repeated arrival of one member counts as another one's"""
    enter, twice = Barrier.enter, set()
    request = coordinator.Coordinator.request

    def entering(barrier: Barrier, arrival: Arrival) -> None:
        if arrival.member in barrier.arrivals:
            twice.add((id(barrier), barrier.round))
        enter(barrier, arrival)

    def complete(barrier: Barrier) -> bool:
        extra = (id(barrier), barrier.round) in twice
        return barrier.terms is not None and len(barrier.arrivals) + extra >= barrier.terms.needed

    def unguarded(core: Any, conn: int, request_id: int, message: Any) -> Any:
        connection = core.tables.connections.get(conn)
        session = None if connection is None else connection.session
        if session is not None and message.op == "barrier":
            session.parked.pop(request_id, None)
        return request(core, conn, request_id, message)

    patch(Barrier, "enter", entering)
    patch(Barrier, "complete", property(complete))
    patch(barriers, "_release", _release_of_those_here)
    patch(coordinator.Coordinator, "request", unguarded)


@mutant("S13")
def released_early(patch: Patch) -> None:
    """a round is released with one member too few"""

    def complete(barrier: Barrier) -> bool:
        terms = barrier.terms
        return terms is not None and len(barrier.arrivals) >= max(1, terms.needed - 1)

    patch(Barrier, "complete", property(complete))
    patch(barriers, "_release", _release_of_those_here)


@mutant("S17")
def decision_not_kept(patch: Patch) -> None:
    """who comes after a round has failed opens the next one alone"""
    decide = Barrier.decide

    def deciding(barrier: Barrier, reply: Released | Error) -> list[Arrival]:
        arrivals = decide(barrier, reply)
        barrier.decisions.clear()
        return arrivals

    patch(Barrier, "decide", deciding)


@mutant("S14")
def decisions_mixed(patch: Patch) -> None:
    """the last member to come is released from a round that failed for the others"""
    decide = barriers._decide

    def deciding(tables: Tables, barrier: Barrier, reply: Released | Error) -> None:
        if isinstance(reply, Error) and len(barrier.arrivals) > 1:
            *_, lucky = barrier.arrivals.values()
            barrier.withdraw(lucky.member)
            tables.release(
                [(lucky.session, lucky.request_id)], _release_of_those_here(barrier), keep=True
            )
        decide(tables, barrier, reply)

    patch(barriers, "_decide", deciding)


@mutant("S15")
def round_skipped(patch: Patch) -> None:
    """a failure counts as two rounds"""
    decide = Barrier.decide

    def deciding(barrier: Barrier, reply: Released | Error) -> list[Arrival]:
        arrivals = decide(barrier, reply)
        barrier.round += isinstance(reply, Error)
        return arrivals

    patch(Barrier, "decide", deciding)


@mutant("S17")
def patience_renewed(patch: Patch) -> None:
    """each arrival gives a round its whole time again"""
    enter = barriers._enter

    def entering(
        tables: Tables, run: Run, generation: Generation | None, barrier: Barrier, arrival: Any
    ) -> None:
        enter(tables, run, generation, barrier, arrival)
        tables.deadlines.set(("round", barrier.serial, 0), tables.t + barrier.timeout_s)

    patch(barriers, "_enter", entering)


@mutant("L5")
def no_deadline(patch: Patch) -> None:
    """a round has no time limit"""
    patch(barriers, "time_over", lambda tables, serial: None)


@mutant("S9")
def lost_member_fails_no_round(patch: Patch) -> None:
    """the rounds of a generation that ended go on"""

    def over(tables: Tables, run: Run, generation: Generation) -> None:
        text = waits.stale_text(run, generation.fence)
        refusal = Refused(ErrorCode.STALE_GENERATION, text).reply()
        for session_id, request_id in generation.kv.waiters():
            generation.kv.drop((session_id, request_id))
            session = tables.sessions.get(session_id)
            if session is not None:
                tables.answer(session, request_id, refusal, keep=False)
        generation.kv.clear()

    patch(waits, "generation_over", over)


@mutant("S9")
def finished_member_fails_no_round(patch: Patch) -> None:
    """a round waits for a node whose work is done"""
    patch(barriers, "_finished", lambda generation, barrier: None)


@mutant("S16")
def stranger_counts(patch: Patch) -> None:
    """a node that a round is not for is counted"""
    patch(Terms, "includes", lambda terms, member: True)
