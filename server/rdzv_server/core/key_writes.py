"""Writes on keys, of a generation or of the run itself: a function for each kind. Each gives its answer, and answers
the reads that it completes.

All raise `Refused`: STALE_GENERATION, NOT_A_MEMBER, LIMIT_EXCEEDED, and what is said at each.
"""

from collections.abc import Sequence

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Done,
    Fence,
    KvAdd,
    KvAppend,
    KvCas,
    KvDelete,
    KvMultiSet,
    KvNumber,
    KvSet,
    KvSwapped,
)
from rdzv_server.core import keys
from rdzv_server.core.durable.saving import OF_GENERATION, OF_RUN
from rdzv_server.core.kv import Namespace, Wait
from rdzv_server.core.model import Session
from rdzv_server.core.refusal import Refused
from rdzv_server.core.tables import Tables
from rdzv_server.core.waits import generation_of


def put(tables: Tables, session: Session, _request_id: int, ask: KvSet) -> Done:
    """Set a key."""
    fence = ask.fence
    space = _own(tables, session) if fence is None else generation_of(tables, session, fence)[1].kv
    woken = space.put(ask.key, ask.value)
    if woken or tables.saves is not None:
        _written(tables, session, fence, space, (ask.key,), woken)
    return Done(revision=space.revision)


def add(tables: Tables, session: Session, _request_id: int, ask: KvAdd) -> KvNumber:
    """Add to a counter; NOT_A_NUMBER if it is none."""
    fence = ask.fence
    space = _own(tables, session) if fence is None else generation_of(tables, session, fence)[1].kv
    total, woken = space.add(ask.key, ask.delta)
    if woken or tables.saves is not None:
        _written(tables, session, fence, space, (ask.key,), woken)
    return KvNumber(value=total, revision=space.revision)


def put_several(tables: Tables, session: Session, _request_id: int, ask: KvMultiSet) -> Done:
    """Set several keys in one change; MALFORMED if a value is missing."""
    space = _space(tables, session, ask.fence)
    if len(ask.keys) != len(ask.values):
        raise Refused(ErrorCode.MALFORMED, f"{len(ask.keys)} keys and {len(ask.values)} values")
    woken = space.set(ask.keys, ask.values)
    _written(tables, session, ask.fence, space, ask.keys, woken)
    return Done(revision=space.revision)


def compare_and_set(tables: Tables, session: Session, _request_id: int, ask: KvCas) -> KvSwapped:
    """Set a key if it is as the client thinks; otherwise say what it is."""
    space = _space(tables, session, ask.fence)
    reply, woken = _compare_and_set(space, ask)
    _written(tables, session, ask.fence, space, (ask.key,), woken)
    return reply


def append(tables: Tables, session: Session, _request_id: int, ask: KvAppend) -> KvNumber:
    """Append to a value."""
    space = _space(tables, session, ask.fence)
    length, woken = space.append(ask.key, ask.value)
    _written(tables, session, ask.fence, space, (ask.key,), woken)
    return KvNumber(value=length, revision=space.revision)


def delete(tables: Tables, session: Session, _request_id: int, ask: KvDelete) -> KvNumber:
    """Delete keys; says how many there were."""
    space = _space(tables, session, ask.fence)
    found = space.delete(ask.keys)
    _written(tables, session, ask.fence, space, ask.keys, ())
    return KvNumber(value=found, revision=space.revision)


def _space(tables: Tables, session: Session, fence: Fence | None) -> Namespace:
    """The key space that a write means. `put` and `add`, which are most of all writes, have this line themselves."""
    return _own(tables, session) if fence is None else generation_of(tables, session, fence)[1].kv


def _own(tables: Tables, session: Session) -> Namespace:
    """The key space of the run itself, of this life of it."""
    run = tables.use_run(session.run_id)
    keys.begin_life(tables, run)
    return run.kv


def _compare_and_set(space: Namespace, ask: KvCas) -> tuple[KvSwapped, Sequence[Wait]]:
    entry = space.find(ask.key)
    if ask.revision is not None:
        good = ask.revision == (0 if entry is None else entry.revision)
    else:
        good = ask.expected == (None if entry is None else entry.value)
    if good:
        woken = space.put(ask.key, ask.value)
        return KvSwapped(swapped=True, value=ask.value, revision=space.revision), woken
    if entry is None:
        return KvSwapped(), ()
    return KvSwapped(value=entry.value, revision=entry.revision), ()


def _written(
    tables: Tables,
    session: Session,
    fence: Fence | None,
    space: Namespace,
    changed: Sequence[str],
    woken: Sequence[Wait],
) -> None:
    """Keys may have changed, and these waits are over. `put` and `add`, which are most of all writes, ask first whether
    there is anything to do: a call costs them a fiftieth."""
    if tables.saves is not None:
        scope = OF_RUN if fence is None else OF_GENERATION
        for key in changed:
            tables.save("key", session.run_id, scope, key)
        tables.save("revision", session.run_id, scope)
    if woken:
        keys.answer_woken(tables, space, woken)
