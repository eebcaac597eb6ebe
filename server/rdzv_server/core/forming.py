"""Bringing a run to rest after each step: form, wait, refuse, announce, forget.

`settle` runs once for each run that a step touched and whenever one of the run's times is up. It asks
the one quorum decision (`quorum.decide`) and acts on the answer.
"""

from rdzv_proto.auth import ALL_RUNS
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Notice, Policy
from rdzv_server.core import (
    generations,
    membership,
    roster,
    words,
)
from rdzv_server.core.model import Member, Participant, Phase, Run
from rdzv_server.core.phases import Cause, move
from rdzv_server.core.quorum import decide, seats
from rdzv_server.core.refusal import Refused
from rdzv_server.core.tables import Tables
from rdzv_server.core.tcpstore import stores
from rdzv_server.core.views import missing_names, progress, push_view

RUNS_NAMED_MAX = 3
"""Other forming runs that a join timeout names."""


def settle(tables: Tables, run: Run) -> None:
    """Do everything that is due for a run now, and set the time of the next visit."""
    _settle_rivals(tables, run)
    ends_at: float | None = None
    wake: list[float] = []
    if run.forming:
        _refuse_condemned(tables, run)
        ends_at = _try_to_form(tables, run)
        # Over, and not acted on: the port for the workers' store is being opened. That it is (or is not) will be told;
        # a deadline in the past would be due again at once, before all others.
        if ends_at is not None and ends_at > tables.t:
            wake.append(ends_at)
    if run.phase is Phase.LIVE:
        announce_at = _announce(tables, run)
        if announce_at is not None:
            wake.append(announce_at)
        elif not run.announced:
            _tell_surplus(tables, run)
    _end_if_empty(tables, run)
    if not run.forming:
        stores.give_back(tables, run)
    progress(tables, run, ends_at)
    if run.progress_at is not None:
        wake.append(run.progress_at)
    if wake:
        tables.deadlines.set(("run", run.id, 0), min(wake))
    else:
        tables.deadlines.cancel(("run", run.id, 0))


def forget(tables: Tables, run: Run) -> None:
    """The keep time of an ended or closed run is over."""
    if run.phase in (Phase.ENDED, Phase.CLOSED) and not run.members and not run.awaited:
        tables.report("run_forgotten", run=run.id, fence=run.fence)
        tables.forget_run(run)
    elif run.phase in (Phase.ENDED, Phase.CLOSED):
        tables.deadlines.set(("forget", run.id, 0), tables.t + tables.settings.run_keep_s)


def _try_to_form(tables: Tables, run: Run) -> float | None:
    """Ask for the decision and act on it; returns when the present wait ends."""
    policy = run.policy
    assert policy is not None, "a forming run without a policy"
    _note_min(tables, run, policy)
    decision = decide(tables.t, roster.roster_of(run, _joins_end_at(run)), policy)
    obstacle = "" if decision.participants is None else stores.obstacle(tables, run)
    reason = obstacle or decision.reason
    if reason != run.reason:
        run.reason, run.reason_at = reason, tables.t
    if decision.participants is not None and not obstacle:
        generations.form(tables, run, decision.participants, decision.reason)
        return None
    if not stores.being_opened(run):
        _refuse_late(tables, run, obstacle)
        _note_min(tables, run, policy)
    if not run.joins:
        return None
    ends = [_joins_end_at(run), decision.retry_at, stores.retry_at(run) if obstacle else None]
    return min(at for at in ends if at is not None)


def _note_min(tables: Tables, run: Run, policy: Policy) -> None:
    """Whether the minimum is there is what tells the two phases of forming apart."""
    if seats(policy, run.counts.ready) == 0:
        if run.phase is Phase.LAST_CALL:
            run.min_met_at = None
            move(tables, run, Cause.MIN_UNMET)
    elif run.phase is Phase.FORMING:
        run.min_met_at = tables.t
        move(tables, run, Cause.MIN_MET)


def _joins_end_at(run: Run) -> float:
    """When the patience of the join that has waited longest ends. Joins are kept in order."""
    policy = run.policy
    first = next(iter(run.joins.values()), None)
    if policy is None or first is None or first.join is None:
        return float("inf")
    return max(first.join.since, run.renewed_at) + policy.join_timeout_ms / 1000


def _refuse_late(tables: Tables, run: Run, obstacle: str) -> None:
    """Joins whose patience is over learn who is missing."""
    policy = run.policy
    if policy is None or _joins_end_at(run) > tables.t:
        return
    late = [
        m for m in run.joins.values()
        if m.join is not None
        and max(m.join.since, run.renewed_at) + policy.join_timeout_ms / 1000 <= tables.t
    ]  # fmt: skip
    text = _timeout_text(tables, run, obstacle)
    refusal = Refused(ErrorCode.JOIN_TIMEOUT, text).reply()
    for member in late:
        generations.refuse_join(tables, run, member, refusal)
    tables.report(
        "join_timeout", level="warning", run=run.id, fence=run.fence, nodes=len(late), reason=text
    )


