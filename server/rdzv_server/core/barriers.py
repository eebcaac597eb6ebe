"""Requests to meet at a barrier, and what breaks a round.

Who meets: the nodes of a generation by group rank, its training processes by rank, or (for shell
scripts) any so many clients of a run. A round is decided once, for all alike: released, timed out,
broken by the loss of a member, or refused because its members disagree. A stranger is turned away and
harms nobody (S16). The end of the generation ends all its rounds (`waits.generation_over`).
"""

import re
from functools import lru_cache

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import PRINTABLE, AnyReply, Barrier, Error, Released
from rdzv_server.core import barrier_words as texts
from rdzv_server.core import waits, words
from rdzv_server.core.durable.saving import OF_GENERATION, OF_RUN
from rdzv_server.core.model import Generation, Role, Run, Session
from rdzv_server.core.refusal import Refused
from rdzv_server.core.rounds import Arrival, Barriers, Decision, Terms
from rdzv_server.core.rounds import Barrier as Rounds
from rdzv_server.core.tables import Tables

_PRINTABLE = re.compile(PRINTABLE)


def arrive(tables: Tables, session: Session, request_id: int, ask: Barrier) -> AnyReply | None:
    """A member is there. None: its answer comes with the round's decision.

    Raises:
        Refused: STALE_GENERATION, NOT_A_MEMBER, MALFORMED, BAD_ROUND, DUPLICATE_RANK,
            LIMIT_EXCEEDED; nothing is changed, and the others do not notice.
    """
    run, generation, terms, member = _place(tables, session, ask)
    barrier = _barriers(run, generation).find(ask.name) or _new(tables, run, generation, ask.name)
    if terms.of != "count":
        known = _known_decision(barrier, member, ask.round)
        if known is not None:
            tables.save("barrier", run.id, scope_of(generation), barrier.name)
            return known
    elif ask.round not in (None, barrier.round):
        raise texts.bad_round(barrier, ask.round)
    if not barrier.arrivals:  # the first of a round: its terms and its patience count for all (S17)
        barrier.terms, barrier.began_at = terms, tables.t
        barrier.timeout_s = ask.timeout_ms / 1000
    elif barrier.terms is not None and not barrier.terms.includes(member):
        raise texts.stranger(session, barrier, barrier.terms)
    arrival = Arrival(member, session, request_id, ask.payload, ask.vote)
    _enter(tables, run, generation, barrier, arrival)
    if barrier.terms is not terms and barrier.terms != terms:
        text = (
            f"{texts.title(barrier)}: {texts.who(session, member, terms)} came for {terms}, the others for "
            f"{barrier.terms}"
        )
        _fail(tables, barrier, ErrorCode.BARRIER_MISMATCH, text)
    elif (
        generation is not None
        and generation.finished
        and _broken_by_finished(tables, generation, barrier)
    ):
        pass  # decided
    elif barrier.complete:
        _decide(tables, barrier, _release(barrier))
    return None


def time_over(tables: Tables, serial: int) -> None:
    """A round's time is up: say who is missing, to all of its members alike."""
    place = tables.rounds.get(serial)
    if place is None:
        return
    run, generation, barrier = place
    terms = barrier.terms
    assert terms is not None, "a deadline of a round that is not open"
    text = (
        f"{texts.title(barrier)}: {len(barrier.arrivals)} of {terms.needed} came within "
        f"{words.seconds(tables.t - barrier.began_at)}."
    )
    if terms.of == "count":
        text += f" Here: {words.names([words.node(a.session) for a in barrier.arrivals.values()])}."
    else:
        missing = texts.describe(tables, run, generation, terms.of, barrier.missing())
        text += f" Missing: {missing}."
    _fail(tables, barrier, ErrorCode.BARRIER_TIMEOUT, text)


def session_over(tables: Tables, run: Run, session: Session, why: str) -> None:
    """A session is gone. Where anybody may come, its arrival is withdrawn; where it is needed, the
    round is broken."""
    for barrier in run.barriers.waiting():
        if session.id in barrier.arrivals:
            barrier.withdraw(session.id)
            if not barrier.arrivals:
                tables.close_round(barrier)
                barrier.take()
    generation = run.generation
    if generation is None or not session.parked:
        return
    for barrier in generation.barriers.waiting():
        arrival = next((a for a in barrier.arrivals.values() if a.session is session), None)
        if arrival is not None and barrier.terms is not None:
            who = texts.who(session, arrival.member, barrier.terms)
            text = f"{texts.title(barrier)}: {who} was lost: {why}"
            _fail(tables, barrier, ErrorCode.BARRIER_BROKEN, text)


