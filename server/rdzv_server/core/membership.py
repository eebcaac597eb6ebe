"""What nodes ask for: join, finish, leave, close. Each function does one request.

A request is answered at once by its return value, or later: a join returns None and its answer comes
when a generation forms.
"""

from rdzv_proto import limits
from rdzv_proto.auth import Grant
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    CloseRun,
    Done,
    Ended,
    Finished,
    Join,
    Joined,
    Leave,
    Notice,
    Policy,
)
from rdzv_server.core import generations, keys, rights, roster, words
from rdzv_server.core.model import Generation, Member, PendingJoin, Phase, Run, Session
from rdzv_server.core.phases import Cause, move
from rdzv_server.core.quorum import seats
from rdzv_server.core.refusal import Refused
from rdzv_server.core.tables import Tables
from rdzv_server.core.tcpstore import stores

DEFAULT_RUN_ID = "none"
"""torchrun's default for --rdzv-id: jobs that name no id would otherwise meet each other."""

_MUST_AGREE = ("min_nodes", "max_nodes", "node_unit", "worker_store")
_MAY_DIFFER = ("join_timeout_ms", "last_call_timeout_ms", "below_min")


def join(tables: Tables, session: Session, request_id: int, ask: Join) -> Joined | None:
    """Take part in the run's next generation.

    Returns:
        None when the join now waits; the live generation when the caller is in it already and does
        not know it yet.

    Raises:
        Refused: RUN_CLOSED, POLICY_MISMATCH, DUPLICATE_RANK, MALFORMED, LIMIT_EXCEEDED.
    """
    _check_possible(ask.policy)
    run = tables.open_run(session.run_id)
    _check_open(tables, run)
    _check_policy(tables, run, session, ask.policy)
    live = run.live
    if live is not None and session.id in live.rank_of:
        # An epoch that is not ours is over, however large its number: it came from another clock.
        last = ask.last if ask.last is not None and ask.last.epoch == live.fence.epoch else None
        if last is None or last < live.fence:
            if live.store is not None or not live.served:
                return generations.joined(tables, run, session)
            _end_without_store(tables, run, live)
        elif last > live.fence:
            raise Refused(ErrorCode.MALFORMED, f"generation {last} does not exist yet")
    member = session.member or _enter(tables, run, session)
    rival = _rank_rival(tables, run, member, ask.rank_hint)
    if run.live is not None and session.id in run.live.rank_of:
        generations.end(tables, run, _rejoined(tables, run, member))
    _park(tables, run, member, request_id, ask, rival)
    return None


def finished(tables: Tables, session: Session, ask: Finished) -> Done:
    """The node's work in this generation is done; also accepted just after its end.

    Raises:
        Refused: NOT_A_MEMBER, STALE_GENERATION.
    """
    run, member = _membership(tables, session)
    generation = run.generation
    if generation is None or generation.fence != ask.fence:
        raise Refused(ErrorCode.STALE_GENERATION, f"generation {ask.fence} is over")
    if session.id not in generation.rank_of:
        raise Refused(ErrorCode.NOT_A_MEMBER, f"this node is not in generation {ask.fence}")
    if member.join is not None:
        raise Refused(
            ErrorCode.STALE_GENERATION,
            f"generation {ask.fence} is over, and this node has asked for the next one",
        )
    generations.finish(tables, run, member)
    return Done()


def leave(tables: Tables, session: Session, ask: Leave) -> Done:
    """Leave in an orderly way. Leaving twice is fine."""
    run, member = tables.runs.get(session.run_id), session.member
    if run is None or member is None:
        generations.end_waits(tables, run, session, "it left")
        return Done()
    generation = run.generation
    in_world = generation is not None and session.id in generation.rank_of
    if ask.kind == "finished" and in_world:
        generations.finish(tables, run, member)
    rank = generation.rank_of.get(session.id) if generation is not None else None
    verb = {"finished": "finished", "failed": "failed", "drained": "was drained"}[ask.kind]
    text = f"{words.node(member, rank)} {verb}"
    if ask.exit_code is not None:
        text += f" with exit code {ask.exit_code}"
    if ask.detail:
        text += f": {ask.detail}"
    tables.report(
        "node_left", run=run.id, node=member.node_id, fence=run.fence, kind=ask.kind, reason=text
    )
    ended = Ended(
        kind=ask.kind,
        reason=text[: limits.TEXT_CHARS_MAX],
        node_id=member.node_id,
        exit_code=ask.exit_code,
    )
    generations.depart(tables, run, member, ended)
    return Done()