def _timeout_text(tables: Tables, run: Run, obstacle: str) -> str:
    policy = run.policy
    assert policy is not None, "a join without a policy"
    here = [words.node(m) for m in run.joins.values() if m.ready]
    if obstacle:
        return (
            f"run {run.id!r}: no generation could form within "
            f"{words.seconds(policy.join_timeout_ms / 1000)}: {obstacle}. "
            f"Joined: {words.names(here)}."
        )
    text = (
        f"run {run.id!r}: only {len(here)} of min {policy.min_nodes} nodes joined within "
        f"{words.seconds(policy.join_timeout_ms / 1000)}. Joined: {words.names(here)}."
    )
    missing = missing_names(run)
    if missing:
        text += f" Missing: {words.names(missing)}."
    if run.generation is not None and run.generation.ended is not None and run.formed:
        text += f" The last generation ended: {run.generation.ended.reason}."
    others = [r for r in tables.runs.values() if r is not run and r.joins and r.live is None]
    # Everybody who waits gets this text: only if all of them may know of other runs.
    if others and all(m.session.grant.run == ALL_RUNS for m in run.joins.values()):
        named = ", ".join(
            f"{r.id!r} ({words.nodes(len(r.joins))})" for r in others[:RUNS_NAMED_MAX]
        )
        text += f" Other runs wait for nodes on this server: {named}; is the run id right?"
    return text


def _refuse_condemned(tables: Tables, run: Run) -> None:
    """Nodes that failed or finished cannot come back; if too few are left, the rest must know."""
    policy = run.policy
    if not run.departed or policy is None or generations.possible_world(run):
        return
    text = (
        f"run {run.id!r} cannot go on: {words.names(run.departed)}; "
        f"{run.counts.possible} of min {policy.min_nodes} nodes are left"
    )
    generations.refuse_joins(tables, run, ErrorCode.RUN_FAILED, text, up_to=run.departed_order)


def _settle_rivals(tables: Tables, run: Run) -> None:
    """Joins with a rank hint that a suspect holds: it came back, so they are refused."""
    for member in list(run.rivals.values()):
        rival = member.rival
        if rival is not None and not rival.session.suspect:
            refusal = membership.duplicate_rank(run, member, rival, member.hint)
            generations.refuse_join(tables, run, member, refusal.reply())


def _announce(tables: Tables, run: Run) -> float | None:
    """Tell the participants of newcomers, together; returns when to look again (DESIGN 6.2)."""
    generation, policy = run.live, run.policy
    assert generation is not None, "a live run without a generation"
    assert policy is not None, "a live run without a policy"
    world = len(generation.participants)
    size = seats(policy, world + run.counts.ready_new)
    admissible = max(0, size - world)
    if generation.finished:
        admissible = 0  # the work is nearly done: nobody is restarted for a newcomer
    if admissible == 0:
        run.newcomer_at = None
        _set_announced(tables, run, 0)
        return None
    if run.newcomer_at is None:
        run.newcomer_at = tables.t
    delay = _scale_up_delay(tables, run)
    longest = max(tables.settings.scale_up_wait_s_max, delay)
    at = min(run.newcomer_last_at + delay, run.newcomer_at + longest)
    if run.announced or size == seats(policy, policy.max_nodes) or at <= tables.t:
        _set_announced(tables, run, admissible)
        return None
    return at


def _scale_up_delay(tables: Tables, run: Run) -> float:
    """Doubles with each recent scale-up, so that pods trickling in do not restart a job for ever."""
    while run.scale_ups and run.scale_ups[0] < tables.t - generations.SCALE_UP_MEMORY_S:
        run.scale_ups.popleft()
    base = tables.settings.scale_up_delay_s
    most = 0.0 if run.policy is None else run.policy.last_call_timeout_ms / 1000
    return max(base, min(base * 2.0 ** min(len(run.scale_ups), 30), most))


def _set_announced(tables: Tables, run: Run, count: int) -> None:
    if count == run.announced:
        return
    run.announced = count
    generation = run.live
    if generation is not None and count:
        new = [words.node(m) for m in run.joins.values() if m.ready]
        wants = "wants" if len(new) == 1 else "want"
        run.reason = f"{words.names(new)} {wants} in: the participants are told to rejoin"
        tables.report(
            "newcomers_announced", run=run.id, fence=generation.fence, count=count,
            nodes=words.names(new),
        )  # fmt: skip
    push_view(tables, run)


def _tell_surplus(tables: Tables, run: Run) -> None:
    """More nodes than have a place, and two agents of one node among them, in the world or standing
    by: most likely they were started twice by mistake (B29)."""
    generation = run.live
    if generation is None or not run.joins or "same_node" in run.warned:
        return
    standbys = [m for m in run.joins.values() if m.ready]
    if not standbys:
        return
    by_name: dict[str, str] = {}
    agents: list[Participant | Member] = [*generation.participants, *standbys]
    for agent in agents:
        other = by_name.setdefault(agent.name, agent.node_id)
        if other != agent.node_id:
            run.warned.add("same_node")
            text = (
                f"two agents of run {run.id!r} come from node {agent.name} ({other} and "
                f"{agent.node_id}), and {words.nodes(len(standbys))} can only stand by: the world of "
                f"{len(generation.participants)} has no place left. Is the launcher started once "
                "per node?"
            )
            tables.report(
                "agents_share_a_node", level="warning", run=run.id, node=agent.node_id,
                fence=generation.fence, text=text,
            )  # fmt: skip
            for member in standbys:
                tables.push(member.session, Notice(message=text))
            return


def _end_if_empty(tables: Tables, run: Run) -> None:
    """Without unfinished members a forming run is over; ended runs are forgotten later."""
    if run.forming:
        if any(not m.finished for m in run.members.values()):
            return
        last = run.generation.ended if run.generation is not None and run.formed else None
        run.reason = last.reason if last is not None else "all nodes left before a world formed"
        move(tables, run, Cause.EMPTIED)
        tables.report("run_ended", run=run.id, fence=run.fence, reason=run.reason)
    if run.phase in (Phase.ENDED, Phase.CLOSED) and not run.members:
        kept_from = max(run.phase_at, run.used_at)
        tables.deadlines.set(("forget", run.id, 0), kept_from + tables.settings.run_keep_s)
