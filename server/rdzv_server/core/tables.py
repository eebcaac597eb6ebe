"""Everything the core knows, and its outbox. The rules are in the modules beside this one.

One step of the core (one event or one tick) sees one reading of the clock, `t`, and leaves its
effects in `effects`. Runs touched by a step are settled at its end, once.
"""

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Iterable

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import AnyPush, AnyReply, Fence, Goodbye
from rdzv_server.core.clock import RunClock
from rdzv_server.core.deadlines import Deadlines
from rdzv_server.core.durable.saving import SESSIONS_RESERVED, Saves, keys_of_run
from rdzv_server.core.durable.stored import Key, StoredFenced, StoredLost, StoredSeen
from rdzv_server.core.events import Broadcast, Close, Effect, Level, Release, Report, Send
from rdzv_server.core.model import Connection, Generation, Member, Phase, Run, Session
from rdzv_server.core.nccl.seen import SeenIds
from rdzv_server.core.refusal import Refused
from rdzv_server.core.rounds import Barrier
from rdzv_server.core.settings import Identity, Settings
from rdzv_server.core.tcpstore.model import Store, StoreClient
from rdzv_server.core.totals import Totals

FENCED_KEPT_MAX = 10_000
"""Superseded sessions that are remembered, so that their processes learn why they were cut."""

TOMBSTONES_MAX = 10_000
"""Run ids whose last generation number is remembered. Evicting one raises the floor for all."""

DeadlineKey = tuple[str, str | int, int]
"""("session", id, 0), ("hello" or "idle", connection, 0), ("run" or "forget", run id, 0),
("wait", session, request), ("round", serial, 0), ("store", listener, 0),
("greet", store client's connection, 0), ("nccl", run id, number of a record)."""


