"""Requests on the unique ids of a generation's communicators: get, put, ready, fail.

Whatever NCCL itself would answer with a hang (ranks that disagree, an id that serves twice, a root
that nobody can reach) is refused here, to the one who is wrong, before anybody holds an id.
"""

import ipaddress

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyReply,
    Done,
    NcclFail,
    NcclGet,
    NcclIds,
    NcclPut,
    NcclReady,
)
from rdzv_server.core import waits, words
from rdzv_server.core.durable.stored import StoredSeen
from rdzv_server.core.kv import Waiter
from rdzv_server.core.model import Generation, Run, Session
from rdzv_server.core.nccl import ends as nccl_ends
from rdzv_server.core.nccl import unique_id
from rdzv_server.core.nccl import words as nccl_words
from rdzv_server.core.nccl.ids import Rank, Record, Shape, State, Wait
from rdzv_server.core.refusal import Refused
from rdzv_server.core.tables import Tables

Requests = NcclGet | NcclPut | NcclReady | NcclFail


def handle(tables: Tables, session: Session, request_id: int, ask: Requests) -> AnyReply | None:
    """Do a request; None if it waits.

    Raises:
        Refused: STALE_GENERATION, NOT_A_MEMBER, and what the single requests name.
    """
    run, generation = waits.generation_of(tables, session, ask.fence)
    if generation.ended is not None:  # in success: its keys still answer, its work is done
        raise Refused(ErrorCode.STALE_GENERATION, waits.stale_text(run, ask.fence))
    try:
        match ask:
            case NcclGet():
                return _get(tables, run, generation, session, request_id, ask)
            case NcclPut():
                return _put(tables, run, generation, session, ask)
            case NcclReady():
                return _ready(tables, run, generation, session, ask)
            case NcclFail():
                return _fail_by_rank(tables, run, generation, session, ask)
    finally:  # a refusal may be what tells a rank that it is done with an attempt
        for group in (ask.group, *generation.ids.dropped):
            tables.save("nccl", run.id, group)
        generation.ids.dropped.clear()


def _get(
    tables: Tables,
    run: Run,
    generation: Generation,
    session: Session,
    request_id: int,
    ask: NcclGet,
) -> AnyReply | None:
    """Raises ID_MISMATCH, NCCL_VERSION_MISMATCH, DUPLICATE_RANK, ALREADY_USED, ID_TIMEOUT,
    LIMIT_EXCEEDED, and with what an attempt failed."""
    ids = generation.ids
    waiter = (session.id, request_id)
    if ids.waiting(waiter):
        return None  # sent again after a reconnect
    shape = Shape.of(ask.nranks, ask.n_ids, ask.minter)
    if ask.rank >= ask.nranks:
        raise Refused(
            ErrorCode.DUPLICATE_RANK,
            f"rank {ask.rank} is not among the ranks 0 to {ask.nranks - 1} of communicator "
            f"{ask.group!r}",
        )
    attempt = ids.attempt_of(ask.group, ask.rank) if ask.attempt is None else ask.attempt
    record = ids.find(ask.group, attempt)
    if ids.forgotten(ask.group, attempt):
        raise Refused(
            ErrorCode.ALREADY_USED,
            f"attempt {attempt} of communicator {ask.group!r} is over for long",
        )
    if record is not None and record.state.over:
        raise nccl_ends.over(tables, generation, record, ask.rank, session)
    who = nccl_words.process(session)
    if record is None:
        record = ids.open(
            Record(
                ask.group,
                attempt,
                0,
                shape,
                f"rank {ask.rank} ({who})",
                tables.t,
                ask.init_timeout_ms / 1000,
                since=tables.t,
            )
        )
    _check_agreement(record, shape, ask, who)
    rank = ids.enter(record, ask.rank, Rank(session.id, who, host_of(session), tables.t))
    if ask.version and not record.version:
        record.version, record.version_by = ask.version, f"rank {ask.rank} ({who})"
    mint = [i for i in shape.slots(ask.rank) if not record.digests[i]]
    if mint:
        if rank.told_at is None:
            rank.told_at = tables.t
        if record.state is State.OPEN:
            record.state, record.since = State.MINTING, tables.t
        return NcclIds(attempt=attempt, mint=mint, version=record.version)
    if rank.ready:
        raise Refused(
            ErrorCode.ALREADY_USED,
            f"rank {ask.rank} of communicator {ask.group!r} is ready in attempt {attempt} already; the "
            "next one needs a new id",
        )
    if record.state is State.PUBLISHED:
        _check_reachable(tables, run, generation, record)
        rank.fetched = True
        return nccl_ends.ids_of(record)
    _park(tables, run, generation, session, record, waiter, ask)
    return None


