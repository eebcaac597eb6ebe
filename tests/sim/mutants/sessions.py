"""Mutants of sessions: who may act, who is lost, and when."""

from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from rdzv_proto.auth import Grant
from rdzv_proto.errors import ErrorCode
from rdzv_server.core import generations, roster, sessions
from rdzv_server.core.clock import RunClock
from rdzv_server.core.coordinator import Coordinator
from rdzv_server.core.deadlines import Deadlines
from rdzv_server.core.events import Close, Lost, Send
from rdzv_server.core.model import Connection, Kind, Session
from rdzv_server.core.tables import Tables
from tests.sim.mutants.mutant import Collection, Patch
from tests.sim.world import Mode

MUTANTS = Collection()
mutant = MUTANTS.mutant


@mutant("S6")
def stale_close(patch: Patch) -> None:
    """the late end of an old connection cuts the one that took its place"""
    handle, forget = Coordinator.handle, Tables.forget_connection
    gone: dict[tuple[int, int], Session] = {}

    def forgetting(tables: Tables, connection: Connection) -> None:
        if connection.session is not None:
            gone[id(tables), connection.id] = connection.session
        forget(tables, connection)

    def handling(core: Coordinator, now: float, event: Any) -> Any:
        if isinstance(event, Lost) and event.conn not in core.tables.connections:
            old = gone.get((id(core.tables), event.conn))
            holder = None if old is None else core.tables.nodes.get((old.run_id, old.node_id))
            if holder is not None and holder.connection is not None:
                event = Lost(holder.connection.id, event.reason)
        return handle(core, now, event)

    patch(Tables, "forget_connection", forgetting)
    patch(Coordinator, "handle", handling)


@mutant("S6")
def fenced_may_speak(patch: Patch) -> None:
    """a connection that was cut is still heard"""

    def close(tables: Tables, connection: Connection, *_: object) -> None:
        tables.effects.append(Close(connection.id, None))

    patch(Tables, "close", close)


@mutant("L2")
def due_is_dropped(patch: Patch) -> None:
    """what is due, and is more than one step sees to, is forgotten"""
    pop_due = Deadlines.pop_due

    def pop(deadlines: Any, now: float, most: int) -> Any:
        return pop_due(deadlines, now, 1 << 30)[:most]

    patch(Deadlines, "pop_due", pop)


@mutant("S5")
def incarnation_ignored(patch: Patch) -> None:
    """a new process is taken for the old one of its node"""
    hello = sessions.hello_node

    def greet(tables: Tables, connection: Connection, message: Any) -> Any:
        holder = tables.nodes.get((message.run, message.node_id))
        if holder is not None:
            message = replace(message, incarnation=holder.incarnation, attempt=holder.attempt + 1)
        return hello(tables, connection, message)

    patch(sessions, "hello_node", greet)


@mutant("S5")
def fences_itself(patch: Patch) -> None:
    """a process whose first welcome was lost is fenced by its own second hello"""
    hello = sessions.hello_node

    def greet(tables: Tables, connection: Connection, message: Any) -> Any:
        holder = tables.nodes.get((message.run, message.node_id))
        if message.resume is None and holder is not None:
            sessions.supersede(tables, holder)
        return hello(tables, connection, message)

    patch(sessions, "hello_node", greet)


@mutant("S5")
def fenced_may_return(patch: Patch) -> None:
    """superseded processes are not remembered"""
    patch(Tables, "remember_fenced", lambda tables, session: None)


@mutant("S5")
def lost_may_take_over(patch: Patch) -> None:
    """a process that was lost and replaced fences the one that took its place"""
    patch(Tables, "has_come", lambda tables, run_id, node_id, incarnation: None)


@mutant("S5")
def late_attempt_wins(patch: Patch) -> None:
    """an old connection attempt that arrives late displaces the newer one"""
    attach = sessions._attach

    def attaching(tables: Tables, session: Session, connection: Connection, attempt: int) -> None:
        session.attempt = min(attempt, session.attempt)
        attach(tables, session, connection, attempt)

    patch(sessions, "_attach", attaching)


