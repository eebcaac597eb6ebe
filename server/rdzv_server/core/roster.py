"""Counting: which member is of which kind, kept in step at each change, so that asking is O(1)."""

from rdzv_server.core.model import Kind, Member, Run
from rdzv_server.core.quorum import Roster
from rdzv_server.core.ranks import Candidate


def kind_of(member: Member) -> Kind:
    """What a member is to the quorum decision."""
    if member.finished or member.rival is not None:
        return Kind.ASIDE
    if member.join is not None and not member.session.suspect:
        return Kind.READY_NEW if member.seat is None else Kind.READY_PRIOR
    return Kind.AWAITED_NEW if member.seat is None else Kind.AWAITED_PRIOR


def enter(run: Run, member: Member) -> None:
    """A new member of the run."""
    run.members[member.node_id] = member
    member.kind = kind_of(member)
    run.tally[member.kind] += 1


def recount(run: Run, member: Member) -> None:
    """Something about the member changed."""
    kind = kind_of(member)
    if kind is not member.kind:
        run.tally[member.kind] -= 1
        run.tally[kind] += 1
        member.kind = kind


def leave(run: Run, member: Member) -> None:
    """The member is gone."""
    release_hint(run, member)
    run.tally[member.kind] -= 1
    del run.members[member.node_id]
    run.joins.pop(member.node_id, None)


def take_hint(run: Run, member: Member, hint: int | None, rival: Member | None) -> None:
    """Note the rank hint of a join; with a rival it only counts once that one is gone."""
    release_hint(run, member)
    member.hint, member.rival = hint, rival
    if rival is not None:
        run.rivals[member.node_id] = member
    elif hint is not None:
        run.hints[hint] = member


def release_hint(run: Run, member: Member) -> None:
    """The member holds or claims its rank hint no longer; who waited for it gets it."""
    run.rivals.pop(member.node_id, None)
    member.rival = None
    hint, member.hint = member.hint, None
    if hint is None or run.hints.get(hint) is not member:
        return
    del run.hints[hint]
    heir = next((m for m in run.rivals.values() if m.rival is member), None)
    if heir is not None:
        take_hint(run, heir, hint, None)
        recount(run, heir)
    for other in run.rivals.values():
        if other.rival is member:
            other.rival = heir


def expected_missing(run: Run) -> list[str]:
    """Names from `expected_nodes` that no ready member bears."""
    if not run.expected:
        return []
    here = {
        name
        for member in run.members.values()
        if member.ready
        for name in (member.name, member.node_id)
    }
    return [name for name in run.expected if name not in here]


def roster_of(run: Run, joins_end_at: float) -> Roster:
    """The run as the quorum decision sees it."""
    tally = run.counts
    enough = run.policy is not None and tally.ready >= run.policy.min_nodes
    return Roster(
        tally=tally,
        candidates=lambda: [
            Candidate(m.node_id, m.name, m.order, m.seat, m.hint)
            for m in run.joins.values()
            if m.ready
        ],
        first=run.formed == 0,
        min_met_at=run.min_met_at,
        joins_end_at=joins_end_at,
        expected_missing=len(expected_missing(run)) if run.expected and enough else None,
        last=run.seats,
    )
