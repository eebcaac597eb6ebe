"""What must hold between any two steps of the core. Tests and the simulator check it after each.

`check` looks at one state; `Monitor` also remembers earlier ones and finds what only history shows.
A breach raises AssertionError naming the rule of SEMANTICS.md and telling the run's story.
"""

from collections import deque
from collections.abc import Iterable

from rdzv_proto.messages import Ended, Error, Fence, Joined, Released
from rdzv_server.core.clock import TICK_S
from rdzv_server.core.events import Close, Effect, Release, Send
from rdzv_server.core.invariants_ids import check_record, check_secrets, check_slots
from rdzv_server.core.invariants_runs import check_last_call, check_run
from rdzv_server.core.model import Generation, Run, Session
from rdzv_server.core.rounds import Decision
from rdzv_server.core.tables import Tables
from rdzv_server.core.tcpstore.model import SHARED, Stage

OVERDUE_S = 3 * TICK_S
"""What is due is done by the next tick, and an expiry by the one after that."""


def check(tables: Tables, only: str | None = None) -> None:
    """Check one state.

    Args:
        only: of the runs, look at this one; the step before touched no other.

    Raises:
        AssertionError: naming the broken rule.
    """
    check_times(tables)
    parked = _check_sessions(tables, only)
    held = _check_rounds(tables, only) + sum(map(_waits_of, _runs(tables, only)))
    # Every wait is parked in its session (checked with the waits); so nobody is parked who waits for nothing, and
    # would never be answered, if they are as many.
    assert parked == held, f"L3: {parked} requests wait, {held} of them for something"
    _check_stores(tables)
    check_slots(tables)
    for run in _runs(tables, only):
        try:
            check_run(tables, run)
            for record in [] if run.generation is None else run.generation.ids.records():
                check_record(tables, record)
        except AssertionError as error:
            raise AssertionError(f"run {run.id!r}: {error}; its story:\n{run.story}") from error


def check_times(tables: Tables) -> None:
    """Check that nothing is overdue: all there is to check when nothing but time has passed since the last check.

    Raises:
        AssertionError: naming the broken rule.
    """
    t = tables.t
    for session in tables.sessions.values():
        if t - session.heard_at > session.lease_s + OVERDUE_S and not tables.read_only:
            # After a stall its last look begins anew: there may be stall after stall.
            past_s = t - max(_over_at(tables, session), tables.stall_ended_at)
            assert past_s <= OVERDUE_S, f"L2: {session.node_id} is lost, unnoticed"
    for _, _, barrier in tables.rounds.values():
        lasts_s = t - barrier.began_at
        assert lasts_s <= barrier.timeout_s + OVERDUE_S, f"S17: a round lasts {lasts_s:.1f} s"
    for run in tables.runs.values():
        check_last_call(tables, run)


def _runs(tables: Tables, only: str | None) -> Iterable[Run]:
    if only is None:
        return tables.runs.values()
    run = tables.runs.get(only)
    return () if run is None else (run,)


def check_effects(tables: Tables, effects: list[Effect], only: str | None = None) -> None:
    """Check what a step says to the outside: an assignment is only told while it is true (S4, S8),
    and unique ids go to those who asked for them and to nobody else (S20, S22).

    Args:
        only: of the runs, only this one was touched by the step.

    Raises:
        AssertionError: naming the broken rule.
    """
    check_secrets(tables, effects, only)
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


_ByRound = dict[tuple[str, int], Released | Error]
_Kept = dict[str, deque[Decision]]
"""By the name of a barrier."""