@mutant("T5")
def any_token_resumes(patch: Patch) -> None:
    """the secret of a session is not compared"""
    patch(sessions, "hmac", SimpleNamespace(compare_digest=lambda mine, theirs: True))


@mutant("T3")
def any_run_is_covered(patch: Patch) -> None:
    """a token of one run is good for all"""
    patch(Grant, "covers", lambda grant, run: True)


@mutant("S33")
def no_second_look(patch: Patch) -> None:
    """a session expires at the first tick that finds its time up"""

    def expire(tables: Tables, session: Session) -> None:
        if sessions._over_at(tables, session) > tables.t:
            sessions._arm(tables, session)
            return
        generations.session_over(tables, session)
        tables.remember_lost(session)
        sessions.remove(tables, session)

    patch(sessions, "expire", expire)


@mutant("S32")
def stall_is_charged(patch: Patch) -> None:
    """time in which the server stood still counts"""

    def advance(clock: RunClock, now: float) -> tuple[float, float]:
        clock._last = now if clock._last is None else max(clock._last, now)
        return clock._last, 0.0

    patch(RunClock, "advance", advance)


@mutant("S33")
def lease_is_short(patch: Patch) -> None:
    """a lease ends a second and a half early"""
    over_at = sessions._over_at
    patch(sessions, "_over_at", lambda tables, session: over_at(tables, session) - 1.5)


@mutant("S33")
def no_grace(patch: Patch) -> None:
    """a closed connection is a loss at once"""
    over_at = sessions._over_at

    def without(tables: Tables, session: Session) -> float:
        return over_at(tables, session) if session.dropped_at is None else session.dropped_at

    patch(sessions, "_over_at", without)


@mutant("L2")
def silence_is_free(patch: Patch) -> None:
    """a session with a connection never expires"""
    over_at = sessions._over_at

    def ever(tables: Tables, session: Session) -> float:
        return over_at(tables, session) if session.suspect else float("inf")

    patch(sessions, "_over_at", ever)


@mutant("S7")
def phantom_counts(patch: Patch) -> None:
    """a join whose connection has gone counts towards the minimum"""
    kind_of = roster.kind_of

    def counted(member: Any) -> Kind:
        kind = kind_of(member)
        if member.join is not None and kind in (Kind.AWAITED_PRIOR, Kind.AWAITED_NEW):
            return Kind(kind - Kind.AWAITED_PRIOR)
        return kind

    patch(roster, "kind_of", counted)


@mutant("S29", Mode.CRASHES)
def any_epoch_resumes(patch: Patch) -> None:
    """a session of a server that forgot everything is looked up in the new one"""
    proven = sessions._proven

    def believed(tables: Tables, resume: Any, what: str) -> Session:
        return proven(tables, replace(resume, epoch=tables.identity.epoch), what)

    patch(sessions, "_proven", believed)


@mutant("S5")
def old_session_lives_on(patch: Patch) -> None:
    """the member of a fenced process stays in the run"""
    replaced = generations.session_replaced

    def kept(tables: Tables, session: Session) -> None:
        if session.member is not None and session.member.join is not None:
            return
        replaced(tables, session)

    patch(generations, "session_replaced", kept)


@mutant("L12")
def closed_run_waits(patch: Patch) -> None:
    """joins of a closed run are not answered"""
    refuse = generations.refuse_joins

    def refusing(tables: Tables, run: Any, code: Any, text: str, **more: Any) -> None:
        if code.name != "RUN_CLOSED":
            refuse(tables, run, code, text, **more)

    patch(generations, "refuse_joins", refusing)


@mutant("L4")
def lost_join_is_answered(patch: Patch) -> None:
    """a join of a session that was lost ends with it, instead of going on in the next one"""
    patch(generations, "_GONE", {})
    settle = Tables.settle

    def settling(
        tables: Tables, session: Session, request_id: int, message: Any, *, keep: bool, **more: Any
    ) -> None:
        settle(tables, session, request_id, message, keep=keep, **more)
        if (
            getattr(message, "code", None) == ErrorCode.NOT_A_MEMBER
            and not keep
            and session.connection is not None
        ):
            tables.effects.append(Send(session.connection.id, request_id, message))

    patch(Tables, "settle", settling)