def node_finished(tables: Tables, generation: Generation) -> None:
    """A node's work is done: rounds that need it can never be complete."""
    for barrier in generation.barriers.waiting():
        _broken_by_finished(tables, generation, barrier)


# --- who asks ---------------------------------------------------------------------------------


def _place(
    tables: Tables, session: Session, ask: Barrier
) -> tuple[Run, Generation | None, Terms, int]:
    """Where the barrier is, what the caller takes it for, and which member of it the caller is."""
    if ask.of == "count":
        if ask.fence is not None or ask.members or not ask.count:
            raise Refused(
                ErrorCode.MALFORMED,
                "a barrier of so many belongs to the run and needs a count only",
            )
        return tables.use_run(session.run_id), None, Terms("count", ask.count), session.id
    if ask.fence is None:
        raise Refused(ErrorCode.MALFORMED, f"a barrier of {ask.of} needs a generation")
    run, generation = waits.generation_of(tables, session, ask.fence)
    of_nodes = ask.of == "nodes"
    if session.role is not (Role.NODE if of_nodes else Role.WORKER):
        raise Refused(
            ErrorCode.NOT_A_MEMBER,
            f"a {session.role.value} cannot take part in a barrier of {ask.of}",
        )
    member = generation.rank_of[session.id] if of_nodes else session.rank
    world = len(generation.participants) if of_nodes else ask.count
    if ask.members:
        if of_nodes and max(ask.members) >= world:
            raise Refused(
                ErrorCode.MALFORMED,
                f"group rank {max(ask.members)} is outside the world of {world}",
            )
        members = frozenset(ask.members)
        terms = Terms(ask.of, len(members), members)
    elif world:
        terms = _all_of(ask.of, world)
    else:
        raise Refused(ErrorCode.MALFORMED, "a barrier of workers needs their count or their ranks")
    if not terms.includes(member):
        where = texts.where(run, generation)
        raise Refused(
            ErrorCode.NOT_A_MEMBER,
            f"barrier {ask.name!r} of {where}: {texts.who(session, member, terms)} is not one of {terms}",
        )
    return run, generation, terms, member


@lru_cache(maxsize=256)
def _all_of(of: str, needed: int) -> Terms:
    """The terms of most rounds; every arrival of a round has the same object."""
    return Terms(of, needed)


def _known_decision(barrier: Rounds, member: int, number: int | None) -> AnyReply | None:
    """The recorded decision if the caller's round is over, or None if it is the open one."""
    if number is None:
        decision = barrier.owed(member)
        if decision is None:
            return None
    elif number == barrier.round:
        return None
    else:
        decision = barrier.decision(number)
        if decision is None or not decision.terms.includes(member):
            raise texts.bad_round(barrier, number)
    barrier.had[member] = max(barrier.had.get(member, 0), decision.round)
    return decision.reply


def _barriers(run: Run, generation: Generation | None) -> Barriers:
    return run.barriers if generation is None else generation.barriers


def _new(tables: Tables, run: Run, generation: Generation | None, name: str) -> Rounds:
    if not _PRINTABLE.match(name):
        raise Refused(ErrorCode.MALFORMED, f"control characters in the name of a barrier: {name!r}")
    barrier = Rounds(name, texts.where(run, generation))
    try:
        gone = _barriers(run, generation).make_way()
    except OverflowError:
        raise Refused(
            ErrorCode.LIMIT_EXCEEDED,
            f"{limits.BARRIER_NAMES_MAX} barriers of {barrier.where} are in use",
        ) from None
    _barriers(run, generation).add(barrier)
    scope = scope_of(generation)
    tables.save("barrier", run.id, scope, name)
    if gone is not None:
        tables.save("barrier", run.id, scope, gone.name)
        for decision in gone.decisions:
            tables.save("decision", run.id, scope, gone.name, decision.round)
            _store_apart(tables, decision)
    return barrier


def _store_apart(tables: Tables, decision: Decision) -> None:
    """The decision is forgotten; whoever has not had its reply finds it with his session."""
    for session_id, request_id in decision.answered:
        session = tables.sessions.get(session_id)
        if session is not None and request_id in session.transient:
            session.transient.discard(request_id)
            tables.save("reply", session_id, request_id)


def scope_of(generation: Generation | None) -> int:
    """Whose barrier it is, for its records."""
    return OF_RUN if generation is None else OF_GENERATION


