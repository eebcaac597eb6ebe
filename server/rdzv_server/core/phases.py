"""Where a run can go from where it is. A pair that is absent is a fault of the server.

ENDED ── JOINED ──► FORMING ◄── MIN_UNMET ── LAST_CALL ── FORMED ──► LIVE
  ▲                    │ ───── MIN_MET ─────────►                     │
  │◄──── EMPTIED ──────┤◄────────────── GENERATION_ENDED ─────────────┤
  │◄───────────────────┴──────────── COMPLETED ───────────────────────┘
any ── CLOSED ──► CLOSED ── JOINED (its keep time is over) ──► FORMING
"""

import enum

from rdzv_server.core.model import Phase, Run
from rdzv_server.core.tables import Tables


class Cause(enum.Enum):
    """What moves a run from one phase to the next."""

    JOINED = "joined"
    """The first join of a life of the run."""
    MIN_MET = "min_met"
    MIN_UNMET = "min_unmet"
    FORMED = "formed"
    GENERATION_ENDED = "generation_ended"
    COMPLETED = "completed"
    """All participants finished."""
    EMPTIED = "emptied"
    """No unfinished member is left."""
    CLOSED = "closed"


TRANSITIONS: dict[tuple[Phase, Cause], Phase] = {
    (Phase.ENDED, Cause.JOINED): Phase.FORMING,
    (Phase.CLOSED, Cause.JOINED): Phase.FORMING,
    (Phase.FORMING, Cause.MIN_MET): Phase.LAST_CALL,
    (Phase.LAST_CALL, Cause.MIN_UNMET): Phase.FORMING,
    (Phase.LAST_CALL, Cause.FORMED): Phase.LIVE,
    (Phase.LIVE, Cause.GENERATION_ENDED): Phase.FORMING,
    (Phase.LIVE, Cause.COMPLETED): Phase.ENDED,
    (Phase.FORMING, Cause.EMPTIED): Phase.ENDED,
    (Phase.LAST_CALL, Cause.EMPTIED): Phase.ENDED,
    (Phase.FORMING, Cause.CLOSED): Phase.CLOSED,
    (Phase.LAST_CALL, Cause.CLOSED): Phase.CLOSED,
    (Phase.LIVE, Cause.CLOSED): Phase.CLOSED,
    (Phase.ENDED, Cause.CLOSED): Phase.CLOSED,
}


class InvalidTransitionError(AssertionError):
    """The server's own fault. The text holds the run's story, which reproduces it."""


def move(tables: Tables, run: Run, cause: Cause) -> None:
    """Take a run to its next phase.

    Raises:
        InvalidTransitionError: if the pair is not in the table.
    """
    after = TRANSITIONS.get((run.phase, cause))
    if after is None:
        raise InvalidTransitionError(
            f"run {run.id!r}: {cause.name} in phase {run.phase.name}; its story:\n{run.story}"
        )
    run.story.tell(tables.t, f"{run.phase.name} -> {after.name} ({cause.name})")
    run.phase, run.phase_at = after, tables.t
    tables.save("run", run.id)
    if after in (Phase.ENDED, Phase.CLOSED):
        run.kv_over = True
