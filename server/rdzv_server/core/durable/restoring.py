"""From records back to state: what a server begins with that resumes an earlier one.

Nobody is connected yet. Every session is under suspicion, and has a whole lease (or 2 ms for each session, if
there are thousands) to come back; what waited (joins, barriers, waits for keys) is asked again by those who wait.
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from rdzv_proto import codec
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import AnyReply, Error, Released
from rdzv_server.core import roster
from rdzv_server.core.durable import stored
from rdzv_server.core.durable.saving import OF_RUN
from rdzv_server.core.durable.stored import Key, unpack
from rdzv_server.core.kv import Entry, Namespace
from rdzv_server.core.model import Generation, Member, Participant, Phase, Role, Run, Session
from rdzv_server.core.nccl.ids import Group, Record, Shape, State
from rdzv_server.core.ranks import Seat
from rdzv_server.core.refusal import Refused
from rdzv_server.core.rounds import Barrier, Barriers, Decision, Terms
from rdzv_server.core.sessions import RECOVERY_S_PER_NODE
from rdzv_server.core.tables import Tables

KINDS = frozenset(
    (
        "meta", "fenced", "tomb", "run", "generation", "end", "session", "reply", "key", "revision",
        "barrier", "decision", "nccl", "seen", "lost",
    )
)  # fmt: skip
"""Of records."""


_NOT_READ = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What reading bytes that are no record can raise."""


class UnreadableError(Exception):
    """Records that this server does not understand; the text names one."""


def epoch_of(records: Mapping[bytes, bytes]) -> int | None:
    """The epoch that the records belong to; None if there are none of a server.

    Raises:
        UnreadableError
    """
    data = records.get(stored.key_bytes(("meta",)))
    return None if data is None else _unpack(("meta",), data, stored.StoredMeta).epoch


def in_new_epoch(records: Mapping[bytes, bytes], epoch: int) -> dict[bytes, bytes | None]:
    """What has to change so that no session and no generation goes on: for records of which some may be missing.
    Runs that are closed stay closed, keys of runs are kept, and no generation number is used twice.

    Raises:
        UnreadableError
    """
    changes: dict[bytes, bytes | None] = {}
    keys = {raw: _key(raw) for raw in records}
    runs = {key[1] for key in keys.values() if key[0] == "run"}
    for raw, data in records.items():
        key = keys[raw]
        match key:
            case ("run", _):
                run = _unpack(key, data, stored.StoredRun)
                if run.phase != Phase.CLOSED.value:
                    changes[raw] = stored.pack(replace(run, phase=Phase.ENDED.value, formed=0))
            case (("tomb" | "seen"), _):
                pass
            case (("key" | "revision"), run_id, 0, *_) if run_id in runs:
                pass
            case _:
                changes[raw] = None
    meta_key = stored.key_bytes(("meta",))
    reserved = floor = 0
    if meta_key in records:
        meta = _unpack(("meta",), records[meta_key], stored.StoredMeta)
        epoch, reserved = max(epoch, meta.epoch + 1), meta.sessions_reserved
        floor = meta.generation_floor
    changes[meta_key] = stored.pack(stored.StoredMeta(epoch, reserved, floor))
    return changes


def restore(tables: Tables, records: Mapping[bytes, bytes]) -> None:
    """Fill the tables of a server that has just begun, of the same epoch.

    Raises:
        UnreadableError: nothing can be done with these records.
    """
    by_kind: dict[str, list[tuple[Key, bytes]]] = {}
    for raw, data in sorted(records.items()):
        key = _key(raw)
        by_kind.setdefault(str(key[0]), []).append((key, data))
        if tables.saves is not None:
            tables.saves.remember(key, data)
    try:
        _fill(tables, by_kind)
    except (
        LookupError, TypeError, ValueError, AssertionError, codec.MalformedError, Refused,
    ) as error:  # fmt: skip
        raise UnreadableError(f"the records do not fit together: {error!r}") from None


def _key(raw: bytes) -> Key:
    try:
        key = stored.key_of(raw)
    except _NOT_READ:
        raise UnreadableError(f"record {raw[:64]!r} has no name that is known") from None
    if not key or key[0] not in KINDS:
        raise UnreadableError(f"record {key!r} is of a kind that is not known")
    return key


