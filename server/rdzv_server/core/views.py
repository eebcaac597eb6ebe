"""What members are told unasked: their view of the generation, and how the forming goes on."""

from rdzv_proto.messages import Progress, View, ViewChanged
from rdzv_server.core import words
from rdzv_server.core.model import Generation, Kind, Phase, Run, Session
from rdzv_server.core.quorum import seats
from rdzv_server.core.roster import expected_missing
from rdzv_server.core.tables import Tables

PROGRESS_S = 1.0
"""Progress goes to every waiting node, so N joins could cost N² pushes; once a second they do not."""


def view_of(run: Run, session: Session) -> View:
    """The view of one session: of the generation it is in, or of the one it was in last."""
    generation = run.generation
    if generation is None or not _belongs(generation, session):
        return View()
    return _view(run, generation)


def push_view(tables: Tables, run: Run) -> None:
    """Tell everyone who belongs to the run's generation how it stands."""
    generation = run.generation
    assert generation is not None, "a view of a generation that never was"
    sessions = [m.session for m in run.members.values() if m.session.id in generation.rank_of]
    sessions += [w for w in run.workers.values() if w.fence == generation.fence]
    tables.broadcast(sessions, ViewChanged(view=_view(run, generation)))


def progress(tables: Tables, run: Run, ends_at: float | None) -> None:
    """Tell all waiting joins how far the forming is, if that changed and a second has passed.

    Args:
        ends_at: when the wait ends one way or the other; None for no limit.
    """
    policy = run.policy
    if not run.joins or policy is None:
        run.progress_at = run.progress_told = None
        return
    if run.progress_at is None:
        run.progress_at = tables.t + PROGRESS_S
    if tables.t < run.progress_at:
        return
    run.progress_at = tables.t + PROGRESS_S
    standby = run.phase is Phase.LIVE
    joined = len(run.generation.participants) if standby and run.generation else run.counts.ready
    message = Progress(
        joined=joined,
        min_nodes=policy.min_nodes,
        max_nodes=policy.max_nodes,
        left_ms=None if ends_at is None else max(0, round((ends_at - tables.t) * 1000)),
        waiting_for=[] if standby else missing_names(run)[: words.NAMES_SHOWN_MAX],
        reason=run.reason,
        standby=standby,
    )
    told = (message.joined, tuple(message.waiting_for), message.reason, standby, len(run.joins))
    if told != run.progress_told:
        run.progress_told = told
        tables.broadcast([m.session for m in run.joins.values()], message)


def missing_names(run: Run) -> list[str]:
    """Nodes that a forming run waits for, as far as their names are known."""
    found: dict[str, None] = {}
    for member in run.members.values():
        if member.kind in (Kind.AWAITED_PRIOR, Kind.AWAITED_NEW):
            found[words.short(member)] = None
    ready_places = {m.seat for m in run.members.values() if m.ready}
    policy = run.policy
    if policy is not None and seats(policy, run.counts.ready) == 0:
        for place, seat in enumerate(run.seats):
            if place not in ready_places and seat.node_id not in run.members:
                found[words.short(seat)] = None
    if run.formed == 0:
        found.update(dict.fromkeys(expected_missing(run)))
    return list(found)


def _belongs(generation: Generation, session: Session) -> bool:
    return session.id in generation.rank_of or session.fence == generation.fence


def _view(run: Run, generation: Generation) -> View:
    if generation.ended is None:
        reason = run.reason if run.announced else ""
        return View(fence=generation.fence, waiting=run.announced, reason=reason)
    waiting = 0 if generation.ended.kind == "finished" else max(1, run.counts.ready)
    return View(fence=generation.fence, waiting=waiting, ended=generation.ended)