def _park(
    tables: Tables,
    run: Run,
    generation: Generation,
    session: Session,
    record: Record,
    waiter: Waiter,
    ask: NcclGet,
) -> None:
    request_id = waiter[1]
    if ask.timeout_ms == 0:
        wait = Wait(waiter, ask.rank, 0.0)
        raise nccl_ends.no_id(tables, run, generation, record, wait)
    waits.park(session, request_id, NcclGet)
    generation.ids.wait(record, Wait(waiter, ask.rank, ask.timeout_ms / 1000))
    tables.deadlines.set(("wait", *waiter), tables.t + ask.timeout_ms / 1000)


def _put(
    tables: Tables, run: Run, generation: Generation, session: Session, ask: NcclPut
) -> AnyReply:
    """Raises MALFORMED, UNROUTABLE_ROOT, DUPLICATE_ID, ID_MISMATCH, ALREADY_USED, and with what the
    attempt failed."""
    record = _record(generation, ask.group, ask.attempt)
    if ask.index >= record.shape.n_ids:
        raise Refused(
            ErrorCode.MALFORMED,
            f"communicator {record.group!r} has the ids 0 to {record.shape.n_ids - 1}, not {ask.index}",
        )
    unique_id.check(ask.id)
    digest = unique_id.digest(ask.id)
    if record.digests[ask.index] == digest:
        return Done()
    leader = record.shape.leader(ask.index)
    if record.digests[ask.index]:
        raise Refused(
            ErrorCode.DUPLICATE_ID,
            f"{nccl_words.where(run, generation, record)}: id {ask.index} is there already, from "
            f"{nccl_words.rank(record, leader)}; the first one counts, that of rank {ask.rank} "
            "does not",
        )
    if record.state.over:
        raise nccl_ends.over(tables, generation, record, ask.rank, session)
    holder = record.ranks.get(leader)
    if ask.rank != leader or holder is None or holder.session_id != session.id:
        raise Refused(
            ErrorCode.ID_MISMATCH,
            f"{nccl_words.where(run, generation, record)}: id {ask.index} is minted by "
            f"{nccl_words.rank(record, leader)}, not by rank {ask.rank} "
            f"({nccl_words.process(session)})",
            "Put an id only after being told to mint it.",
        )
    seen = tables.ids_seen.find(digest)
    if seen is not None:
        place = seen.where if seen.run == run.id else "another run"
        raise Refused(
            ErrorCode.DUPLICATE_ID,
            f"{nccl_words.where(run, generation, record)}: the id of rank {ask.rank} was offered "
            f"before, for {place}; a second use would hang",
        )
    root = unique_id.root_of(ask.id)
    _check_loopback(run, generation, record, str(root) if root.loopback else "")
    tables.remember_id(StoredSeen(digest, run.id, nccl_words.where(run, generation, record)))
    if generation.ids.put(record, ask.index, ask.id, tables.t):
        _check_reachable(tables, run, generation, record)
        _published(tables, run, generation, record)
    return Done()


def _ready(
    tables: Tables, run: Run, generation: Generation, session: Session, ask: NcclReady
) -> AnyReply:
    """Raises MALFORMED, DUPLICATE_RANK, and with what the attempt failed."""
    record = _record(generation, ask.group, ask.attempt)
    if record.state is State.FAILED:
        raise nccl_ends.over(tables, generation, record, ask.rank, session)
    rank = _own_rank(record, session, ask.rank)
    if record.state is State.SPENT:
        return Done()
    if not rank.fetched:
        raise Refused(
            ErrorCode.MALFORMED,
            f"rank {ask.rank} of communicator {record.group!r} is ready without having its ids",
        )
    if generation.ids.ready(record, ask.rank):
        tables.deadlines.cancel(("nccl", run.id, record.serial))
        took_s = round(tables.t - record.since, 3)
        generation.ids.close(record, State.SPENT, tables.t)
        tables.report(
            "nccl_ready", run=run.id, fence=generation.fence, group=record.group,
            attempt=record.attempt, ranks=record.shape.nranks, took_s=took_s,
        )  # fmt: skip
    return Done()


