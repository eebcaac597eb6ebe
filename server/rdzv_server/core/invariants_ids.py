"""What must hold of unique ids between any two steps of the core: a part of `invariants`."""

from functools import lru_cache

import msgspec

from rdzv_proto import limits
from rdzv_proto.messages import NcclIds
from rdzv_server.core.events import Effect, Release, Send
from rdzv_server.core.nccl import unique_id
from rdzv_server.core.nccl.ids import Record, State
from rdzv_server.core.tables import Tables

_digest = lru_cache(maxsize=64)(unique_id.digest)
"""Asked of the same few ids after every step."""


def check_record(tables: Tables, record: Record) -> None:
    """One attempt to make one communicator."""
    state, ids, ranks = record.state, record.ids, record.ranks
    if state.over:
        assert not ids, f"S22: {_name(record)} is over and its ids are still here"
        assert not record.waits, f"L3: somebody waits for {_name(record)}, which is over"
        return
    there = 0
    for raw, digest in zip(ids, record.digests, strict=True):
        assert bool(raw) == bool(digest), f"S19: {_name(record)} has an id without its fingerprint"
        if raw:
            there += 1
            assert len(raw) == limits.NCCL_ID_BYTES, (
                f"S19: an id of {_name(record)} has a wrong size"
            )
            assert _digest(raw) == digest, f"S19: an id of {_name(record)} was overwritten"
    complete = there == record.shape.n_ids
    published = state is State.PUBLISHED
    assert complete == published, f"S20: {_name(record)} is {state.value}, {there} ids"
    assert not (published and record.waits), (
        f"S24: somebody waits for {_name(record)}, which is published"
    )
    ready = 0
    for number, rank in ranks.items():
        here = rank.session_id in tables.sessions
        assert here or not published, f"S21: {_name(record)} lives on without {rank.who}"
        assert complete or not rank.fetched, (
            f"S20: {_name(record)}: rank {number} has ids too early"
        )
        assert number in record.of_session[rank.session_id], "ranks and sessions disagree"
        ready += rank.ready
    assert record.unready == record.shape.nranks - ready > 0, f"{_name(record)} is spent, unnoticed"


def _name(record: Record) -> str:
    return f"{record.group!r} attempt {record.attempt}"


def check_slots(tables: Tables) -> None:
    """S18: one id, one slot."""
    records = _active(tables)
    if len(records) < 2 and all(len(record.digests) < 2 for record in records):
        return
    seen: set[bytes] = set()
    for record in records:
        for digest in filter(None, record.digests):
            assert digest not in seen, f"S18: an id of {record.group!r} is in two slots"
            seen.add(digest)


def check_secrets(tables: Tables, effects: list[Effect], only: str | None = None) -> None:
    """Ids go to those who asked for them and to nobody else (S20, S22).

    Args:
        only: of the runs, only this one was touched by the step.
    """
    active = _active(tables)
    secrets = [form for record in active for raw in record.ids if raw for form in _forms(raw)]
    for effect in effects:
        message = effect.message if isinstance(effect, Send | Release) else None
        if isinstance(message, NcclIds):
            if message.ids:
                published = (r.ids for r in active if r.state is State.PUBLISHED)
                assert message.ids in published, "S20: ids of no communicator"
            continue
        if not secrets:
            continue
        said = msgspec.msgpack.encode(effect)
        for form in secrets:
            assert form not in said, "S22: an id leaves in something else than its answer"
    if not secrets:
        return  # there is none that could have been recorded in this step
    for session in tables.sessions.values():
        if only is None or session.run_id == only:
            kinds = map(type, session.replies.values())
            assert NcclIds not in kinds, "S22: ids among the recorded replies"


@lru_cache(maxsize=64)
def _forms(raw: bytes) -> tuple[bytes, bytes, bytes]:
    """What an id would look like in something that is said: as it is, as Python shows bytes, and as a number."""
    head = raw[:8]
    return head, repr(head)[2:-1].encode(), head.hex().encode()


def _active(tables: Tables) -> list[Record]:
    found: list[Record] = []
    for run in tables.runs.values():
        if run.generation is not None:
            found += run.generation.ids.active()
    return found
