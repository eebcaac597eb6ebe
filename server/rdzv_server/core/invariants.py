"""What must hold between any two steps of the core. Tests and the simulator check it after each.

`check` looks at one state; `Monitor` also remembers earlier ones and finds what only history shows.
A breach raises AssertionError naming the rule of SEMANTICS.md and telling the run's story.
"""

from rdzv_proto import limits
from rdzv_proto.messages import Ended, Error, Fence, Joined, NcclIds, Released
from rdzv_server.core.events import Close, Effect, Release, Send
from rdzv_server.core.model import Generation, Kind, Phase, Run
from rdzv_server.core.nccl import unique_id
from rdzv_server.core.nccl.ids import Record, State
from rdzv_server.core.quorum import seats
from rdzv_server.core.roster import kind_of
from rdzv_server.core.tables import Tables
from rdzv_server.core.tcpstore.model import SHARED, Stage


def check(tables: Tables) -> None:
    """Check one state.

    Raises:
        AssertionError: naming the broken rule.
    """
    _check_sessions(tables)
    _check_rounds(tables)
    _check_stores(tables)
    _check_slots(tables)
    for run in tables.runs.values():
        try:
            _check_members(tables, run)
            _check_joins(run)
            _check_phase(run)
            if run.generation is not None:
                _check_generation(tables, run, run.generation)
                _check_waits(tables, run.generation)
                for record in run.generation.ids.records():
                    _check_record(tables, run, run.generation, record)
        except AssertionError as error:
            raise AssertionError(f"run {run.id!r}: {error}; its story:\n{run.story}") from error


def check_effects(tables: Tables, effects: list[Effect]) -> None:
    """Check what a step says to the outside: an assignment is only told while it is true (S4, S8),
    and unique ids go to those who asked for them and to nobody else (S20, S22).

    Raises:
        AssertionError: naming the broken rule.
    """
    _check_secrets(tables, effects)
    ended: set[int] = set()
    for effect in effects:
        if isinstance(effect, Close):
            assert effect.conn not in ended, "a connection is cut twice: the first reason is told"
            ended.add(effect.conn)
        elif isinstance(effect, Send):
            assert effect.conn not in ended, "something is sent on a connection after its end"
        if isinstance(effect, Release):
            assert not isinstance(effect.message, Joined), "S1: one rank for many nodes"
        if not isinstance(effect, Send) or not isinstance(effect.message, Joined):
            continue
        connection = tables.connections.get(effect.conn)
        session = None if connection is None else connection.session
        assert session is not None, "S4: an assignment for nobody"
        live = tables.runs[session.run_id].live
        told = effect.message
        assert live is not None, f"S8: {session.node_id} is told {told.fence}, which has ended"
        assert live.fence == told.fence, f"S8: {told.fence} is told while {live.fence} is live"
        rank = live.rank_of.get(session.id)
        assert rank == told.group_rank, f"S4: {session.node_id} is told a rank it does not have"


class Monitor:
    """Checks that need the past: fences only grow, tables never change, one end with one reason."""

    def __init__(self) -> None:
        self._fences: dict[str, Fence] = {}
        self._digests: dict[tuple[str, Fence], bytes] = {}
        self._ends: dict[tuple[str, Fence], Ended] = {}
        self._decisions: dict[tuple[str, Fence, str, int], Released | Error] = {}

    def check(self, tables: Tables) -> None:
        """Check one state against all earlier ones.

        Raises:
            AssertionError: naming the broken rule.
        """
        check(tables)
        for run in tables.runs.values():
            generation = run.generation
            if generation is None:
                continue
            key = (run.id, generation.fence)
            last = self._fences.setdefault(run.id, generation.fence)
            assert generation.fence >= last, f"S2: fence of {run.id!r} fell from {last}"
            self._fences[run.id] = generation.fence
            digest = self._digests.setdefault(key, generation.digest)
            assert digest == generation.digest, f"S3: the table of {key} changed"
            self._check_decisions(run.id, generation)
            if generation.ended is not None:
                ended = self._ends.setdefault(key, generation.ended)
                assert ended == generation.ended, f"S9: {key} has two reasons for its end"
            else:
                assert key not in self._ends, f"S9: {key} lives again"

    def _check_decisions(self, run_id: str, generation: Generation) -> None:
        for barrier in generation.barriers.all():
            for decision in barrier.decisions:
                key = (run_id, generation.fence, barrier.name, decision.round)
                first = self._decisions.setdefault(key, decision.reply)
                assert first is decision.reply, f"S14: {key} has two decisions"


