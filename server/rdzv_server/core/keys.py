"""Reads of keys, of a generation or of the run itself. Those that wait are parked and answered by the write that
completes them (`key_writes`), by their deadline, or by the end of the generation, whichever comes first."""

from collections.abc import Iterable

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyReply,
    Done,
    Fence,
    KvCheck,
    KvCount,
    KvEntry,
    KvGet,
    KvList,
    KvMissing,
    KvMultiGet,
    KvNumber,
    KvPage,
    KvValue,
    KvValues,
    KvWait,
)
from rdzv_server.core import waits, words
from rdzv_server.core.durable.saving import OF_RUN, keys_of_space
from rdzv_server.core.kv import Entry, Namespace, Reading, Wait, keys_of
from rdzv_server.core.model import Run, Session
from rdzv_server.core.refusal import Refused
from rdzv_server.core.tables import Tables

Several = KvWait | KvMultiGet
"""Requests for several keys that may wait for them."""

Looking = KvCheck | KvCount | KvList
"""Requests that are answered at once and change nothing."""

_REPLY_BYTES_MAX = limits.FRAME_BYTES_MAX_CLIENT - limits.FRAME_BYTES_MAX_CONTROL


def get(tables: Tables, session: Session, request_id: int, ask: KvGet) -> KvValue | None:
    """Answer with a value, or wait for it (None).

    Raises:
        Refused: as `read`.
    """
    run, space = _space(tables, session, ask.fence, make=ask.timeout_ms > 0)
    entry = space.find(ask.key)
    if entry is not None:
        return KvValue(value=entry.value, revision=entry.revision)
    _wait(tables, session, request_id, ask, run, space)
    return None


def read(tables: Tables, session: Session, request_id: int, ask: Several) -> AnyReply | None:
    """Answer when all keys are there, at once or later (None).

    Raises:
        Refused: STALE_GENERATION, NOT_A_MEMBER, WAIT_TIMEOUT (no time was given), LIMIT_EXCEEDED.
    """
    run, space = _space(tables, session, ask.fence, make=ask.timeout_ms > 0)
    entries = space.get(ask.keys)
    if entries is not None:
        return _found(ask, entries)
    _wait(tables, session, request_id, ask, run, space)
    return None


def look(tables: Tables, session: Session, _request_id: int, ask: Looking) -> AnyReply:
    """Say what is there.

    Raises:
        Refused: STALE_GENERATION, NOT_A_MEMBER, UNKNOWN_RUN.
    """
    _, space = _space(tables, session, ask.fence, make=False)
    match ask:
        case KvCheck():
            return KvMissing(keys=space.missing(ask.keys))
        case KvCount():
            return KvNumber(value=space.count(ask.prefix))
        case KvList():
            return _page(space, ask)


def begin_life(tables: Tables, run: Run) -> None:
    """Keys of an earlier life of the run are not read in this one; those set since it ended are."""
    if run.kv_over:
        run.kv_over = False
        tables.save("run", run.id)
        tables.save_all(keys_of_space(run.id, OF_RUN, run.kv, run.barriers))
        run.kv.clear()


def wait_over(tables: Tables, session: Session, request_id: int) -> None:
    """A wait's time is up: say which keys are missing."""
    run = tables.runs.get(session.run_id)
    if run is None:
        return
    generation = run.generation
    spaces: list[tuple[Namespace, Fence | None]] = [(run.kv, None)]
    if generation is not None:
        spaces.append((generation.kv, generation.fence))
    for space, fence in spaces:
        wait = space.drop((session.id, request_id))
        if wait is not None:
            waited_s = wait.ask.timeout_ms / 1000
            refusal = _timeout(run, fence, wait.missing_in_order(), waited_s)
            tables.answer(session, request_id, refusal.reply(), keep=False)


def _space(
    tables: Tables, session: Session, fence: Fence | None, *, make: bool
) -> tuple[Run, Namespace]:
    """The key space that a request means: of a generation it is in, or of its run. A run that is not
    there is made only by those who wait (or write: `key_writes`), so that a wrong name is noticed."""
    if fence is not None:
        run, generation = waits.generation_of(tables, session, fence)
        return run, generation.kv
    if not make and session.run_id not in tables.runs:
        raise Refused(
            ErrorCode.UNKNOWN_RUN, f"there is no run {session.run_id!r}, and so it has no keys"
        )
    run = tables.use_run(session.run_id)
    return run, run.kv


def _wait(
    tables: Tables, session: Session, request_id: int, ask: Reading, run: Run, space: Namespace
) -> None:
    """Park a read until its keys are there, if it gives them time."""
    if ask.timeout_ms == 0:
        raise _timeout(run, ask.fence, space.missing([*dict.fromkeys(keys_of(ask))]), 0.0)
    waits.park(session, request_id, type(ask))
    waiter = (session.id, request_id)
    space.wait(waiter, ask)
    tables.deadlines.set(("wait", *waiter), tables.t + ask.timeout_ms / 1000)


def _page(space: Namespace, ask: KvList) -> KvPage:
    found = space.page(ask.prefix, ask.after, limits.KEYS_PER_PAGE_MAX + 1)
    entries: list[KvEntry] = []
    room = limits.PAGE_BYTES_MAX
    for key, entry in found[: limits.KEYS_PER_PAGE_MAX]:
        if ask.values:
            room -= len(entry.value)
            if room < 0 and entries:
                break
        entries.append(
            KvEntry(
                key=key,
                revision=entry.revision,
                value_bytes=len(entry.value),
                value=entry.value if ask.values else None,
            )
        )
    return KvPage(entries=entries, more=len(entries) < len(found), revision=space.revision)


def answer_woken(tables: Tables, space: Namespace, woken: Iterable[Wait]) -> None:
    """These waits are over: their keys are there."""
    for wait in woken:
        entries = space.get(keys_of(wait.ask))
        session = tables.sessions.get(wait.waiter[0])
        if session is not None and entries is not None:
            try:
                reply = _found(wait.ask, entries)
            except Refused as refused:
                reply = refused.reply()
            tables.answer(session, wait.waiter[1], reply, keep=False)


def _found(ask: Reading, entries: list[Entry]) -> AnyReply:
    match ask:
        case KvGet():
            return KvValue(value=entries[0].value, revision=entries[0].revision)
        case KvWait():
            return Done()
        case KvMultiGet():
            values = [entry.value for entry in entries]
            if sum(map(len, values)) > _REPLY_BYTES_MAX:
                raise Refused(
                    ErrorCode.LIMIT_EXCEEDED,
                    f"the {len(values)} values together exceed {_REPLY_BYTES_MAX} bytes",
                )
            return KvValues(values=values)


def _timeout(run: Run, fence: Fence | None, missing: Iterable[str], waited_s: float) -> Refused:
    shown = words.names([repr(key[:64]) for key in missing])
    where = words.place(run.id, fence)
    text = f"{where}: nobody set {shown} within {words.seconds(waited_s)}"
    return Refused(ErrorCode.WAIT_TIMEOUT, text if waited_s else f"{where} has no key {shown}")
