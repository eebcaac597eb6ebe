"""What happens to the unique ids of a generation's communicators: handed out, spent, failed.

NCCL itself cannot tell a rank that another one is not coming: a root waits for ever, and so do the
ranks. So whatever goes wrong is told here, to all who hold an id or wait for one, at once. The server
never mints; it carries what an elected rank minted, to one communicator, once. Requests are in
`requests`.
"""

from collections.abc import Sequence

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import CommunicatorStatus, Error, NcclIds, NcclRevoked
from rdzv_server.core import words
from rdzv_server.core.model import Generation, Run, Session
from rdzv_server.core.nccl import words as nccl_words
from rdzv_server.core.nccl.ids import Record, State, Wait
from rdzv_server.core.refusal import Refused
from rdzv_server.core.tables import Tables


def show(tables: Tables, run: Run) -> list[CommunicatorStatus]:
    """For tools: state and counts of each communicator; never an id."""
    return nccl_words.show(tables, run)


def wait_over(tables: Tables, session: Session, request_id: int) -> bool:
    """A wait's time is up: say whose id it waited for. False if it is none of these waits."""
    run = tables.runs.get(session.run_id)
    generation = None if run is None else run.generation
    dropped = None if generation is None else generation.ids.drop((session.id, request_id))
    if run is None or generation is None or dropped is None:
        return False
    refusal = no_id(tables, run, generation, *dropped)
    tables.answer(session, request_id, refusal.reply(), keep=False)
    return True


def due(tables: Tables, run: Run, serial: int) -> None:
    """The ids are there for long and not all ranks are ready."""
    generation = run.generation
    record = None if generation is None else generation.ids.by_serial(serial)
    if generation is None or record is None or record.state is not State.PUBLISHED:
        return
    text = f"not all ranks got ready within {words.seconds(record.init_timeout_s)}; "
    fail(
        tables, run, generation, record, ErrorCode.ID_TIMEOUT, text + nccl_words.three_lists(record)
    )


def session_gone(tables: Tables, run: Run, session: Session, why: str) -> None:
    """A process is lost. Its ids lead nowhere, and those who hold them would wait for ever (S21)."""
    generation = run.generation
    if generation is None:
        return
    for record in list(generation.ids.of_session(session.id)):
        numbers = record.of_session[session.id]
        who = f"rank {numbers[0]} ({nccl_words.process(session)})"
        if record.state is State.PUBLISHED:
            text = f"{who} was lost before all ranks were ready: {why}"
            fail(tables, run, generation, record, ErrorCode.ID_FAILED, text, but=session.id)
        elif any(record.shape.slots(number) for number in numbers):
            text = f"{who}, which mints, was lost before all ids were there: {why}"
            fail(tables, run, generation, record, ErrorCode.MINTER_LOST, text, but=session.id)
        else:
            for waiter in [w for w in record.waits if w[0] == session.id]:
                generation.ids.drop(waiter)
                tables.deadlines.cancel(("wait", *waiter))
            generation.ids.release(record, session.id, why)
            tables.save("nccl", run.id, record.group)


def generation_over(tables: Tables, run: Run, generation: Generation, text: str) -> None:
    """Nothing of a generation's ids survives it (S11, S20)."""
    for record in generation.ids.active():
        fail(tables, run, generation, record, ErrorCode.STALE_GENERATION, text, quiet=True)


def resumed(tables: Tables, session: Session) -> None:
    """A push may have been lost while its session had no connection: tell it again."""
    run = tables.runs.get(session.run_id)
    generation = None if run is None else run.generation
    for record in [] if generation is None else generation.ids.records():
        if generation is not None and session.id in record.revoked:
            tables.push(session, _revocation(generation, record))


def fail(
    tables: Tables,
    run: Run,
    generation: Generation,
    record: Record,
    code: ErrorCode,
    text: str,
    *,
    but: int = 0,
    quiet: bool = False,
) -> None:
    """The attempt is over. Who waits gets an error, who holds ids gets a push (S21).

    Args:
        text: what happened, to whom.
        but: a session that knows, or is gone.
        quiet: the end of the generation is told to everybody anyhow.
    """
    where = nccl_words.where(run, generation, record)
    why = Refused(code, text if quiet else f"{where}: {text}")
    tables.save("nccl", run.id, record.group)
    holders = {r.session_id for r in record.ranks.values() if r.fetched} - {but}
    tables.deadlines.cancel(("nccl", run.id, record.serial))
    waits = generation.ids.close(record, State.FAILED, tables.t, why)
    for wait in waits:
        generation.ids.finish(record, wait.rank)
    answer(tables, waits, why.reply())
    if quiet:
        return
    tables.report(
        "nccl_failed", level="warning", run=run.id, fence=generation.fence, group=record.group,
        attempt=record.attempt, code=code.name, told=len(waits) + len(holders), reason=text,
    )  # fmt: skip
    told = [tables.sessions[i] for i in sorted(holders) if i in tables.sessions]
    for number, rank in record.ranks.items():
        if rank.session_id in holders:
            generation.ids.finish(record, number)
    record.revoked = {session.id for session in told}
    tables.broadcast(told, _revocation(generation, record))


def over(
    tables: Tables, generation: Generation, record: Record, number: int, session: Session
) -> Refused:
    """What somebody is told who comes to an attempt that is over."""
    record.revoked.discard(session.id)
    generation.ids.finish(record, number)
    age = words.seconds(tables.t - record.since)
    if record.failure is not None:
        why = record.failure
        return Refused(why.code, f"{why.message} ({age} ago)", why.action)
    return Refused(
        ErrorCode.ALREADY_USED,
        f"attempt {record.attempt} of communicator {record.group!r} is spent: all "
        f"{record.shape.nranks} ranks were ready {age} ago",
    )


def _revocation(generation: Generation, record: Record) -> NcclRevoked:
    why = record.failure
    return NcclRevoked(
        fence=generation.fence,
        group=record.group,
        attempt=record.attempt,
        code=ErrorCode.ID_FAILED if why is None else why.code,
        message="" if why is None else why.message,
    )


def no_id(tables: Tables, run: Run, generation: Generation, record: Record, wait: Wait) -> Refused:
    """A rank's patience is at its end: who owes it the id, and how that process is."""
    state = nccl_words.minters(tables, run, generation, record)
    return Refused(
        ErrorCode.ID_TIMEOUT,
        f"{nccl_words.where(run, generation, record)}: rank {wait.rank} has no id within "
        f"{words.seconds(wait.timeout_s)}: {state}",
    )


def ids_of(record: Record) -> NcclIds:
    """The ids, for a rank that asked for them."""
    return NcclIds(attempt=record.attempt, ids=list(record.ids), version=record.version)


def answer(tables: Tables, waits: Sequence[Wait], reply: NcclIds | Error) -> None:
    """Give all who waited the same answer. It is not recorded: one who missed it asks again."""
    waiting = [
        (tables.sessions[session_id], request_id)
        for session_id, request_id in (wait.waiter for wait in waits)
        if session_id in tables.sessions
    ]
    tables.release(waiting, reply, keep=False)