def _check_sessions(tables: Tables) -> None:
    for connection in tables.connections.values():
        session = connection.session
        if session is not None:
            assert session.connection is connection, "S6: a stale connection holds a session"
            assert tables.sessions.get(session.id) is session, "a connection of a removed session"
    for session in tables.sessions.values():
        held = session.connection
        agree = (held is None) == session.suspect
        assert agree or tables.shutting_down, "suspicion and connection disagree"
        assert held is None or held.id in tables.connections, "a session on a closed connection"
    for key, session in tables.nodes.items():
        assert key == (session.run_id, session.node_id), "S5: the node index is wrong"
        assert tables.sessions.get(session.id) is session, "S5: a removed session is indexed"


def _check_rounds(tables: Tables) -> None:
    for serial, (run, generation, barrier) in tables.rounds.items():
        terms = barrier.terms
        assert barrier.serial == serial, "L5: a barrier round with another's deadline"
        assert terms is not None, "an open barrier round without terms"
        assert barrier.arrivals, "an open barrier round that nobody waits in"
        assert len(barrier.arrivals) < terms.needed, "S13: all are there, and nobody noticed"
        assert generation is None or generation.usable, "S11: a barrier round of a dead generation"
        for member, arrival in barrier.arrivals.items():
            session = arrival.session
            assert tables.sessions.get(session.id) is session, (
                "S13: an arrival of a removed session"
            )
            assert arrival.request_id in session.parked, "L3: an arrival that nobody waits for"
            assert terms.includes(member), "S16: a stranger is counted"
            if generation is not None and terms.of == "nodes":
                assert generation.rank_of[session.id] == member, "S13: counted under another rank"
        assert run.id in tables.runs, "a barrier round of a forgotten run"
        kept = [decision.round for decision in barrier.decisions]
        first = barrier.round - len(kept)
        assert kept == list(range(first, barrier.round)), "S15: rounds are not numbered one by one"


def _check_stores(tables: Tables) -> None:
    for listener, store in tables.stores.items():
        assert store.listener == listener, "a store under another number"
        if store.listener == SHARED:
            assert store.clients, "a store at the main port without clients"
            continue
        run = tables.runs.get(store.run_id)
        if store.stage is Stage.CLOSING:
            assert store.clients, "a closing store without clients"
        elif store.fence is None:
            assert run is not None, "a waiting store without its run"
            assert run.store is store, "a store waits for a generation that nobody forms"
        else:
            live = None if run is None else run.live
            assert live is not None, f"S11: the store of {store.fence} takes clients after its end"
            assert live.store is store, f"S11: the store of {store.fence} is not its own"
    for conn, client in tables.store_clients.items():
        assert client.store.clients.get(conn) is client, "a client that its store does not know"
        assert tables.stores.get(client.store.listener) is client.store, "a client without a store"


def _check_members(tables: Tables, run: Run) -> None:
    tally = [0] * len(Kind)
    for node_id, member in run.members.items():
        session = member.session
        assert session.member is member, "a member's session knows another member"
        assert tables.nodes.get((run.id, node_id)) is session, "S5: a member without a session"
        assert member.kind is kind_of(member), f"{node_id} is {kind_of(member)}, not {member.kind}"
        tally[member.kind] += 1
        assert (member.join is not None) == (node_id in run.joins), f"{node_id}: joins disagree"
        assert not (member.finished and member.join is not None), f"{node_id} finished and joins"
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
    ranks = sorted(generation.rank_of.values())
    assert ranks == list(range(len(participants))), f"S1: ranks are {ranks}"
    for rank, participant in enumerate(participants):
        assert generation.rank_of[participant.session_id] == rank, "S1: table and ranks disagree"
    assert generation.fence.generation <= run.number, "S2: a fence from the future"
    if generation.live:
        assert policy is not None, "a live run without a policy"
        served = generation.store is not None and generation.store.port > 0
        lost = generation.served and generation.store is None  # it ended with a server before this
        assert (served or lost) == (policy.worker_store == "server"), "the workers' store is wrong"
        assert seats(policy, len(participants)) == len(participants), "S1: a world of wrong size"
        for participant in participants:
            alive = participant.session_id in tables.sessions
            done = participant.session_id in generation.finished
            assert alive or done, f"S9: {participant.node_id} is gone and the generation lives"
        assert len(generation.finished) < len(participants), "all finished, and nobody noticed"


