"""What must hold of one run between any two steps of the core: a part of `invariants`."""

from rdzv_server.core.clock import TICK_S
from rdzv_server.core.model import Generation, Kind, Phase, Run
from rdzv_server.core.quorum import REJOIN_S, seats
from rdzv_server.core.roster import kind_of
from rdzv_server.core.tables import Tables


def check_run(tables: Tables, run: Run) -> None:
    """Its members, joins, phase, generation and waits; times are looked at by `invariants.check_times`."""
    _check_members(tables, run)
    _check_joins(run)
    _check_phase(run)
    _check_keys(tables, run)
    if run.generation is not None:
        _check_generation(tables, run, run.generation)
        _check_generation_waits(tables, run.generation)


def _check_members(tables: Tables, run: Run) -> None:
    tally = [0] * len(Kind)
    nodes, run_id, joins = tables.nodes, run.id, run.joins
    for node_id, member in run.members.items():
        session, kind, join = member.session, member.kind, member.join
        assert session.member is member, "a member's session knows another member"
        assert nodes.get((run_id, node_id)) is session, "S5: a member without a session"
        assert kind is kind_of(member), f"{node_id} is {kind_of(member)}, not {kind}"
        tally[kind] += 1
        assert (join is not None) == (node_id in joins), f"{node_id}: joins disagree"
        assert join is None or not member.finished, f"{node_id} finished and joins"
    assert tally == run.tally, f"tally {run.tally} should be {tally}"
    for hint, holder in run.hints.items():
        assert holder.hint == hint, "a rank hint without its holder"
        assert run.members.get(holder.node_id) is holder, "a rank hint of a node that is gone"
    for member in run.rivals.values():
        assert member.rival is not None, "a rival without a rival"


def _check_joins(run: Run) -> None:
    since = float("-inf")
    for member in run.joins.values():
        assert member.join is not None, "a join that is none"
        assert member.join.since >= since, "joins are out of order"
        since = member.join.since
        assert member.join.request_id in member.session.parked, "a join that nobody waits for"


def _check_phase(run: Run) -> None:
    assert (run.live is not None) == (run.phase is Phase.LIVE), "phase and generation disagree"
    if run.phase in (Phase.ENDED, Phase.CLOSED):
        assert not run.joins, f"joins wait in phase {run.phase.name}"
    if run.phase in (Phase.FORMING, Phase.LAST_CALL):
        assert run.policy is not None, "a forming run without a policy"
        enough = seats(run.policy, run.counts.ready) > 0
        assert enough == (run.phase is Phase.LAST_CALL), "L1: min is met and nobody noticed"
        assert any(not m.finished for m in run.members.values()), "an empty run is forming"
    if run.announced:
        live, policy = run.live, run.policy
        assert live is not None, "newcomers announced to nobody"
        assert policy is not None, "newcomers announced without a policy"
        assert not live.finished, "newcomers announced to a run that is finishing"
        world = len(live.participants)
        assert world + run.announced <= policy.max_nodes, "B29: a surplus standby is counted"


def _check_generation(tables: Tables, run: Run, generation: Generation) -> None:
    participants, policy = generation.participants, run.policy
    ranks, sessions, finished = generation.rank_of, tables.sessions, generation.finished
    assert len(ranks) == len(participants), f"S1: ranks are {sorted(ranks.values())}"
    for rank, participant in enumerate(participants):
        assert ranks[participant.session_id] == rank, "S1: table and ranks disagree"
    assert generation.fence.generation <= run.number, "S2: a fence from the future"
    if generation.live:
        assert policy is not None, "a live run without a policy"
        served = generation.store is not None and generation.store.port > 0
        lost = generation.served and generation.store is None  # it ended with a server before this
        assert (served or lost) == (policy.worker_store == "server"), "the workers' store is wrong"
        assert seats(policy, len(participants)) == len(participants), "S1: a world of wrong size"
        for participant in participants:
            here = participant.session_id in sessions or participant.session_id in finished
            assert here, f"S9: {participant.node_id} is gone and the generation lives"
        assert len(finished) < len(participants), "all finished, and nobody noticed"


def check_last_call(tables: Tables, run: Run) -> None:
    """It is counted once, from the moment the minimum is met, and never stretched (L1). A port for the
    workers' store may keep a decided world waiting; then the joins' own patience is the bound."""
    policy = run.policy
    if run.phase is not Phase.LAST_CALL or policy is None or run.store is not None:
        return
    patience_s = policy.last_call_timeout_ms / 1000
    if run.formed and run.counts.awaited_prior:
        patience_s = max(patience_s, REJOIN_S)
    lasts_s = tables.t - run.phase_at
    assert lasts_s <= patience_s + TICK_S, f"L1: the last call lasts {lasts_s:.1f} s"


def _check_keys(tables: Tables, run: Run) -> None:
    """A counter says what its digits say (S23), and nobody waits for keys that are there (S24)."""
    spaces = [run.kv] if run.generation is None else [run.kv, run.generation.kv]
    for space in spaces:
        for key, entry in space.entries():
            counted = entry.number is None or entry.value == b"%d" % entry.number
            assert counted, f"S23: {key!r} is {entry.value!r}, and {entry.number} was counted"
        for wait in space.waits():
            assert wait.missing, f"S24: {wait.waiter} waits for keys that are there"


def _check_generation_waits(tables: Tables, generation: Generation) -> None:
    if not generation.usable:
        assert not generation.kv.waiters(), "S11: waits in a dead generation"
        assert not len(generation.kv), "S11: keys of a dead generation"
    if not generation.live:
        assert not generation.ids.active(), "S20: unique ids of a dead generation"
    for session_id, request_id in generation.kv.waiters() + generation.ids.waiters():
        session = tables.sessions.get(session_id)
        assert session is not None, "L3: a wait of a removed session"
        assert request_id in session.parked, "L3: a wait that nobody waits for"