class Monitor:
    """Checks that need the past: fences only grow, tables never change, one end with one reason."""

    def __init__(self) -> None:
        self._fences: dict[str, Fence] = {}
        self._digests: dict[tuple[str, Fence], bytes] = {}
        self._ends: dict[tuple[str, Fence], Ended] = {}
        self._decisions: dict[tuple[str, Fence], tuple[_ByRound, _Kept]] = {}
        """By generation: all that there were, and those that a barrier kept when it was looked at."""
        self._attempts: dict[int, int] = {}
        self._members: set[int] = set()
        """Sessions that are, or were, members."""
        self._holders: dict[tuple[str, str], list[bytes]] = {}
        """Incarnations that had a node's session, in their order."""
        self._places: dict[str, tuple[int, dict[int, int]]] = {}
        """Of the last generation of each run's life: its number and ranks."""

    def check(self, tables: Tables, only: str | None = None) -> None:
        """Check one state against all earlier ones.

        Args:
            only: of the runs, look at this one; the step before touched no other.

        Raises:
            AssertionError: naming the broken rule.
        """
        check(tables, only)
        attempts, members = self._attempts, self._members
        for session in tables.sessions.values():
            if session.attempt != attempts.get(session.id):
                self._check_attempt(session)
            if session.member is not None and session.id not in members:
                self._check_holder(session)
        for run in _runs(tables, only):
            generation = run.generation
            if generation is None:
                continue
            key = (run.id, generation.fence)
            last = self._fences.setdefault(run.id, generation.fence)
            assert generation.fence >= last, f"S2: fence of {run.id!r} fell from {last}"
            if generation.fence != last or run.id not in self._places:
                self._check_places(run, generation)
            self._drop_places(run)
            self._fences[run.id] = generation.fence
            digest = self._digests.setdefault(key, generation.digest)
            assert digest == generation.digest, f"S3: the table of {key} changed"
            self._check_decisions(run.id, generation)
            if generation.ended is not None:
                if key not in self._ends:
                    _check_end(tables, generation, generation.ended)
                ended = self._ends.setdefault(key, generation.ended)
                assert ended == generation.ended, f"S9: {key} has two reasons for its end"
            else:
                assert key not in self._ends, f"S9: {key} lives again"

    def _check_attempt(self, session: Session) -> None:
        """There was a hello of this process."""
        late = session.attempt < self._attempts.get(session.id, session.attempt)
        assert not late, f"S5: {session.node_id}: a late attempt displaced a newer one"
        self._attempts[session.id] = session.attempt

    def _check_holder(self, session: Session) -> None:
        """It has just become a member."""
        self._members.add(session.id)
        holders = self._holders.setdefault((session.run_id, session.node_id), [])
        if holders[-1:] != [session.incarnation]:
            back = session.incarnation in holders
            assert not back, f"S5: {session.node_id}: a fenced process is back"
            holders.append(session.incarnation)

    def _drop_places(self, run: Run) -> None:
        """Who left and comes again is a newcomer, in the same session too."""
        number, ranks = self._places[run.id]
        here = {member.session.id for member in run.members.values()}
        if not ranks.keys() <= here:
            self._places[run.id] = number, {s: rank for s, rank in ranks.items() if s in here}

    def _check_places(self, run: Run, generation: Generation) -> None:
        """Who was in the last world keeps its order, newcomers come in the order of their arrival (L8). A wished
        rank goes before both."""
        number, ranks = self._places.get(run.id, (0, {}))
        self._places[run.id] = (generation.fence.generation, generation.rank_of)
        members = [run.members.get(p.node_id) for p in generation.participants]
        if (
            run.hints
            or run.formed < 2
            or generation.fence.generation != number + 1
            or None in members
        ):
            return
        stay = [ranks[p.session_id] for p in generation.participants if p.session_id in ranks]
        assert stay == sorted(stay), f"survivors of {run.id!r} changed their order: {stay}"
        first = generation.participants[0].session_id
        assert not stay or first in ranks, f"rank 0 of {run.id!r} is a newcomer"
        new = [m.order for m in members if m is not None and m.session.id not in ranks]
        left = [m.order for m in run.joins.values() if m.ready and m.session.id not in ranks]
        assert not new or not left or max(new) < min(left), (
            f"L8: {run.id!r}: a later newcomer got in"
        )

    def _check_decisions(self, run_id: str, generation: Generation) -> None:
        known, looked_at = self._decisions.setdefault((run_id, generation.fence), ({}, {}))
        for barrier in generation.barriers.all():
            if looked_at.get(barrier.name) == barrier.decisions:
                continue  # mostly: there is nothing new
            looked_at[barrier.name] = barrier.decisions.copy()
            for decision in barrier.decisions:
                key = (barrier.name, decision.round)
                first = known.setdefault(key, decision.reply)
                assert first is decision.reply, (
                    f"S14: {run_id} {generation.fence}: {key} has two decisions"
                )


