"""From state to records: which record belongs to which part, and what has to be written after a step.

Rules say what may have changed (`Tables.save`); this reads it off the state as it is at the end of the step. So a
mark too many costs a comparison, and what is gone by then is a record that is removed. `image` is the whole of it:
the tests compare it after every step with what was written piece by piece.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rdzv_proto import codec
from rdzv_server.core.durable import stored
from rdzv_server.core.durable.stored import Key, pack
from rdzv_server.core.kv import Namespace
from rdzv_server.core.model import Generation, Phase, Run, Session
from rdzv_server.core.nccl.ids import Group, Record, State
from rdzv_server.core.rounds import Barriers

if TYPE_CHECKING:
    from rdzv_server.core.tables import Tables

OF_RUN, OF_GENERATION = 0, 1
"""Whose keys and barriers."""

SESSIONS_RESERVED = 1_000
"""Session ids in one reservation: a restart may skip so many, and one write in a thousand joins is for it."""


class Saves:
    """What has to be written, and what was written last of small records."""

    def __init__(self) -> None:
        self.marked: dict[Key, None] = {}
        self.later: dict[Key, None] = {}
        """Written with the next thing that has to be: it frees room, and is harmless until then."""
        self._written: dict[Key, int] = {}
        """Hashes of small records, so that what did not change is not written again."""

    def changes(self, tables: "Tables") -> dict[bytes, bytes | None]:
        """Records that differ from what was written before; empty if none does."""
        changes: dict[bytes, bytes | None] = {}
        for key in self.marked:
            self._add(tables, key, changes)
        self.marked.clear()
        if changes and self.later:
            for key in self.later:
                self._add(tables, key, changes)
            self.later.clear()
        return changes

    def remember(self, key: Key, record: bytes) -> None:
        """A record that is stored already."""
        if key[0] in _COMPARED:
            self._written[key] = hash(record)

    def _add(self, tables: "Tables", key: Key, changes: dict[bytes, bytes | None]) -> None:
        record = read_off(tables, key)
        if key[0] in _COMPARED:
            if record is None:
                if self._written.pop(key, None) is None:
                    return
            elif self._written.get(key) == hash(record):
                return
            else:
                self._written[key] = hash(record)
        changes[stored.key_bytes(key)] = record


_COMPARED = frozenset(
    ("meta", "run", "session", "generation", "end", "barrier", "revision", "nccl")
)


def image(tables: "Tables") -> dict[bytes, bytes]:
    """All records of the present state."""
    found = {}
    for key in _keys(tables):
        record = read_off(tables, key)
        if record is not None:
            found[stored.key_bytes(key)] = record
    return found


def read_off(tables: "Tables", key: Key) -> bytes | None:
    """The record of one part of the state; None if it is not there."""
    match key:
        case ("meta",):
            return pack(
                stored.StoredMeta(
                    tables.identity.epoch, tables.sessions_reserved, tables.generation_floor
                )
            )
        case ("session", int(number)):
            session = tables.sessions.get(number)
            return None if session is None else pack(_session(session))
        case ("reply", int(number), int(request_id)):
            session = tables.sessions.get(number)
            if session is None or request_id in session.transient:
                return None
            reply = session.replies.get(request_id)
            return None if reply is None else codec.encode_tail(reply)
        case ("fenced", int(number)):
            return pack(tables.fenced[number]) if number in tables.fenced else None
        case ("lost", str(run_id), str(node_id)):
            lost = tables.lost.get((run_id, node_id))
            return None if lost is None else pack(lost)
        case ("seen", int(number)):
            seen = tables.ids_seen.by_number.get(number)
            return None if seen is None else pack(seen)
        case ("tomb", str(run_id)):
            return pack(tables.tombstones[run_id]) if run_id in tables.tombstones else None
        case (_, str(run_id), *rest):
            run = tables.runs.get(run_id)
            return None if run is None else _of_run(run, str(key[0]), rest)
        case _:
            raise AssertionError(f"no such record: {key}")


def _keys(tables: "Tables") -> Iterator[Key]:
    yield ("meta",)
    for session in tables.sessions.values():
        yield ("session", session.id)
        for request_id in session.replies:
            yield ("reply", session.id, request_id)
    yield from (("fenced", number) for number in tables.fenced)
    yield from (("lost", *key) for key in tables.lost)
    yield from (("seen", number) for number in tables.ids_seen.by_number)
    yield from (("tomb", run_id) for run_id in tables.tombstones)
    for run in tables.runs.values():
        yield from keys_of_run(run)


def keys_of_run(run: Run) -> Iterator[Key]:
    """All records of one run."""
    yield ("run", run.id)
    yield from keys_of_space(run.id, OF_RUN, run.kv, run.barriers)
    if run.generation is not None:
        yield from keys_of_generation(run, run.generation)


def keys_of_generation(run: Run, generation: Generation) -> Iterator[Key]:
    """All records of a run's generation."""
    yield ("generation", run.id)
    yield ("end", run.id)
    yield from keys_of_space(run.id, OF_GENERATION, generation.kv, generation.barriers)
    for name in generation.ids.groups:
        yield ("nccl", run.id, name)