class Tables:
    """State and outbox of one server."""

    def __init__(self, settings: Settings, identity: Identity) -> None:
        self.settings = settings
        self.identity = identity
        self.clock = RunClock()
        self.t = 0.0
        self.started_at: float | None = None
        self.stall_ended_at = 0.0
        """When the server last ran again after it had stood still, in running seconds."""
        self.connections: dict[int, Connection] = {}
        self.sessions: dict[int, Session] = {}
        self.nodes: dict[tuple[str, str], Session] = {}
        """The one live session of each (run, node) (S5)."""
        self.workers: dict[tuple[str, str, bytes], Session] = {}
        self.fenced: OrderedDict[int, StoredFenced] = OrderedDict()
        """Superseded sessions by their id."""
        self.lost: OrderedDict[tuple[str, str], StoredLost] = OrderedDict()
        """The last process of a node, if its session is over (it was lost, or had left) and nobody has come since."""
        self.superseded: OrderedDict[tuple[str, str, bytes], None] = OrderedDict()
        """(run, node, incarnation) that may never come back."""
        self.runs: dict[str, Run] = {}
        self.ids_seen = SeenIds()
        """Fingerprints of unique ids; survive their generation (S18)."""
        self.tombstones: OrderedDict[str, int] = OrderedDict()
        self.generation_floor = 0
        self.session_last = 0
        self.stores: dict[int, Store] = {}
        """By listener: of forming runs, of live generations, and of those that just ended."""
        self.store_clients: dict[int, StoreClient] = {}
        self.listener_last = 0
        self.deadlines: Deadlines[DeadlineKey] = Deadlines()
        self.rounds: dict[int, tuple[Run, Generation | None, Barrier]] = {}
        """Open barrier rounds by serial number."""
        self.round_last = 0
        self.dirty: dict[str, None] = {}
        self.effects: list[Effect] = []
        self.shutting_down = False
        self.saves: Saves | None = None
        """What must be written; None: nothing survives a restart."""
        self.sessions_reserved = 0
        self.read_only = ""
        """Why nothing can be stored now."""
        self.stored_again_at = float("-inf")
        """When that was over last."""
        self.behind = False
        """Connections wait to be accepted."""
        self.caught_up_at = float("-inf")
        """Since when none does."""
        self.totals = Totals()
        self.denied = 0
        """Attempts to get in with a wrong token, proof or certificate."""

    # --- what survives a restart --------------------------------------------------------------

    def keep_saves(self) -> None:
        """From now on changes are noted."""
        self.saves = Saves()
        self.save("meta")

    def save(self, *key: str | int) -> None:
        """This record may have changed: see `durable.saving`."""
        if self.saves is not None:
            self.saves.marked[key] = None

    def save_all(self, keys: Iterable[Key]) -> None:
        """So may these."""
        if self.saves is not None:
            self.saves.marked.update(dict.fromkeys(keys))

    def save_later(self, keys: Iterable[Key]) -> None:
        """So may these, and they can wait for something else to be written."""
        if self.saves is not None:
            self.saves.later.update(dict.fromkeys(keys))

    def save_hints(self, run: Run, member: Member) -> None:
        """A member changes, and with it who waits for its rank hint."""
        if self.saves is not None:
            self.save("session", member.session.id)
            for other in run.rivals.values():
                self.save("session", other.session.id)

    def next_session(self) -> int:
        """An id that no session of this epoch ever had, also across restarts."""
        self.session_last += 1
        if self.session_last > self.sessions_reserved:
            self.sessions_reserved = self.session_last + SESSIONS_RESERVED
            self.save("meta")
        return self.session_last

    # --- outbox -----------------------------------------------------------------------------

    def push(self, session: Session, message: AnyPush) -> None:
        """Send a push if the session has a connection; pushes are never kept."""
        if session.connection is not None:
            self.effects.append(Send(session.connection.id, 0, message))

    def broadcast(self, sessions: list[Session], message: AnyPush) -> None:
        """Send one push to several sessions."""
        conns = tuple(s.connection.id for s in sessions if s.connection is not None)
        if conns:
            self.effects.append(Broadcast(conns, message))

    def answer(self, session: Session, request_id: int, message: AnyReply, *, keep: bool) -> None:
        """Answer a request, parked or not; with `keep` the reply is recorded for a retry."""
        self.settle(session, request_id, message, keep=keep)
        if session.connection is not None:
            self.effects.append(Send(session.connection.id, request_id, message))

    def settle(self, session: Session, request_id: int, message: AnyReply, *, keep: bool) -> None:
        """The request does not wait any more; with `keep` its reply is recorded for a retry, and stored."""
        if session.parked.pop(request_id, None) is not None:
            self.deadlines.cancel(("wait", session.id, request_id))
        if keep and session.replies.get(request_id) is not message:
            session.record(request_id, message)
            if request_id not in session.transient:
                self.save("reply", session.id, request_id)

    def release(
        self, waiting: Iterable[tuple[Session, int]], message: AnyReply, *, keep: bool
    ) -> None:
        """Give many parked requests the same answer: what `answer` does for each, encoded once. With `keep` they are
        arrivals at a barrier."""
        to = []
        for session, request_id in waiting:
            if keep:  # arrivals: their round has the one deadline, and its decision is stored with the barrier
                session.parked.pop(request_id, None)
                session.record(request_id, message, apart=True)
            else:
                self.settle(session, request_id, message, keep=False)
            if session.connection is not None:
                to.append((session.connection.id, request_id))
        if to:
            self.effects.append(Release(tuple(to), message))

    def close(self, connection: Connection, code: ErrorCode | None = None, text: str = "") -> None:
        """Cut a connection and forget it; with a code, say why first."""
        goodbye = Goodbye(code=code, message=text) if code is not None else None
        self.effects.append(Close(connection.id, goodbye))
        self.forget_connection(connection)

    def forget_connection(self, connection: Connection) -> None:
        """Remove a connection from the tables; its session goes on without it."""
        self.connections.pop(connection.id, None)
        for kind in ("hello", "idle"):
            self.deadlines.cancel((kind, connection.id, 0))
        if connection.session is not None and connection.session.connection is connection:
            connection.session.connection = None

    def report(
        self,
        event: str,
        *,
        level: Level = "info",
        run: str = "-",
        node: str = "-",
        fence: Fence | None = None,
        **fields: str | float,
    ) -> None:
        """One line for the log, and for the run's story."""
        self.effects.append(
            Report(event, level, run, node, "-" if fence is None else str(fence), fields)
        )
        known = self.runs.get(run)
        if known is not None:
            known.story.tell(self.t, f"{event} node={node} {fields}")

    # --- tokens -----------------------------------------------------------------------------

    def session_token(self, session_id: int, run_id: str, node_id: str) -> bytes:
        """128 bits that only the server can make; proves a session on resume. Made anew each time, so
        that no list of them is kept anywhere."""
        return self._mac(f"session\0{session_id}\0{run_id}\0{node_id}")[:16]

    def worker_token(self, run_id: str, node_id: str, fence: Fence) -> bytes:
        """Lets the workers of one node attach to one generation."""
        return self._mac(f"worker\0{run_id}\0{fence}\0{node_id}")

    def _mac(self, text: str) -> bytes:
        text = f"{self.identity.epoch}\0{text}"
        return hmac.digest(self.identity.key, text.encode(), "sha256")

    # --- runs -------------------------------------------------------------------------------

    def open_run(self, run_id: str) -> Run:
        """The run of that name, made if there is none.

        Raises:
            Refused: LIMIT_EXCEEDED if there are too many runs and none of them has ended.
        """
        run = self.runs.get(run_id)
        if run is None:
            if len(self.runs) >= limits.RUNS_MAX:
                self._evict_run()
            number = max(self.tombstones.pop(run_id, 0), self.generation_floor)
            run = self.runs[run_id] = Run(run_id, number, phase_at=self.t)
            self.save("tomb", run_id)
            self.save_all(keys_of_run(run))
        return run

    def use_run(self, run_id: str) -> Run:
        """The run of that name, for its own keys and barriers; made if there is none. A run without
        nodes stays for its keep time after the last use.

        Raises:
            Refused: LIMIT_EXCEEDED.
        """
        run = self.open_run(run_id)
        run.used_at = self.t
        if run.phase in (Phase.ENDED, Phase.CLOSED) and not run.members:
            self.deadlines.set(("forget", run.id, 0), self.t + self.settings.run_keep_s)
        return run

    def open_round(self, run: Run, generation: Generation | None, barrier: Barrier) -> None:
        """Somebody waits in a barrier round: it has a deadline from now on."""
        self.round_last += 1
        barrier.serial = self.round_last
        self.rounds[barrier.serial] = (run, generation, barrier)
        self.deadlines.set(("round", barrier.serial, 0), self.t + barrier.timeout_s)

    def close_round(self, barrier: Barrier) -> None:
        """A barrier round is over."""
        self.rounds.pop(barrier.serial, None)
        self.deadlines.cancel(("round", barrier.serial, 0))

    def forget_run(self, run: Run) -> None:
        """Drop everything about a run but its generation number. What is large goes at once: run,
        sessions and members know each other, and would wait for the collector of an idle server."""
        self.save_all(keys_of_run(run))
        self.save("tomb", run.id)
        self.save("meta")
        del self.runs[run.id]
        run.kv.clear()
        run.barriers.clear()
        if run.generation is not None:
            run.generation.kv.clear()
            run.generation.barriers.clear()
        for kind in ("run", "forget"):
            self.deadlines.cancel((kind, run.id, 0))
        if run.number:
            self.tombstones[run.id] = run.number
        while len(self.tombstones) > TOMBSTONES_MAX:
            name, number = self.tombstones.popitem(last=False)
            self.save("tomb", name)
            self.generation_floor = max(self.generation_floor, number)

    def _evict_run(self) -> None:
        ended = [
            r for r in self.runs.values()
            if r.phase is Phase.ENDED and not r.members and r.policy is not None and not r.awaited
        ]  # fmt: skip
        if not ended:
            raise Refused(
                ErrorCode.LIMIT_EXCEEDED,
                f"this server already holds {limits.RUNS_MAX} runs that have not ended",
            )
        self.forget_run(min(ended, key=lambda run: run.phase_at))

    def touch(self, run: Run) -> None:
        """Have the run settled at the end of this step."""
        self.dirty[run.id] = None
        self.save("run", run.id)

    def remember_fenced(self, session: Session) -> None:
        """A superseded process may never act again, nor come back under its old incarnation."""
        lost = StoredLost(session.id, session.incarnation, session.token_hash)
        self._fence(session.run_id, session.node_id, lost)

    def remember_lost(self, session: Session) -> None:
        """A node's session is over; if another process comes before this one is back, that one is the node's."""
        key = (session.run_id, session.node_id)
        self.lost[key] = StoredLost(session.id, session.incarnation, session.token_hash)
        self.save("lost", *key)
        while len(self.lost) > FENCED_KEPT_MAX:
            oldest, _ = self.lost.popitem(last=False)
            self.save("lost", *oldest)

    def has_come(self, run_id: str, node_id: str, incarnation: bytes) -> None:
        """A process opens a node's session: one that was lost before is superseded, or it is back."""
        lost = self.lost.pop((run_id, node_id), None)
        if lost is not None:
            self.save("lost", run_id, node_id)
            if lost.incarnation != incarnation:
                self._fence(run_id, node_id, lost)

    def _fence(self, run_id: str, node_id: str, old: StoredLost) -> None:
        self.fenced[old.session] = StoredFenced(run_id, node_id, old.incarnation, old.token_hash)
        self.superseded[(run_id, node_id, old.incarnation)] = None
        self.save("fenced", old.session)
        while len(self.fenced) > FENCED_KEPT_MAX:
            number, first = self.fenced.popitem(last=False)
            self.superseded.pop((first.run, first.node_id, first.incarnation), None)
            self.save("fenced", number)

    def remember_id(self, seen: StoredSeen) -> None:
        """A unique id is taken, and never again."""
        self.save_all(("seen", number) for number in self.ids_seen.add(seen))


def hash_of(token: bytes) -> bytes:
    """Of a secret: what is kept instead of it. It has 128 random bits, so nothing slower is needed."""
    return hashlib.sha256(token).digest()