def _check_end(tables: Tables, generation: Generation, ended: Ended) -> None:
    """Who is said to have ended it can have done so."""
    who = ended.node_id
    ends = [p.session_id for p in generation.participants if p.node_id == who]
    if ended.kind in ("scale_up", "rejoined"):
        assert ends, f"S12: {generation.fence} was ended by {who}, who is not in it"
    if ended.kind in ("lost", "replaced"):
        gone = not any(session_id in tables.sessions for session_id in ends)
        assert gone, (
            f"S9: {generation.fence} ended because {who} was {ended.kind}, who is still there"
        )


def _check_sessions(tables: Tables, only: str | None) -> int:
    """Returns how many requests are parked in them."""
    connections, sessions = tables.connections, tables.sessions
    for connection in connections.values():
        session = connection.session
        if session is not None and (only is None or session.run_id == only):
            assert session.connection is connection, "S6: a stale connection holds a session"
            assert sessions.get(session.id) is session, "a connection of a removed session"
    parked = 0
    for session in sessions.values():
        if only is not None and session.run_id != only:
            continue
        parked += len(session.parked)
        held = session.connection
        agree = (held is None) == (session.dropped_at is not None)
        assert agree or tables.shutting_down, "suspicion and connection disagree"
        assert held is None or held.id in connections, "a session on a closed connection"
    for (run_id, node_id), session in tables.nodes.items():
        right = session.run_id == run_id and session.node_id == node_id
        assert right, "S5: the node index is wrong"
        assert sessions.get(session.id) is session, "S5: a removed session is indexed"
    return parked


def _over_at(tables: Tables, session: Session) -> float:
    """The latest time at which a session that is not heard again may still be there (L2)."""
    heard = max(session.heard_at, tables.stored_again_at) + session.lease_s
    if session.dropped_at is None:
        return heard
    grace = max(session.dropped_at, tables.caught_up_at) + tables.settings.reconnect_grace_s
    return max(heard, grace, session.recover_until)


def _check_rounds(tables: Tables, only: str | None) -> int:
    """Returns how many requests wait in them."""
    sessions, waiting = tables.sessions, 0
    for serial, (run, generation, barrier) in tables.rounds.items():
        if only is not None and run.id != only:
            continue
        terms, arrivals = barrier.terms, barrier.arrivals
        waiting += len(arrivals)
        assert barrier.serial == serial, "L5: a barrier round with another's deadline"
        assert terms is not None, "an open barrier round without terms"
        assert arrivals, "an open barrier round that nobody waits in"
        assert len(arrivals) < terms.needed, "S13: all are there, and nobody noticed"
        assert generation is None or generation.usable, "S11: a barrier round of a dead generation"
        if generation is not None and generation.finished and terms.of == "nodes":
            done = any(terms.includes(generation.rank_of[one]) for one in generation.finished)
            assert not done, "S9: a round waits for a node whose work is done"
        nodes = None if generation is None or terms.of != "nodes" else generation.rank_of
        for member, arrival in arrivals.items():
            session = arrival.session
            here = sessions.get(session.id) is session
            assert here, "S13: an arrival of a removed session"
            assert arrival.request_id in session.parked, "L3: an arrival that nobody waits for"
            assert terms.includes(member), "S16: a stranger is counted"
            if nodes is not None:
                assert nodes[session.id] == member, "S13: counted under another rank"
        assert run.id in tables.runs, "a barrier round of a forgotten run"
        number = barrier.round - len(barrier.decisions)
        for decision in barrier.decisions:
            assert decision.round == number, "S15: rounds are not numbered one by one"
            number += 1
    return waiting


def _waits_of(run: Run) -> int:
    """Requests of a run that wait, but for its barriers."""
    waits = len(run.joins) + len(run.kv.waiters())
    if run.generation is not None:
        waits += len(run.generation.kv.waiters()) + len(run.generation.ids.waiters())
    return waits


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
