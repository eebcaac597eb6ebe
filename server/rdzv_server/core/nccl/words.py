"""How communicators, their ranks and what is missing are told, in errors and to tools."""

from rdzv_proto import limits
from rdzv_proto.messages import CommunicatorStatus
from rdzv_server.core import words
from rdzv_server.core.model import Generation, Role, Run, Session
from rdzv_server.core.nccl.ids import Record, State
from rdzv_server.core.tables import Tables

SHOWN_MAX = 256
"""Communicators in one answer; those in the making come first."""


def process(session: Session) -> str:
    """The process that has a rank in a communicator."""
    if session.role is Role.WORKER:
        return f"worker {session.rank} of {session.node_id}"
    return words.node(session)


def where(run: Run, generation: Generation, record: Record) -> str:
    """What it is about."""
    return (
        f"{words.place(run.id, generation.fence)}: communicator {record.group!r}"
        f"{f' attempt {record.attempt}' if record.attempt else ''}"
    )


def version(code: int) -> str:
    """`2.28.9` for NCCL's 22809."""
    major = 1000 if code < 10_000 else 10_000  # before 2.9: 2.8.4 is 2804
    return f"{code // major}.{code % major // 100}.{code % 100}"


def rank(record: Record, number: int) -> str:
    """A rank, with its process if it asked."""
    known = record.ranks.get(number)
    return f"rank {number}" if known is None else f"rank {number} ({known.who})"


def minters(tables: Tables, run: Run, generation: Generation, record: Record) -> str:
    """Who has not minted yet, and how that process is."""
    indices = record.to_mint
    leaders = list(dict.fromkeys(record.shape.leader(i) for i in indices))
    told = [_minter(tables, run, generation, record, n) for n in leaders[: words.NAMES_SHOWN_MAX]]
    more = len(leaders) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more > 0 else "")


def three_lists(record: Record) -> str:
    """Who fetched, who never asked, who never got ready."""
    fetched = [n for n, at in sorted(record.ranks.items()) if at.fetched]
    parts = [
        f"fetched: {_ranks(record, fetched, len(fetched))}",
        f"never asked: {_ranks(record, *record.without('asked'))}",
        f"not ready: {_ranks(record, *record.without('ready'))}",
    ]
    return "; ".join(parts)


def show(tables: Tables, run: Run) -> list[CommunicatorStatus]:
    """The communicators of a run's generation; never an id."""
    generation = run.generation
    records = [] if generation is None else generation.ids.records()
    records.sort(key=lambda r: (r.state.over, -r.serial))
    return [_status(tables, record) for record in records[:SHOWN_MAX]]


def _status(tables: Tables, record: Record) -> CommunicatorStatus:
    nranks = record.shape.nranks
    spent = record.state is State.SPENT
    fetched, ready = record.count("fetched"), record.count("ready")
    flag = "ready" if fetched == nranks else "fetched"
    if record.state in (State.OPEN, State.MINTING):
        flag = "asked"
    missing = [] if spent else record.without(flag)[0]
    first = record.shape.leader(record.to_mint[0] if record.to_mint else 0)
    return CommunicatorStatus(
        name=record.group,
        via="broker",
        state=record.state.value,
        attempt=record.attempt,
        minter=rank(record, first)[: limits.NAME_CHARS_MAX],
        fetched=fetched,
        ready=ready,
        needed=nranks,
        missing=[_missing(record, n)[: limits.NAME_CHARS_MAX] for n in missing],
        age_ms=max(0, round((tables.t - record.opened_at) * 1000)),
        reason="" if record.failure is None else record.failure.message[: limits.TEXT_CHARS_MAX],
    )


def _missing(record: Record, number: int) -> str:
    gone = record.gone.get(number)
    return rank(record, number) if gone is None else f"rank {number} (lost: {gone})"


def _ranks(record: Record, numbers: list[int], count: int) -> str:
    names = [_missing(record, n) for n in numbers[: words.NAMES_SHOWN_MAX]]
    more = count - len(names)
    return (", ".join(names) or "none") + (f" and {more} more" if more > 0 else "")


def _minter(tables: Tables, run: Run, generation: Generation, record: Record, number: int) -> str:
    known = record.ranks.get(number)
    if known is None:
        likely = _likely(tables, run, generation, record, number)
        if likely is None:
            return f"{_missing(record, number)}, which mints, has not asked yet"
        name = process(likely)
        return f"rank {number} ({name}), which mints, has not asked yet; {_health(tables, likely)}"
    told = ""
    if known.told_at is not None:
        told = f" {words.seconds(tables.t - known.told_at)} ago"
    session = tables.sessions.get(known.session_id)
    health = "it is gone" if session is None else _health(tables, session)
    return f"{rank(record, number)} was told to mint{told} and has not; {health}"


def _health(tables: Tables, session: Session) -> str:
    state = "its connection is closed" if session.suspect else "it is alive"
    return f"{state}, {words.heard(session, tables.t)}"


def _likely(
    tables: Tables, run: Run, generation: Generation, record: Record, number: int
) -> Session | None:
    """The process that should have a rank, if all others have in the communicator the rank that they
    have in the generation."""
    roles = set()
    for at, known in record.ranks.items():
        session = tables.sessions.get(known.session_id)
        if session is None:
            return None
        roles.add(session.role)
        is_worker = session.role is Role.WORKER
        if at != (session.rank if is_worker else generation.rank_of.get(session.id)):
            return None
    if roles == {Role.NODE} and number < len(generation.participants):
        return tables.sessions.get(generation.participants[number].session_id)
    if roles == {Role.WORKER}:
        return run.worker(number, generation.fence)
    return None
