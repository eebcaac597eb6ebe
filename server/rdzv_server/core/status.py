"""What tools see of the server: its health, the runs, the members. Read-only and paged."""

from rdzv_proto import agreement, limits
from rdzv_proto.auth import Grant
from rdzv_proto.messages import (
    Address,
    ListRuns,
    MemberPage,
    Members,
    MemberStatus,
    Runs,
    RunStatus,
    ServerStatus,
)
from rdzv_server.core import rights, words
from rdzv_server.core.model import Generation, Member, Run
from rdzv_server.core.tables import Tables
from rdzv_server.core.views import missing_names


def server_status(tables: Tables, grant: Grant) -> ServerStatus:
    """How the server is."""
    started = tables.t if tables.started_at is None else tables.started_at
    spoken = agreement.SPOKEN
    return ServerStatus(
        server=tables.identity.version,
        protocol=spoken.newest.version,
        protocol_min=spoken.oldest.version if spoken.protocol_max else 0,
        instance=tables.identity.instance,
        epoch=tables.identity.epoch,
        state=tables.settings.state,
        leader=tables.settings.leader,
        read_only=tables.read_only[: limits.TEXT_CHARS_MAX],
        uptime_ms=_ms(tables.t - started + tables.clock.stalled_s),
        stalls=tables.clock.stalls,
        stalled_ms=_ms(tables.clock.stalled_s),
        connections=len(tables.connections),
        sessions=len(tables.sessions),
        runs=sum(grant.covers(name) for name in tables.runs),
        denied=tables.denied,
    )


def list_runs(tables: Tables, grant: Grant, ask: ListRuns) -> Runs:
    """One page of the runs that somebody may see.

    Raises:
        Refused: UNKNOWN_RUN if one run was asked for that is not there.
    """
    if ask.only:
        return Runs(runs=[_run_status(tables, rights.run_seen(tables, grant, ask.only))])
    names = sorted(name for name in tables.runs if name > ask.after and grant.covers(name))
    page = names[: limits.RUNS_PER_PAGE_MAX]
    return Runs(
        runs=[_run_status(tables, tables.runs[name]) for name in page],
        more=len(names) > len(page),
    )


def members(tables: Tables, grant: Grant, ask: Members) -> MemberPage:
    """One page of the members: participants of the live generation by rank, then by arrival.

    Raises:
        Refused: UNKNOWN_RUN.
    """
    run = rights.run_seen(tables, grant, ask.run)
    live = run.live
    rank_of = live.rank_of if live is not None else {}
    rows = sorted(
        run.members.values(),
        key=lambda m: (rank_of.get(m.session.id, limits.MEMBERS_PER_RUN_MAX), m.order),
    )
    page = rows[ask.offset : ask.offset + limits.MEMBERS_PER_PAGE_MAX]
    return MemberPage(
        fence=run.fence,
        members=[_member_status(tables, live, m) for m in page],
        total=len(rows),
    )


def _run_status(tables: Tables, run: Run) -> RunStatus:
    live = run.live
    participants = 0 if live is None else len(live.participants)
    return RunStatus(
        run=run.id,
        phase="idle" if run.policy is None else run.phase.value,
        phase_age_ms=_ms(tables.t - run.phase_at),
        fence=run.fence,
        policy=run.policy,
        members=len(run.members),
        participants=participants,
        standbys=len(run.joins) if live is not None else 0,
        finished=sum(m.finished for m in run.members.values()),
        waiting_for=missing_names(run)[: words.NAMES_SHOWN_MAX] if run.forming else [],
        reason=run.reason[: limits.TEXT_CHARS_MAX],
        ended=run.last_ended,
    )


def _member_status(tables: Tables, live: Generation | None, member: Member) -> MemberStatus:
    session = member.session
    rank = None if live is None else live.rank_of.get(session.id)
    address = Address() if member.join is None else member.join.address
    if live is not None and rank is not None:
        address = live.participants[rank].address
    return MemberStatus(
        node_id=session.node_id,
        name=session.name,
        state=_state(live, member, rank),
        group_rank=rank,
        incarnation_age_ms=_ms(tables.t - session.opened_at),
        heard_ms_ago=_ms(tables.t - session.heard_at),
        address=address,
        peer=session.peer_host,
        client=session.client,
        protocol=session.protocol,
    )


def _state(live: Generation | None, member: Member, rank: int | None) -> str:
    if member.session.suspect:
        return "suspect"
    if member.finished:
        return "finished"
    if member.join is not None:
        return "joining" if live is None else "standby"
    return "idle" if rank is None else "participant"


def _ms(duration_s: float) -> int:
    return max(0, round(duration_s * 1000))
