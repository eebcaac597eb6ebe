"""A second, deliberately simple server: what SEMANTICS and DESIGN promise, in plain dicts and lists.

It shares no code with the core and does nothing cleverly: after each event every run is looked at anew, and every
deadline is compared with the clock. `tests.stateful.pair` drives it beside the core and compares what each client
is told. It knows no secrets, so what the core hands out (tokens) is told to it.
"""

from typing import Any

from rdzv_proto.messages import (
    AnyRequest,
    Barrier,
    CloseRun,
    Finished,
    Heartbeat,
    HelloNode,
    HelloWorker,
    Join,
    Leave,
)
from tests.stateful import model_keys as kv
from tests.stateful.model_keys import NoError
from tests.stateful.model_runs import Runs
from tests.stateful.model_state import Conn, Run, Session
from tests.stateful.told import Told

TICK_S = 0.1
"""The server looks at its clock at least so often; a gap above twice that is a stall, charged to nobody."""

ONE_MORE_LOOK_S = 0.001
"""Between finding that somebody's time is up and acting on it."""

HELLO_S = 5.0
LEASE_S = (0.2, 3600.0)

RECORDED = (Join, Finished, Leave, CloseRun, Barrier, *kv.WRITES)
"""Done once, however often they are sent."""

INSIDE = (Barrier, *kv.READS, *kv.LOOKS, *kv.WRITES)
ALLOWED: dict[str, tuple[type, ...]] = {
    "node": (*INSIDE, Heartbeat, Join, Finished, Leave, CloseRun),
    "worker": (*INSIDE, Heartbeat),
}


