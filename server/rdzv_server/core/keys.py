"""Requests on the keys of a generation. Waiting ones are parked and answered by the write that
completes them, by their deadline, or by the end of the generation, whichever comes first."""

from collections.abc import Iterable

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyReply,
    Done,
    Fence,
    KvAdd,
    KvGet,
    KvMultiGet,
    KvMultiSet,
    KvNumber,
    KvSet,
    KvValue,
    KvValues,
    KvWait,
)
from rdzv_server.core import generations, words
from rdzv_server.core.kv import Reading, Wait, keys_of
from rdzv_server.core.model import Generation, Role, Run, Session
from rdzv_server.core.refusal import Refused
from rdzv_server.core.tables import Tables

Writing = KvSet | KvAdd | KvMultiSet

_REPLY_BYTES_MAX = limits.FRAME_BYTES_MAX_CLIENT - limits.FRAME_BYTES_MAX_CONTROL


def read(tables: Tables, session: Session, request_id: int, ask: Reading) -> AnyReply | None:
    """Answer a read, or park it until its keys are there (None).

    Raises:
        Refused: STALE_GENERATION, NOT_A_MEMBER, WAIT_TIMEOUT (no time was given), LIMIT_EXCEEDED.
    """
    run, generation = _generation(tables, session, ask.fence)
    keys = keys_of(ask)
    values = generation.kv.get(keys)
    if values is not None:
        return _found(ask, values)
    if ask.timeout_ms == 0:
        raise _timeout(run, ask.fence, generation.kv.missing(keys), 0.0)
    waiter = (session.id, request_id)
    if request_id not in session.parked:
        _check_parked(session)
        session.parked.add(request_id)
        generation.kv.wait(waiter, ask)
        tables.deadlines.set(("wait", *waiter), tables.t + ask.timeout_ms / 1000)
    return None


def write(tables: Tables, session: Session, ask: Writing) -> AnyReply:
    """Do a write and answer the reads that it completes.

    Raises:
        Refused: STALE_GENERATION, NOT_A_MEMBER, LIMIT_EXCEEDED, NOT_A_NUMBER, MALFORMED.
    """
    _, generation = _generation(tables, session, ask.fence)
    reply: AnyReply = Done()
    match ask:
        case KvSet():
            woken = generation.kv.set((ask.key,), (ask.value,))
        case KvAdd():
            total, woken = generation.kv.add(ask.key, ask.delta)
            reply = KvNumber(value=total)
        case KvMultiSet():
            if len(ask.keys) != len(ask.values):
                raise Refused(
                    ErrorCode.MALFORMED, f"{len(ask.keys)} keys and {len(ask.values)} values"
                )
            woken = generation.kv.set(ask.keys, ask.values)
    _answer_woken(tables, generation, woken)
    return reply


def wait_over(tables: Tables, session: Session, request_id: int) -> None:
    """A wait's time is up: say which keys are missing."""
    run = tables.runs.get(session.run_id)
    if run is None or run.generation is None:
        return
    generation = run.generation
    wait = generation.kv.drop((session.id, request_id))
    if wait is not None:
        waited_s = wait.ask.timeout_ms / 1000
        refusal = _timeout(run, generation.fence, wait.missing, waited_s)
        tables.answer(session, request_id, refusal.reply(), keep=False)


def _answer_woken(tables: Tables, generation: Generation, woken: Iterable[Wait]) -> None:
    for wait in woken:
        tables.deadlines.cancel(("wait", *wait.waiter))
        values = generation.kv.get(keys_of(wait.ask))
        session = tables.sessions.get(wait.waiter[0])
        if session is not None and values is not None:
            try:
                reply = _found(wait.ask, values)
            except Refused as refused:
                reply = refused.reply()
            tables.answer(session, wait.waiter[1], reply, keep=False)


def _found(ask: Reading, values: list[bytes]) -> AnyReply:
    match ask:
        case KvGet():
            return KvValue(value=values[0])
        case KvWait():
            return Done()
        case KvMultiGet():
            if sum(map(len, values)) > _REPLY_BYTES_MAX:
                raise Refused(
                    ErrorCode.LIMIT_EXCEEDED,
                    f"the {len(values)} values together exceed {_REPLY_BYTES_MAX} bytes",
                )
            return KvValues(values=values)


def _generation(tables: Tables, session: Session, fence: Fence) -> tuple[Run, Generation]:
    run = tables.runs.get(session.run_id)
    if run is None:
        raise Refused(ErrorCode.STALE_GENERATION, f"run {session.run_id!r} is over")
    generation = generations.usable(run, fence)
    inside = (
        session.fence == fence
        if session.role is Role.WORKER
        else session.id in (generation.rank_of)
    )
    if not inside:
        raise Refused(
            ErrorCode.NOT_A_MEMBER,
            f"node {session.node_id!r} is not in generation {fence} of run {run.id!r}",
        )
    return run, generation


def _check_parked(session: Session) -> None:
    if len(session.parked) >= limits.PARKED_PER_SESSION_MAX:
        raise Refused(
            ErrorCode.LIMIT_EXCEEDED,
            f"{limits.PARKED_PER_SESSION_MAX} requests of this session wait already",
        )


def _timeout(run: Run, fence: Fence, missing: Iterable[str], waited_s: float) -> Refused:
    shown = words.names([repr(key[:64]) for key in missing])
    return Refused(
        ErrorCode.WAIT_TIMEOUT,
        f"run {run.id!r} generation {fence}: nobody set {shown} within {words.seconds(waited_s)}",
    )