def _fail_by_rank(
    tables: Tables, run: Run, generation: Generation, session: Session, ask: NcclFail
) -> AnyReply:
    record = _record(generation, ask.group, ask.attempt)
    record.revoked.discard(session.id)
    if record.state.over:
        return Done()
    rank = _own_rank(record, session, ask.rank)
    generation.ids.finish(record, ask.rank)
    reason = ask.reason or "no reason given"
    if record.state is State.PUBLISHED:
        code, what = ErrorCode.ID_FAILED, "could not make its communicator"
    else:
        code, what = ErrorCode.MINT_FAILED, "could not mint its id"
        if not record.shape.slots(ask.rank):
            what = "gave up before the ids were there"
    text = f"rank {ask.rank} ({rank.who}) {what}: {reason}"
    alone = len(record.of_session[session.id]) == 1
    nccl_ends.fail(tables, run, generation, record, code, text, but=session.id if alone else 0)
    return Done()


def host_of(session: Session) -> str:
    """Where a process runs, as the server sees it; empty: on the server's own host."""
    peer = session.peer_host
    try:
        beside = ipaddress.ip_address(peer.partition("%")[0]).is_loopback
    except ValueError:
        beside = False
    return "" if beside or peer == session.local_host else peer


def _check_agreement(record: Record, shape: Shape, ask: NcclGet, who: str) -> None:
    """NCCL itself would hang where these differ. Only the one who disagrees is told."""
    if shape != record.shape:
        raise Refused(
            ErrorCode.ID_MISMATCH,
            f"communicator {record.group!r}: rank {ask.rank} ({who}) says {shape}; {record.by}, which "
            f"came first, says {record.shape}",
        )
    if ask.version and record.version and ask.version != record.version:
        raise Refused(
            ErrorCode.NCCL_VERSION_MISMATCH,
            f"communicator {record.group!r}: rank {ask.rank} ({who}) has NCCL "
            f"{nccl_words.version(ask.version)}, {record.version_by} has "
            f"{nccl_words.version(record.version)}",
        )


def _published(tables: Tables, run: Run, generation: Generation, record: Record) -> None:
    tables.deadlines.set(("nccl", run.id, record.serial), tables.t + record.init_timeout_s)
    tables.report(
        "nccl_published", run=run.id, fence=generation.fence, group=record.group,
        attempt=record.attempt, ranks=record.shape.nranks, waiting=len(record.waits),
        after_s=round(tables.t - record.opened_at, 3),
        roots=words.names([unique_id.show(raw) for raw in record.ids]),
    )  # fmt: skip
    waiting = list(record.waits.values())
    for wait in waiting:
        generation.ids.drop(wait.waiter)
        record.ranks[wait.rank].fetched = True
    nccl_ends.answer(tables, waiting, nccl_ends.ids_of(record))


def _check_loopback(run: Run, generation: Generation, record: Record, root: str) -> None:
    if root and len(record.hosts) > 1:
        raise Refused(
            ErrorCode.UNROUTABLE_ROOT,
            f"{nccl_words.where(run, generation, record)}: the unique id's root is at {root}, which "
            f"only its own host can reach; the ranks are on {len(record.hosts)} hosts",
        )


def _check_reachable(tables: Tables, run: Run, generation: Generation, record: Record) -> None:
    """A rank on another host came after a root on loopback was published: nobody's init completes."""
    try:
        _check_loopback(run, generation, record, record.loopback)
    except Refused as refused:
        nccl_ends.fail(tables, run, generation, record, refused.code, refused.message)
        raise


def _record(generation: Generation, group: str, attempt: int) -> Record:
    record = generation.ids.find(group, attempt)
    if record is None:
        over = generation.ids.forgotten(group, attempt)
        raise Refused(
            ErrorCode.ALREADY_USED if over else ErrorCode.MALFORMED,
            f"attempt {attempt} of communicator {group!r} is over for long"
            if over
            else f"nobody asked for the ids of communicator {group!r}, attempt {attempt}",
        )
    return record


def _own_rank(record: Record, session: Session, number: int) -> Rank:
    rank = record.ranks.get(number)
    if rank is None or rank.session_id != session.id:
        holder = "nobody" if rank is None else rank.who
        raise Refused(
            ErrorCode.DUPLICATE_RANK,
            f"rank {number} of communicator {record.group!r} is {holder}, not "
            f"{nccl_words.process(session)}",
        )
    return rank
