"""What is said of barriers: which one, who is there, and who has not come."""

from rdzv_proto.errors import ErrorCode
from rdzv_server.core import words
from rdzv_server.core.model import Generation, Run, Session
from rdzv_server.core.refusal import Refused
from rdzv_server.core.rounds import Barrier, Terms
from rdzv_server.core.tables import Tables


def where(run: Run, generation: Generation | None) -> str:
    """Whose barrier it is."""
    return words.place(run.id, None if generation is None else generation.fence)


def title(barrier: Barrier) -> str:
    """Which barrier, and which round of it."""
    return f"barrier {barrier.name!r} of {barrier.where}, round {barrier.round}"


def who(session: Session, member: int, terms: Terms) -> str:
    """Who came, or wanted to."""
    if terms.of == "workers":
        return f"rank {member} on {words.node(session)}"
    return words.node(session, member if terms.of == "nodes" else None)


def describe(
    tables: Tables, run: Run, generation: Generation | None, of: str, missing: list[int]
) -> str:
    """The missing by node and rank, and what the server last heard of them."""
    shown = []
    for rank in missing[: words.NAMES_SHOWN_MAX]:
        name, state = member(tables, run, generation, of, rank)
        shown.append(f"{name}, {state}")
    more = len(missing) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def member(
    tables: Tables, run: Run, generation: Generation | None, of: str, rank: int
) -> tuple[str, str]:
    """Name and state of one member of a round."""
    session: Session | None = None
    if generation is not None and of == "nodes":
        participant = generation.participants[rank]
        name = words.node(participant, rank)
        session = tables.sessions.get(participant.session_id)
    else:
        fence = None if generation is None else generation.fence
        session = run.worker(rank, fence)
        name = f"rank {rank}" if session is None else f"rank {rank} on {words.node(session)}"
    if session is None:
        return name, "not connected to the server"
    state = "connection lost" if session.suspect else "alive"
    return name, f"{state}, {words.heard(session, tables.t)}"


def stranger(session: Session, barrier: Barrier, terms: Terms) -> Refused:
    """Somebody who does not take part in the open round."""
    return Refused(
        ErrorCode.NOT_A_MEMBER, f"{title(barrier)}: {words.node(session)} is not one of {terms}"
    )


def bad_round(barrier: Barrier, number: int | None) -> Refused:
    """A round that is over and forgotten, or not there yet."""
    kept = barrier.decisions[0].round if barrier.decisions else barrier.round
    return Refused(
        ErrorCode.BAD_ROUND,
        f"barrier {barrier.name!r} of {barrier.where}: round {number} is neither the open one "
        f"({barrier.round}) nor one of those that are remembered (from {kept})",
    )


def missing_names(
    tables: Tables, run: Run, generation: Generation | None, barrier: Barrier
) -> list[str]:
    """Who has not come to the open round, for people; at most `words.NAMES_SHOWN_MAX`."""
    of = "count" if barrier.terms is None else barrier.terms.of
    missing = barrier.missing()[: words.NAMES_SHOWN_MAX]
    return [member(tables, run, generation, of, rank)[0] for rank in missing]