def _fill(tables: Tables, by_kind: dict[str, list[tuple[Key, bytes]]]) -> None:
    for key, data in by_kind.get("meta", []):
        meta = _unpack(key, data, stored.StoredMeta)
        tables.session_last = tables.sessions_reserved = meta.sessions_reserved
        tables.generation_floor = meta.generation_floor
    _memories(tables, by_kind)
    for key, data in by_kind.get("tomb", []):
        tables.tombstones[str(key[1])] = _unpack(key, data, int)
    for key, data in by_kind.get("run", []):
        _run(tables, str(key[1]), _unpack(key, data, stored.StoredRun))
    for key, data in by_kind.get("generation", []):
        run = tables.runs[str(key[1])]
        run.generation = _generation(tables, run, _unpack(key, data, stored.StoredGeneration))
    for key, data in by_kind.get("end", []):
        end = _unpack(key, data, stored.StoredEnd)
        generation = _generation_of(tables, str(key[1]))
        generation.finished, generation.ended = set(end.finished), end.ended
    _sessions(tables, by_kind.get("session", []))
    for key, data in by_kind.get("reply", []):
        reply = codec.decode_tail(data)
        tables.sessions[int(key[1])].replies[int(key[2])] = reply  # type: ignore[assignment]
    _spaces(tables, by_kind)
    for key, data in by_kind.get("nccl", []):
        ids = _generation_of(tables, str(key[1])).ids
        ids.groups[str(key[2])] = _group(
            tables, str(key[2]), _unpack(key, data, stored.StoredGroup)
        )
        tables.save(*key)
    for run in tables.runs.values():
        tables.touch(run)
        if run.phase in (Phase.ENDED, Phase.CLOSED):
            tables.deadlines.set(("forget", run.id, 0), tables.t + tables.settings.run_keep_s)


def _memories(tables: Tables, by_kind: dict[str, list[tuple[Key, bytes]]]) -> None:
    """Who may not come back, and which ids may not serve again."""
    for key, data in by_kind.get("fenced", []):
        old = tables.fenced[int(key[1])] = _unpack(key, data, stored.StoredFenced)
        tables.superseded[(old.run, old.node_id, old.incarnation)] = None
    for key, data in by_kind.get("lost", []):
        tables.lost[str(key[1]), str(key[2])] = _unpack(key, data, stored.StoredLost)
    for key, data in by_kind.get("seen", []):
        tables.ids_seen.enter(int(key[1]), _unpack(key, data, stored.StoredSeen))


def _run(tables: Tables, run_id: str, record: stored.StoredRun) -> None:
    run = tables.runs[run_id] = Run(run_id, record.number, phase_at=tables.t)
    run.phase = Phase(record.phase)
    run.policy, run.policy_from = record.policy, record.policy_from
    run.expected = dict.fromkeys(record.expected)
    run.last_ended = record.last_ended
    run.formed, run.arrivals = record.formed, record.arrivals
    run.departed, run.departed_order = list(record.departed), record.departed_order
    run.reason, run.kv_over = record.reason, record.kv_over
    run.forming_at = run.renewed_at = run.used_at = tables.t
    run.story.tell(tables.t, "the server resumed this run after a restart")


def _generation(tables: Tables, run: Run, record: stored.StoredGeneration) -> Generation:
    participants = tuple(
        Participant(p.node_id, p.name, p.session_id, p.incarnation, p.address)
        for p in record.participants
    )
    return Generation(
        fence=record.fence,
        participants=participants,
        rank_of={p.session_id: rank for rank, p in enumerate(participants)},
        digest=record.digest,
        reason=record.reason,
        master=record.master,
        master_reason=record.master_reason,
        formed_at=tables.t,
        kv=Namespace(run.quota),
        seats=tuple(Seat(p.node_id, p.name) for p in participants),
        served=record.served,
    )


def _sessions(tables: Tables, rows: list[tuple[Key, bytes]]) -> None:
    recovery_s = len(rows) * RECOVERY_S_PER_NODE
    members: list[tuple[Run, Session, stored.StoredMember]] = []
    for key, data in rows:
        record = _unpack(key, data, stored.StoredSession)
        session = Session(
            id=int(key[1]), role=Role(record.role), run_id=record.run, node_id=record.node_id,
            name=record.name, incarnation=record.incarnation, lease_s=record.lease_s,
            opened_at=tables.t, client=record.client, acknowledged=record.acknowledged,
            fence=record.fence, rank=record.rank, token_hash=record.token_hash,
            worker_hashes=tuple(record.worker_hashes),
        )  # fmt: skip
        session.heard_at = session.dropped_at = tables.t
        session.recover_until = tables.t + max(session.lease_s, recovery_s)
        tables.sessions[session.id] = session
        if session.role is Role.NODE:
            tables.nodes[(record.run, record.node_id)] = session
        else:
            tables.workers[(record.run, record.node_id, record.incarnation)] = session
            if record.run in tables.runs:
                tables.runs[record.run].workers[session.id] = session
        if record.member is not None:
            members.append((tables.runs[record.run], session, record.member))
        tables.deadlines.set(("session", session.id, 0), session.recover_until)
    for run, session, part in sorted(members, key=lambda row: row[2].order):
        member = session.member = Member(session, part.order)
        member.seat, member.finished = part.seat, part.finished
        roster.enter(run, member)
        # Who waited for another one's hint asks for it again.
        roster.take_hint(run, member, None if part.hint in run.hints else part.hint, None)
        roster.recount(run, member)
        run.seen[member.node_id] = None