def _enter(
    tables: Tables, run: Run, generation: Generation | None, barrier: Rounds, arrival: Arrival
) -> None:
    """Count a member, once; nothing is changed if it is refused."""
    old = barrier.arrivals.get(arrival.member)
    if old is not None and old.session is not arrival.session and not old.session.suspect:
        raise Refused(
            ErrorCode.DUPLICATE_RANK,
            f"{texts.title(barrier)}: rank {arrival.member} is there already, from another process on "
            f"{words.node(old.session)}",
        )
    grown = len(arrival.payload or b"")
    if old is not None:
        grown -= len(old.payload or b"")
    if barrier.payload_bytes + grown > limits.BARRIER_PAYLOADS_BYTES_MAX:
        raise Refused(
            ErrorCode.LIMIT_EXCEEDED,
            f"{texts.title(barrier)}: the payloads together would exceed "
            f"{limits.BARRIER_PAYLOADS_BYTES_MAX} bytes",
        )
    waits.park(arrival.session, arrival.request_id, Barrier)
    if old is not None:
        refusal = Refused(ErrorCode.SUPERSEDED, "a newer arrival of this member took its place")
        tables.answer(old.session, old.request_id, refusal.reply(), keep=True)
    barrier.enter(arrival)
    if len(barrier.arrivals) == 1 and old is None:
        tables.open_round(run, generation, barrier)


# --- how a round ends -------------------------------------------------------------------------


def _release(barrier: Rounds) -> Released:
    terms = barrier.terms
    assert terms is not None, "a release of a round that is not open"
    arrivals = barrier.arrivals.values()
    if terms.members is None and all(a.payload is None and a.vote is None for a in arrivals):
        return Released(round=barrier.round)
    order = list(terms.ranks()) or list(barrier.arrivals)
    here = [barrier.arrivals[member] for member in order]
    votes = [arrival.vote for arrival in here]
    names = list(range(len(order))) if terms.of == "count" else order
    voted = any(vote is not None for vote in votes)
    return Released(
        round=barrier.round,
        members=order if terms.members is not None else [],
        payloads=[a.payload for a in here] if any(a.payload is not None for a in here) else [],
        committed=all(votes) if voted else None,
        against=[i for i, vote in zip(names, votes, strict=True) if not vote] if voted else [],
    )


def _fail(tables: Tables, barrier: Rounds, code: ErrorCode, text: str) -> None:
    run, generation, _ = tables.rounds[barrier.serial]
    tables.report(
        "barrier_failed", level="warning", run=run.id,
        fence=None if generation is None else generation.fence, barrier=barrier.name,
        round=barrier.round, code=code.name, reason=text,
    )  # fmt: skip
    _decide(tables, barrier, Refused(code, text[: limits.TEXT_CHARS_MAX]).reply())


def _decide(tables: Tables, barrier: Rounds, reply: Released | Error) -> None:
    """One decision for everybody who waits, and for those who come later (S14)."""
    run, generation, _ = tables.rounds[barrier.serial]
    if isinstance(reply, Released):
        tables.totals.rounds_released += 1
    else:
        tables.totals.rounds_failed += 1
    tables.close_round(barrier)
    kept = barrier.decisions
    oldest = kept[0] if kept and len(kept) == kept.maxlen else None
    arrivals = barrier.decide(reply)
    _barriers(run, generation).used(barrier)
    scope = scope_of(generation)
    tables.save("barrier", run.id, scope, barrier.name)
    tables.save("decision", run.id, scope, barrier.name, barrier.round - 1)
    if oldest is not None:
        tables.save("decision", run.id, scope, barrier.name, oldest.round)
        _store_apart(tables, oldest)
    tables.release([(a.session, a.request_id) for a in arrivals], reply, keep=True)


def _broken_by_finished(tables: Tables, generation: Generation, barrier: Rounds) -> bool:
    """Fail a round that needs a node whose work is done; True if it does."""
    gone = _finished(generation, barrier)
    if gone is not None:
        text = f"{texts.title(barrier)}: {gone} has finished its work and will not come"
        _fail(tables, barrier, ErrorCode.BARRIER_BROKEN, text)
    return gone is not None


def _finished(generation: Generation, barrier: Rounds) -> str | None:
    """A node that the open round needs and that has finished its work."""
    terms = barrier.terms
    if terms is None or terms.of != "nodes":
        return None
    for session_id in generation.finished:
        rank = generation.rank_of[session_id]
        if terms.includes(rank):
            return words.node(generation.participants[rank], rank)
    return None