class Model(Runs):
    """Events in, what was said out (`sent`, `cut`)."""

    def __init__(self, *, epoch: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.epoch = epoch
        self.last_entry: float | None = None
        self.stalled = 0.0
        self.replaced: list[tuple[str, str, bytes]] = []
        """Processes that may never act again."""
        self.secrets: dict[int, bytes] = {}
        """Of every session there ever was, replaced or not; told by the pair."""
        self.fenced: list[int] = []
        self.worker_secrets: dict[bytes, tuple[str, str, int]] = {}
        self.sessions_made = 0
        self.lost_order: list[tuple[str, str] | int] = []
        self.gone: dict[tuple[str, str], Session] = {}
        """The last session of a node that was lost and is not back."""

    # --- events -------------------------------------------------------------------------------

    def enter(self, now: float) -> None:
        """Take the time of a step."""
        gap = 0.0 if self.last_entry is None else now - self.last_entry
        self.last_entry = now
        if gap > 2 * TICK_S:
            self.stalled += gap - TICK_S
            for session in self.sessions.values():
                session.marked = None
        self.t = now - self.stalled
        self.sent, self.cut = [], []

    def opened(self, conn: int) -> None:
        self.conns[conn] = Conn(self.t)

    def received(self, conn: int, request: int, ask: AnyRequest) -> None:
        here = self.conns.get(conn)
        if here is None:
            return
        session = None if here.session is None else self.sessions[here.session]
        if session is not None:
            session.heard, session.marked = self.t, None
        keep = isinstance(ask, RECORDED)
        try:
            answer = self._answer(conn, here, session, request, ask)
        except NoError as refusal:
            answer, keep = refusal.told, keep and refusal.read
        session = None if here.session is None else self.sessions.get(here.session)
        if answer is None:
            pass
        elif session is None:
            self.sent.append((conn, request, answer))
        else:
            self.reply(session, request, answer, keep=keep)
        self._rest_all()

    def lost(self, conn: int) -> None:
        here = self.conns.pop(conn, None)
        session = None if here is None or here.session is None else self.sessions[here.session]
        if session is not None and session.conn == conn:
            session.conn, session.gone_since = None, self.t
            run, member = self.runs.get(session.run), self.member_of(session)
            if run is not None and member is not None:
                member.connected = False
                if not member.finished:
                    self._together(run, session)
        self._rest_all()

    def tick(self, lost: list[tuple[str, str] | int]) -> None:
        """Do what is due, in the order in which it became due.

        Args:
            lost: (run, node) of nodes that the core found lost now, and connections that it closed. In which order it
                takes those whose time was found to be up at one look is not promised, so it is taken from there.
        """
        self.lost_order = lost
        while due := self._due():
            self._do(*due[1:])
        self._rest_all()

    # --- time ---------------------------------------------------------------------------------

    def _due(self) -> tuple[float, str, Any, Any] | None:
        t = self.t
        found: list[tuple[float, str, Any, Any]] = []
        for number, conn in self.conns.items():
            if not conn.role and conn.opened + HELLO_S <= t:
                found.append((conn.opened + HELLO_S, "hello", number, None))
        for session in self.sessions.values():
            at = self._over_at(session)
            if session.marked is not None:
                at = max(at, session.marked + ONE_MORE_LOOK_S)
            if at <= t:
                found.append((at, "session", session, None))
        for name, run in self.runs.items():
            if run.forget_at is not None and run.forget_at <= t:
                found.append((run.forget_at, "forget", name, run))
            for space in (run.keys, *([] if run.generation is None else [run.generation.keys])):
                found += [(w.until, "wait", space, w) for w in space.waiting if w.until <= t]
            more = {} if run.generation is None else run.generation.barriers
            for barrier in (*run.barriers.values(), *more.values()):
                if barrier.open is not None and barrier.open.until <= t:
                    found.append((barrier.open.until, "round", barrier, None))
        return min(found, key=lambda row: (row[0], self._place(row)), default=None)

    def _place(self, row: tuple[float, str, Any, Any]) -> int:
        """Of a session among those that were lost; a node whose work is done is not reported, but cut off."""
        if row[1] != "session":
            return -1
        names = (row[2].run, row[2].node), row[2].conn
        return min((self.lost_order.index(n) for n in names if n in self.lost_order), default=-1)

    def _do(self, kind: str, what: Any, more: Any) -> None:
        match kind:
            case "hello":
                self.close_conn(what, "SESSION_LOST")
            case "session" if what.marked is None:
                what.marked = self.t
            case "session":
                self._expire(what)
            case "forget":
                self._forget(what, more)
            case "wait":
                self.wait_over(what, more)
            case _:
                self.round_over(what)

    def _over_at(self, session: Session) -> float:
        if session.gone_since is not None:
            return max(session.gone_since + self.grace, session.spared_until)
        return session.heard + session.lease

    def _together(self, run: Run, session: Session) -> None:
        """Three or more, and more than half of the members, in one moment: it is the network."""
        burst = run.burst
        if self.t - burst.began > 0.1 and self.t - burst.last > 0.03:
            burst.began, burst.away, burst.spared = self.t, [], []
        burst.last = self.t
        burst.away.append(session.id)
        if len(burst.away) >= 3 and 2 * len(burst.away) > len(run.members):
            for number in burst.away:
                if number not in burst.spared:
                    away = self.sessions[number]
                    away.spared_until = (away.gone_since or self.t) + away.lease
                    burst.spared.append(number)

    def _expire(self, session: Session) -> None:
        if session.role == "node":
            self.gone[session.run, session.node] = session
        run, member = self.runs.get(session.run), self.member_of(session)
        if run is not None and member is not None:
            self.depart(run, member, ("lost", session.node, None))
        else:
            self.session_over(session, ("error", "SESSION_LOST"))
        self._remove_session(session, "SESSION_LOST")

    def _remove_session(self, session: Session, why: str) -> None:
        del self.sessions[session.id]
        for run in self.runs.values():
            run.burst.back(session.id)
        if session.conn is not None:
            self.close_conn(session.conn, why)

    def _forget(self, name: str, run: Run) -> None:
        run.forget_at = None
        if not (run.over or run.closed):
            return
        spaces = (run.keys, *([] if run.generation is None else [run.generation.keys]))
        rounds = (run.barriers, {} if run.generation is None else run.generation.barriers)
        awaited = any(space.waiting for space in spaces) or any(
            barrier.open is not None for barriers in rounds for barrier in barriers.values()
        )
        if run.members or awaited:
            run.forget_at = self.t + self.keep
        else:
            del self.runs[name]

    def _rest_all(self) -> None:
        for run in list(self.runs.values()):
            self.settle(run)

    # --- requests -----------------------------------------------------------------------------

    def _answer(
        self, conn: int, here: Conn, session: Session | None, request: int, ask: AnyRequest
    ) -> Told | None:
        if session is None:
            match ask:
                case HelloNode():
                    return self._hello_node(conn, ask)
                case HelloWorker():
                    return self._hello_worker(conn, ask)
                case _:
                    raise NoError("NOT_A_MEMBER")
        if request in session.waiting:  # of clients that never ask something else under that id
            return None
        if isinstance(ask, HelloNode | HelloWorker):
            raise NoError("MALFORMED")
        if not isinstance(ask, ALLOWED[here.role]):
            raise NoError("UNSUPPORTED", read=False)
        if isinstance(ask, RECORDED):
            before = session.answers.get(request)
            if before is not None and self._still_true(session, before):
                return before
            if request <= session.acknowledged:
                raise NoError("MALFORMED", read=False)
        return self._do_request(session, request, ask)

    def _still_true(self, session: Session, before: Told) -> bool:
        """ "You are in" is only repeated while it is true."""
        if before[0] != "joined":
            return True
        run = self.runs.get(session.run)
        if run is not None and run.live is not None and run.live.number == before[1]:
            return True
        session.answers = {r: told for r, told in session.answers.items() if told != before}
        return False

    def _do_request(self, session: Session, request: int, ask: AnyRequest) -> Told | None:
        match ask:
            case Heartbeat():
                if ask.acknowledged > session.acknowledged:
                    session.acknowledged = ask.acknowledged
                    had = [r for r in session.answers if r <= ask.acknowledged]
                    for number in had:
                        del session.answers[number]
                return ("alive",)
            case Join():
                return self.join(session, request, ask)
            case Finished():
                return self.finished(session, ask)
            case Leave():
                return self.leave(session, ask)
            case CloseRun():
                return self.close(session, ask)
            case Barrier():
                return self.meet(session, request, ask)
            case _:
                return self.keys_request(session, request, ask)

    # --- sessions -----------------------------------------------------------------------------

    def _hello_node(self, conn: int, ask: HelloNode) -> Told:
        if (ask.run, ask.node_id, ask.incarnation) in self.replaced:
            raise NoError("FENCED")
        alive = [
            s for s in self.sessions.values()
            if s.role == "node" and (s.run, s.node) == (ask.run, ask.node_id)
        ]  # fmt: skip
        session = alive[0] if alive else None
        if ask.resume is not None:
            session = self._proven(ask.resume)
            process = (session.role, session.run, session.node, session.incarnation)
            if process != ("node", ask.run, ask.node_id, ask.incarnation):
                raise NoError("UNAUTHENTICATED")
        elif session is not None and session.incarnation != ask.incarnation:
            self._replace(session)
            session = None
        return self._welcome(conn, session, "node", ask)

    def _hello_worker(self, conn: int, ask: HelloWorker) -> Told:
        if ask.fence.epoch != self.epoch:
            raise NoError("UNKNOWN_EPOCH")
        run = self.runs.get(ask.run)
        if run is None:
            raise NoError("UNKNOWN_RUN")
        g = run.generation
        if g is None or g.number != ask.fence.generation or not g.usable:
            raise NoError("STALE_GENERATION")
        if self.worker_secrets.get(ask.worker_token) != (ask.run, ask.node_id, g.number):
            nodes = {(s.run, s.node) for s in self.sessions.values() if s.role == "node"}
            known = (ask.run, ask.node_id) in nodes
            raise NoError("UNAUTHENTICATED" if known else "STALE_GENERATION")
        key = (ask.run, ask.node_id, ask.incarnation)
        alive = [
            s for s in self.sessions.values()
            if s.role == "worker" and (s.run, s.node, s.incarnation) == key
        ]  # fmt: skip
        session = alive[0] if alive else None
        if ask.resume is not None:
            session = self._proven(ask.resume)
            process = (session.role, session.run, session.node, session.incarnation)
            if process != ("worker", *key) or session.generation != g.number:
                raise NoError("UNAUTHENTICATED")
        return self._welcome(conn, session, "worker", ask)

    def _proven(self, proof: Any) -> Session:
        if proof.epoch != self.epoch:
            raise NoError("UNKNOWN_EPOCH")
        if proof.session not in self.sessions and proof.session not in self.fenced:
            raise NoError("SESSION_LOST")
        if self.secrets[proof.session] != proof.token:
            raise NoError("UNAUTHENTICATED")
        if proof.session in self.fenced:
            raise NoError("FENCED")
        return self.sessions[proof.session]

    def _replace(self, session: Session) -> None:
        """A new process with this node id: the old one may never act again."""
        self.replaced.append((session.run, session.node, session.incarnation))
        self.fenced.append(session.id)
        run, member = self.runs.get(session.run), self.member_of(session)
        if run is not None and member is not None:
            self.depart(run, member, ("replaced", session.node, None))
        else:
            self.session_over(session, ("error", "SESSION_LOST"))
        conn, session.conn = session.conn, None
        self._remove_session(session, "")
        if conn is not None:
            self.close_conn(conn, "FENCED")

    def _welcome(
        self, conn: int, session: Session | None, role: str, ask: HelloNode | HelloWorker
    ) -> Told:
        resumed = session is not None
        if session is None:
            before = self.gone.pop((ask.run, ask.node_id), None) if role == "node" else None
            if before is not None and before.incarnation != ask.incarnation:
                self.replaced.append((before.run, before.node, before.incarnation))
                self.fenced.append(before.id)
            self.sessions_made += 1
            lease = min(max(ask.lease_ms / 1000, LEASE_S[0]), LEASE_S[1])
            session = Session(
                self.sessions_made, role, ask.run, ask.node_id, ask.incarnation, lease
            )
            if isinstance(ask, HelloWorker):
                session.generation, session.rank = ask.fence.generation, ask.rank
            self.sessions[session.id] = session
        if ask.attempt < session.attempt:
            raise NoError("SUPERSEDED")
        session.attempt = ask.attempt
        if session.conn is not None:
            self.close_conn(session.conn)
        here = self.conns[conn]
        here.role, here.session = role, session.id
        session.conn, session.gone_since = conn, None
        session.heard, session.marked = self.t, None
        run, member = self.runs.get(session.run), self.member_of(session)
        if run is not None:
            run.burst.back(session.id)
        if member is not None:
            member.connected = True
        if run is None:
            seen: Told | None = None
        else:
            seen = self.view(run) if self.belongs(run, session) else (None, 0, ())
        return ("welcome", session.id, resumed, round(session.lease * 1000), seen)

    # --- as `rdzv status` shows it ------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Of every run: phase, generation, counts, how the last generation ended, and its members."""
        return {name: self._status_of(run) for name, run in self.runs.items()}

    def _status_of(self, run: Run) -> Told:
        live = run.live
        if run.closed:
            phase = "closed"
        elif run.over:
            phase = "ended"
        elif live is not None:
            phase = "live"
        else:
            phase = "forming" if run.enough_since is None else "last_call"
        members = [(m.node, self._state(run, m), self._rank(run, m)) for m in run.members.values()]
        waits = [
            (name, b.number, len(b.open.came))
            for name, b in (*run.barriers.items(), *self._barriers(run))
            if b.open is not None
        ]
        return (
            "idle" if run.policy is None else phase,
            None if run.generation is None else run.generation.number,
            len(live.nodes) if live is not None else 0,
            len(run.joining) if live is not None else 0,
            run.last_end,
            tuple(sorted(members, key=lambda row: row[0])),
            tuple(sorted(waits)),
            len(run.keys.values),
            0 if run.generation is None else len(run.generation.keys.values),
        )

    @staticmethod
    def _barriers(run: Run) -> list[tuple[str, Any]]:
        return [] if run.generation is None else list(run.generation.barriers.items())

    def _state(self, run: Run, member: Any) -> str:
        if not member.connected:
            return "suspect"
        if member.finished:
            return "finished"
        if member.join is not None:
            return "joining" if run.live is None else "standby"
        return "idle" if self._rank(run, member) is None else "participant"

    @staticmethod
    def _rank(run: Run, member: Any) -> int | None:
        return None if run.live is None else run.live.ranks.get(member.session)