def _spaces(tables: Tables, by_kind: dict[str, list[tuple[Key, bytes]]]) -> None:
    for key, data in by_kind.get("key", []):
        entry = _unpack(key, data, stored.StoredEntry)
        kv, _ = _space(tables, key)
        kv.restore(str(key[3]), Entry(entry.value, entry.revision))
    for key, data in by_kind.get("revision", []):
        kv, _ = _space(tables, key)
        kv.revision = _unpack(key, data, int)
    for key, data in by_kind.get("barrier", []):
        record = _unpack(key, data, stored.StoredBarrier)
        _, barriers = _space(tables, key)
        name = str(key[3])
        barriers.add(Barrier(name, record.where, round=record.round, had=dict(record.had)))
    for key, data in by_kind.get("decision", []):
        _, barriers = _space(tables, key)
        barrier = barriers.find(str(key[3]))
        assert barrier is not None, f"a decision of no barrier: {key}"
        _decision(tables, barrier, int(key[4]), _unpack(key, data, stored.StoredDecision))


def _decision(tables: Tables, barrier: Barrier, number: int, record: stored.StoredDecision) -> None:
    reply: AnyReply | object = codec.decode_tail(record.reply)
    assert isinstance(reply, Released | Error), f"no decision of a barrier: {reply!r}"
    members = None if record.members is None else frozenset(record.members)
    answered = tuple((session, request) for session, request in record.answered)
    terms = Terms(record.of, record.needed, members)
    barrier.decisions.append(Decision(number, terms, reply, answered))
    for session_id, request_id in answered:
        session = tables.sessions.get(session_id)
        if session is not None and request_id > session.acknowledged:
            session.record(request_id, reply, apart=True)


def _group(tables: Tables, name: str, record: stored.StoredGroup) -> Group:
    """Ids are not stored. So an attempt that was under way has failed: whoever holds one of its ids is told when
    it comes back, and whoever waited learns it when it asks again."""
    group = Group(next=dict(record.next), floor=record.floor)
    for old in record.attempts:
        shape = Shape(old.nranks, old.n_ids, old.minter)
        attempt = Record(name, old.attempt, 0, shape, old.by, tables.t, 0.0, since=tables.t)
        attempt.state = State.SPENT if old.state == State.SPENT.value else State.FAILED
        attempt.digests = [b""] * shape.n_ids  # whoever puts once more learns how it ended
        attempt.revoked = set(old.revoked)
        if old.code:
            attempt.failure = Refused(ErrorCode(old.code), old.message)
        elif attempt.state is State.FAILED:
            text = "the server was restarted before all ranks were ready, and no id outlives it"
            attempt.failure = Refused(
                ErrorCode.ID_FAILED, f"attempt {old.attempt} of communicator {name!r}: {text}"
            )
            attempt.revoked = {session for _, session, _ in old.holders}
            for number, _, _ in old.holders:
                group.next[number] = max(group.next.get(number, 0), old.attempt + 1)
        group.records[old.attempt] = attempt
    return group


def _space(tables: Tables, key: Key) -> tuple[Namespace, Barriers]:
    run_id, scope = str(key[1]), key[2]
    owner = tables.runs[run_id] if scope == OF_RUN else _generation_of(tables, run_id)
    return owner.kv, owner.barriers


def _generation_of(tables: Tables, run_id: str) -> Generation:
    generation = tables.runs[run_id].generation
    assert generation is not None, f"run {run_id!r} has no generation"
    return generation


def _unpack(key: Key, data: bytes, kind: type[stored.T]) -> stored.T:
    try:
        return unpack(data, kind)
    except _NOT_READ as error:
        raise UnreadableError(f"record {key}: {error}") from None