def keys_of_space(run_id: str, scope: int, kv: Namespace, barriers: Barriers) -> Iterator[Key]:
    """Keys and barriers of a run or of its generation."""
    yield ("revision", run_id, scope)
    for name in kv.names():
        yield ("key", run_id, scope, name)
    for barrier in barriers.all():
        yield ("barrier", run_id, scope, barrier.name)
        for decision in barrier.decisions:
            yield ("decision", run_id, scope, barrier.name, decision.round)


def _of_run(run: Run, kind: str, rest: list[str | int]) -> bytes | None:
    generation = run.generation
    if kind == "run":
        return pack(_run(run))
    if kind in ("generation", "end"):
        if generation is None:
            return None
        return pack(_generation(generation) if kind == "generation" else _end(generation))
    if kind == "nccl":
        group = None if generation is None else generation.ids.groups.get(str(rest[0]))
        return None if group is None else pack(_group(group))
    owner = run if rest[0] == OF_RUN else generation
    if owner is None:
        return None
    match kind, rest:
        case "revision", _:
            return pack(owner.kv.revision)
        case "key", [_, str(name)]:
            entry = owner.kv.find(name)
            return None if entry is None else pack(stored.StoredEntry(entry.revision, entry.value))
        case "barrier", [_, str(name)]:
            barrier = owner.barriers.find(name)
            if barrier is None:
                return None
            return pack(stored.StoredBarrier(barrier.where, barrier.round, barrier.had))
        case "decision", [_, str(name), int(number)]:
            barrier = owner.barriers.find(name)
            decision = None if barrier is None else barrier.decision(number)
            if decision is None:
                return None
            terms = decision.terms
            members = None if terms.members is None else sorted(terms.members)
            reply = codec.encode_tail(decision.reply)
            return pack(
                stored.StoredDecision(
                    terms.of, terms.needed, members, reply, list(decision.answered)
                )
            )
        case _:
            raise AssertionError(f"no such record: {kind} {rest}")


def _session(session: Session) -> stored.StoredSession:
    member = session.member
    return stored.StoredSession(
        role=session.role.value,
        run=session.run_id,
        node_id=session.node_id,
        name=session.name,
        incarnation=session.incarnation,
        token_hash=session.token_hash,
        lease_s=session.lease_s,
        client=session.client,
        acknowledged=session.acknowledged,
        fence=session.fence,
        rank=session.rank,
        worker_hashes=list(session.worker_hashes),
        member=None
        if member is None
        else stored.StoredMember(
            member.order,
            member.seat,
            member.hint if member.rival is None else None,  # it is another one's, until he is gone
            member.finished,
        ),
    )


def _run(run: Run) -> stored.StoredRun:
    over = run.phase in (Phase.ENDED, Phase.CLOSED)
    return stored.StoredRun(
        number=run.number,
        # That the minimum is there depends on who waits, and they ask again after a restart.
        phase=(Phase.FORMING if run.phase is Phase.LAST_CALL else run.phase).value,
        policy=run.policy,
        policy_from=run.policy_from,
        expected=list(run.expected),
        last_ended=run.last_ended,
        formed=run.formed,
        departed=list(run.departed),
        departed_order=run.departed_order,
        arrivals=run.arrivals,
        reason=run.reason if over else "",
        kv_over=run.kv_over,
    )


def _generation(generation: Generation) -> stored.StoredGeneration:
    return stored.StoredGeneration(
        fence=generation.fence,
        participants=[
            stored.StoredParticipant(p.node_id, p.name, p.session_id, p.incarnation, p.address)
            for p in generation.participants
        ],
        digest=generation.digest,
        reason=generation.reason,
        master=generation.master,
        master_reason=generation.master_reason,
        served=generation.served,
    )


def _end(generation: Generation) -> stored.StoredEnd:
    return stored.StoredEnd(sorted(generation.finished), generation.ended)


def _group(group: Group) -> stored.StoredGroup:
    attempts = [r for r in group.records.values() if r.state is not State.OPEN]
    return stored.StoredGroup(
        floor=group.floor, next=group.next, attempts=[_attempt(record) for record in attempts]
    )


def _attempt(record: Record) -> stored.StoredAttempt:
    over = record.state.over
    why = record.failure
    ranks = [] if over else sorted(record.ranks.items())
    return stored.StoredAttempt(
        attempt=record.attempt,
        nranks=record.shape.nranks,
        n_ids=record.shape.n_ids,
        minter=record.shape.minter,
        by=record.by,
        state=record.state.value if over else "begun",
        code=0 if why is None else int(why.code),
        message="" if why is None else why.message,
        holders=[(number, rank.session_id, rank.who) for number, rank in ranks if rank.fetched],
        revoked=sorted(record.revoked),
    )