def _check_waits(tables: Tables, generation: Generation) -> None:
    if not generation.usable:
        assert not generation.kv.waiters(), "S11: waits in a dead generation"
    if not generation.live:
        assert not generation.ids.active(), "S20: unique ids of a dead generation"
    for session_id, request_id in [*generation.kv.waiters(), *generation.ids.waiters()]:
        session = tables.sessions.get(session_id)
        assert session is not None, "L3: a wait of a removed session"
        assert request_id in session.parked, "L3: a wait that nobody waits for"


def _check_record(tables: Tables, run: Run, generation: Generation, record: Record) -> None:
    state, there = record.state, [raw for raw in record.ids if raw]
    name = f"{record.group!r} attempt {record.attempt}"
    if state.over:
        assert not record.ids, f"S22: {name} is over and its ids are still here"
        assert not record.waits, f"L3: somebody waits for {name}, which is over"
        return
    for raw, digest in zip(record.ids, record.digests, strict=True):
        assert bool(raw) == bool(digest), f"S19: {name} has an id without its fingerprint"
        if raw:
            assert len(raw) == limits.NCCL_ID_BYTES, f"S19: an id of {name} has a wrong size"
            assert unique_id.digest(raw) == digest, f"S19: an id of {name} was overwritten"
    complete = len(there) == record.shape.n_ids
    assert complete == (state is State.PUBLISHED), f"S20: {name} is {state.value}, {len(there)} ids"
    if state is State.PUBLISHED:
        assert not record.waits, f"S24: somebody waits for {name}, which is published"
        for rank in record.ranks.values():
            assert rank.session_id in tables.sessions, f"S21: {name} lives on without {rank.who}"
    for number, rank in record.ranks.items():
        assert not rank.fetched or complete, f"S20: {name}: rank {number} has ids too early"
        assert number in record.of_session[rank.session_id], "ranks and sessions disagree"
    ready = sum(rank.ready for rank in record.ranks.values())
    assert record.unready == record.shape.nranks - ready > 0, f"{name} is spent, unnoticed"


def _check_slots(tables: Tables) -> None:
    """S18: one id, one slot."""
    seen: set[bytes] = set()
    for record in _active(tables):
        for digest in filter(None, record.digests):
            assert digest not in seen, f"S18: an id of {record.group!r} is in two slots"
            seen.add(digest)


def _check_secrets(tables: Tables, effects: list[Effect]) -> None:
    published = [r for r in _active(tables) if r.state is State.PUBLISHED]
    secrets = [raw for record in _active(tables) for raw in record.ids if raw]
    for effect in effects:
        message = effect.message if isinstance(effect, Send | Release) else None
        if isinstance(message, NcclIds):
            if message.ids:
                assert any(r.ids == message.ids for r in published), "S20: ids of no communicator"
            continue
        text = repr(effect).replace("\\\\", "\\") if secrets else ""
        for raw in secrets:
            shown = repr(raw[:8])[2:-1]
            assert shown not in text, "S22: an id leaves in something else than its answer"
            assert raw[:8].hex() not in text, "S22: an id leaves as a number"
    for session in tables.sessions.values():
        for reply in session.replies.values():
            assert not isinstance(reply, NcclIds), "S22: ids among the recorded replies"


def _active(tables: Tables) -> list[Record]:
    generations = [run.generation for run in tables.runs.values() if run.generation is not None]
    return [record for generation in generations for record in generation.ids.active()]