def close_run(tables: Tables, grant: Grant, run_id: str, who: str, ask: CloseRun) -> Done:
    """End the run for everybody; it refuses joins for its keep time.

    Raises:
        Refused: UNKNOWN_RUN.
    """
    run = rights.run_seen(tables, grant, run_id)
    if run.phase is Phase.CLOSED:
        return Done()
    reason = f"run {run.id!r} was closed by {who}" + (f": {ask.detail}" if ask.detail else "")
    reason = reason[: limits.TEXT_CHARS_MAX]
    generations.end(tables, run, Ended(kind="closed", reason=reason))
    move(tables, run, Cause.CLOSED)
    run.reason = reason
    generations.refuse_joins(tables, run, ErrorCode.RUN_CLOSED, reason)
    tables.report("run_closed", level="warning", run=run.id, fence=run.fence, reason=reason)
    tables.touch(run)
    return Done()


def _check_open(tables: Tables, run: Run) -> None:
    ago_s = tables.t - run.phase_at
    left_s = tables.settings.run_keep_s - ago_s
    if run.phase is Phase.CLOSED and left_s > 0:  # not longer, whoever still uses its keys
        raise Refused(
            ErrorCode.RUN_CLOSED,
            f"{run.reason} {words.seconds(ago_s)} ago; it refuses joins for another "
            f"{words.seconds(left_s)}",
        )


def _check_policy(tables: Tables, run: Run, session: Session, policy: Policy) -> None:
    """The first join of a run's life fixes the policy; later ones must agree (DESIGN 6.1)."""
    if run.phase in (Phase.ENDED, Phase.CLOSED) or run.policy is None:
        _begin_life(tables, run, session, policy)
        return
    fixed = run.policy
    compared = (*_MUST_AGREE, "owner") if run.id == DEFAULT_RUN_ID else _MUST_AGREE
    wrong = [name for name in compared if getattr(fixed, name) != getattr(policy, name)]
    if wrong:
        values = "; ".join(
            f"{name}: the run has {getattr(fixed, name)!r} (from {run.policy_from}), "
            f"{words.node(session)} asks for {getattr(policy, name)!r}"
            for name in wrong
        )
        tables.report(
            "policy_mismatch", level="warning", run=run.id, node=session.node_id,
            first=run.policy_from, reason=values,
        )  # fmt: skip
        advice = ""
        if "owner" in wrong:
            advice = "Give each job its own --rdzv-id: 'none' is torchrun's default for all jobs."
        raise Refused(ErrorCode.POLICY_MISMATCH, f"run {run.id!r}: {values}", advice)
    differs = [name for name in _MAY_DIFFER if getattr(fixed, name) != getattr(policy, name)]
    if differs and (session.member is None or session.member.join is None):
        tables.push(
            session,
            Notice(
                message="; ".join(
                    f"{name.removesuffix('_ms')}: the run keeps {getattr(fixed, name)!r} from its "
                    f"first node, {getattr(policy, name)!r} is not used"
                    for name in differs
                )
            ),
        )


def _check_possible(policy: Policy) -> None:
    if policy.worker_store not in stores.WORKER_STORES:
        raise Refused(
            ErrorCode.MALFORMED,
            f"worker_store is {policy.worker_store!r}; this server knows "
            f"{' and '.join(map(repr, stores.WORKER_STORES))}",
            "Choose one of them with --rdzv-conf=worker_store=…, or update the server.",
        )
    if policy.min_nodes > policy.max_nodes or not seats(policy, policy.max_nodes):
        raise Refused(
            ErrorCode.MALFORMED,
            f"no world size from {policy.min_nodes} to {policy.max_nodes} nodes is a multiple of "
            f"node_unit {policy.node_unit}",
            "Choose --nnodes and node_unit so that one is.",
        )


def _begin_life(tables: Tables, run: Run, session: Session, policy: Policy) -> None:
    run.policy, run.policy_from = policy, words.node(session)
    keys.begin_life(tables, run)
    run.formed = run.renewals = run.announced = 0
    run.forming_at = run.renewed_at = tables.t
    run.min_met_at = run.newcomer_at = None
    run.seen.clear()
    run.departed.clear()
    run.expected.clear()
    run.scale_ups.clear()
    run.warned.clear()
    for member in run.members.values():
        member.seat = None
        roster.recount(run, member)
        tables.save("session", member.session.id)
    move(tables, run, Cause.JOINED)
    tables.deadlines.cancel(("forget", run.id, 0))
    tables.report(
        "run_opened", run=run.id, node=session.node_id, min_nodes=policy.min_nodes,
        max_nodes=policy.max_nodes,
    )  # fmt: skip
    if run.id == DEFAULT_RUN_ID:
        text = (
            "run id 'none' is torchrun's default: every job that sets no --rdzv-id meets under "
            "it; give each job its own"
        )
        tables.report(
            "default_run_id", level="warning", run=run.id, node=session.node_id, text=text
        )
        tables.push(session, Notice(message=text))


def _enter(tables: Tables, run: Run, session: Session) -> Member:
    if len(run.members) >= limits.MEMBERS_PER_RUN_MAX:
        raise Refused(
            ErrorCode.LIMIT_EXCEEDED,
            f"run {run.id!r} already has {limits.MEMBERS_PER_RUN_MAX} members",
        )
    run.arrivals += 1
    member = Member(session, run.arrivals)
    session.member = member
    roster.enter(run, member)
    tables.save("run", run.id)
    tables.save("session", session.id)
    return member


def _rank_rival(tables: Tables, run: Run, member: Member, hint: int | None) -> Member | None:
    """A suspect that holds the same rank hint; a living one is a refusal."""
    holder = None if hint is None else run.hints.get(hint)
    if holder is None or holder is member:
        return None
    if holder.session.suspect:
        return holder
    if member.join is None and member.seat is None:
        _leave(tables, run, member)
        member.session.member = None
    raise duplicate_rank(run, member, holder, hint)


def _leave(tables: Tables, run: Run, member: Member) -> None:
    tables.save_hints(run, member)
    roster.leave(run, member)


def _end_without_store(tables: Tables, run: Run, generation: Generation) -> None:
    """Its workers' store ended with an earlier server process: who has not begun in it cannot any more."""
    text = (
        f"the workers' store of generation {generation.fence} ended with the server that served it"
    )
    generations.end(tables, run, Ended(kind="server_restarted", reason=text))


def duplicate_rank(run: Run, member: Member, holder: Member, hint: int | None) -> Refused:
    """Two living nodes with one rank hint: both are named."""
    return Refused(
        ErrorCode.DUPLICATE_RANK,
        f"run {run.id!r}: {words.node(member)} asks for rank hint {hint}, which "
        f"{words.node(holder)} already has",
    )


def _rejoined(tables: Tables, run: Run, member: Member) -> Ended:
    who = words.node(member, member.seat)
    if run.announced and run.live is not None:
        new = [words.node(m) for m in run.joins.values() if m.ready]
        count = len(run.live.participants)
        text = f"{words.names(new)} came: scale-up from {count} to {count + run.announced} nodes"
        return Ended(kind="scale_up", reason=text, node_id=member.node_id)
    text = f"{who} rejoined: it restarts its workers"
    # Workers often die of a broken collective before anybody knows for sure which node is gone.
    gone = [m for m in run.members.values() if m.seat is not None and m.session.suspect]
    if gone:
        since_s = tables.t - min(m.session.dropped_at or tables.t for m in gone)
        names = words.names([words.node(m, m.seat) for m in gone])
        text += f"; the connection of {names} closed {words.seconds(since_s)} ago"
    return Ended(kind="rejoined", reason=text[: limits.TEXT_CHARS_MAX], node_id=member.node_id)


def _park(
    tables: Tables, run: Run, member: Member, request_id: int, ask: Join, rival: Member | None
) -> None:
    session = member.session
    since = tables.t
    if member.join is not None:
        since = member.join.since
        refusal = Refused(ErrorCode.SUPERSEDED, "a newer join of this node took its place")
        tables.answer(session, member.join.request_id, refusal.reply(), keep=True)
    elif run.live is None:
        _renew_patience(tables, run, member)
    member.finished = False
    member.join = PendingJoin(request_id, since, ask.address)
    tables.save_hints(run, member)
    roster.take_hint(run, member, ask.rank_hint, rival)
    if run.live is not None:
        run.newcomer_last_at = tables.t
    run.joins[member.node_id] = member
    _remember(run, member.node_id, ask.expected_nodes)
    session.parked[request_id] = Join
    roster.recount(run, member)
    tables.touch(run)
    tables.report(
        "node_joined", run=run.id, node=member.node_id, fence=run.fence, name=member.name,
        peer=session.peer_host, client=session.client,
    )  # fmt: skip


def _remember(run: Run, node_id: str, expected: list[str]) -> None:
    """Whom the run has met and whom it waits for; neither grows without end."""
    run.seen[node_id] = None
    if len(run.seen) > limits.MEMBERS_PER_RUN_MAX:
        del run.seen[next(iter(run.seen))]
    for name in expected:
        if len(run.expected) < limits.EXPECTED_NODES_MAX:
            run.expected[name] = None


def _renew_patience(tables: Tables, run: Run, member: Member) -> None:
    """A node that this run had not met before gives all waiting joins a new deadline (B08).

    At most `max_nodes` times, so that a crowd of short-lived strangers cannot hold them for ever.
    """
    policy = run.policy
    if policy is not None and member.node_id not in run.seen and run.renewals < policy.max_nodes:
        run.renewals += 1
        run.renewed_at = tables.t


def _membership(tables: Tables, session: Session) -> tuple[Run, Member]:
    run, member = tables.runs.get(session.run_id), session.member
    if run is None or member is None:
        raise Refused(
            ErrorCode.NOT_A_MEMBER,
            f"node {session.node_id!r} is not a member of run {session.run_id!r}",
        )
    return run, member
