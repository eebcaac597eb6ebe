"""The production core under the virtual clock: what `rdzv_server.shell` does, without sockets."""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from rdzv_proto.agreement import Spoken
from rdzv_proto.auth import Token
from rdzv_proto.messages import (
    Alive,
    AnyPush,
    AnyReply,
    AnyRequest,
    Error,
    HelloNode,
    Welcome,
)
from rdzv_server.core.clock import TICK_S
from rdzv_server.core.coordinator import Coordinator
from rdzv_server.core.due import PER_STEP as DUE_PER_STEP
from rdzv_server.core.events import (
    Agreed,
    Broadcast,
    Close,
    CloseListener,
    Effect,
    Identified,
    ListenerFailed,
    ListenerOpened,
    Lost,
    Opened,
    OpenListener,
    Persist,
    Release,
    Report,
    Send,
    StorageTrouble,
    StoreClose,
    StoreSend,
)
from rdzv_server.core.invariants import Monitor, check_effects, check_times
from rdzv_server.core.settings import Identity, Settings
from rdzv_server.shell.gate import Hello
from tests.lab import check_stored
from tests.sim.disk import Disk, SimLedger
from tests.sim.gate import SimGate
from tests.sim.lives import Lives
from tests.sim.net import Clock, Link
from tests.sim.peer import Peer

WALL_MS = 1_700_000_000_000
"""What the clock on the wall shows at the beginning."""

STORED_CHECK_EVERY = 64
"""Steps between two comparisons of what is stored with the whole state, which takes long."""


class SimServer:
    """One server start after another, on one clock; invariants are checked after every step.

    Args:
        lost: told of every process whose session expires, and whether something of it lay unread.
        disk: what the server stores outlives it; None: it forgets everything.
        tokens: in force; none: everybody may come in.
        spoken: which versions of the protocol each start of it speaks, counted from 1.
    """

    def __init__(
        self,
        clock: Clock,
        trace: Callable[[str], None],
        lost: Callable[[bytes, bool], None],
        rng: random.Random,
        *,
        disk: Disk | None = None,
        tokens: Iterable[Token] = (),
        settings: Settings | None = None,
        spoken: Callable[[int], Spoken],
        due_per_step: int = DUE_PER_STEP,
    ) -> None:
        self._due_per_step = due_per_step
        self._spoken_by = spoken
        self.agreed: Counter[int] = Counter()
        """Connections, by the version that is spoken on them."""
        self._clock, self._trace, self._node_lost = clock, trace, lost
        self.disk = disk
        self._settings = settings or Settings()
        self._gate = SimGate(rng, list(tokens))
        self._starts = 0
        self.peers: dict[int, Peer] = {}
        self._next_conn = 0
        self.stalled_until = 0.0
        self._stalls: list[tuple[float, float]] = []
        """When it began, and when it ends."""
        self._missed: list[tuple[bytes, Callable[[], None]]] = []
        """What waits in the kernel, and whose it is."""
        self.met: dict[bytes, int] = {}
        """Processes in the order in which they got a session, as far as the server remembers them."""
        self.met_by_start: list[dict[bytes, int]] = []
        """The same for each start, the last one included: a process that slept hears late what an earlier one said."""
        self.met_by_epoch: dict[int, dict[bytes, int]] = {}
        """And of the last start of each epoch: what is told of a generation is told by one of that epoch."""
        self._hellos = 0
        self._incarnations: dict[str, bytes] = {}
        """Of the process that holds a node id's session, or held it last."""
        self.epochs: list[int] = []
        self.wall_ahead_ms = 0
        """How far its machine's clock on the wall is ahead of the time that passed; it jumps."""
        self.lives = Lives()
        """Of the keys of runs."""
        self._steps = 0
        self._timer = 0
        """Number of the timer that is set; those before it were cancelled."""
        self._fires_at: float | None = None
        self.up = False
        self.start()

    def start(self) -> None:
        """A start, without memory or with what was stored."""
        self._starts += 1
        self._spoken = self._spoken_by(self._starts)
        stored = {} if self.disk is None else dict(self.disk.stored)
        if not stored:
            self.epochs.append(self._new_epoch())
        key = hashlib.sha256(b"sim%d" % self._starts).digest()
        identity = Identity("sim", f"i{self._starts}", self.epoch, key)
        self.core = Coordinator(self._settings, identity, durable=self.disk is not None)
        self.core.due_per_step = self._due_per_step
        self.monitor = Monitor()
        self.ledger = SimLedger(self._clock, self.disk, self._do, self._trouble)
        self._ports: dict[int, int] = {}
        """Open listeners of this start."""
        self._asked = 0
        self.up = True
        effects = self.core.resume(self._clock.now, stored) if stored else []
        self.lives.resumed(self.core.tables.runs)
        self._apply(effects)
        self._remember_processes()

    def _remember_processes(self) -> None:
        """Those that this start knows of."""
        tables = self.core.tables
        known = {session.incarnation for session in tables.sessions.values()}
        known |= {lost.incarnation for lost in tables.lost.values()}
        known |= {incarnation for _, _, incarnation in tables.superseded}
        self.met = {one: order for one, order in self.met.items() if one in known}
        self.met_by_start.append(self.met)
        self.met_by_epoch[self.epoch] = self.met

    def _new_epoch(self) -> int:
        """As `rdzv_server.shell.stored.new_epoch` does."""
        return max(1, WALL_MS + round(self._clock.now * 1000) + self.wall_ahead_ms)

    @property
    def epoch(self) -> int:
        """The present one."""
        return self.epochs[-1]

    # --- what happens to it -------------------------------------------------------------------

    def crash(self) -> None:
        """The process dies: every connection breaks, and all memory is gone."""
        self.up = False
        self._timer, self._fires_at = self._timer + 1, None
        self.ledger.crash()
        for peer in list(self.peers.values()):
            peer.link.reset()
        self.peers.clear()

    def stall(self, seconds: float) -> None:
        """The process does not run; what arrives waits in the kernel."""
        now = self._clock.now
        if now >= self.stalled_until:
            self._stalls.append((now, now))
        self.stalled_until = max(self.stalled_until, now + seconds)
        self._stalls[-1] = (self._stalls[-1][0], self.stalled_until)
        self._clock.at(self.stalled_until, self._wake)

    def ran_s(self, since: float) -> float:
        """How long it was not stalled since then."""
        now = self._clock.now
        stood_s = sum(max(0.0, min(end, now) - max(begin, since)) for begin, end in self._stalls)
        return now - since - stood_s

    def _wake(self) -> None:
        if self._clock.now < self.stalled_until:
            return
        # The timer fires first, before what is in the sockets is read: the worst order.
        self._tick()
        missed, self._missed = self._missed, []
        for _, action in missed:
            if self.up:
                action()

    def restart(self) -> None:
        """Somebody starts it, if nobody else has."""
        if not self.up:
            self.start()

    def heal(self) -> None:
        """It runs, its disk has room, and nothing holds it."""
        if self.disk is not None:
            self.disk.full_until = self._clock.now
        self.restart()
        if self._clock.now < self.stalled_until:
            self.stalled_until = self._clock.now
            self._stalls[-1] = (self._stalls[-1][0], self.stalled_until)
            self._wake()

    def _trouble(self, why: str) -> None:
        self._apply(self.core.handle(self._clock.now, StorageTrouble(why)))

    # --- from the network ---------------------------------------------------------------------

    def accept(self, link: Link, incarnation: bytes) -> int:
        self._next_conn += 1
        conn = self._next_conn
        self.peers[conn] = Peer(link, incarnation, self._spoken)
        self._enter(b"", lambda: self._opened(conn))
        return conn

    def received(self, conn: int, data: bytes) -> None:
        peer = self.peers.get(conn)
        if peer is not None:
            self._enter(peer.incarnation, lambda: self._received(conn, data))

    def lost(self, conn: int, reason: str) -> None:
        self._enter(b"", lambda: self._lost(conn, reason))

    def _enter(self, whose: bytes, action: Callable[[], None]) -> None:
        if self._clock.now < self.stalled_until:
            self._missed.append((whose, action))
        elif self.up:
            action()

    def _opened(self, conn: int) -> None:
        if conn in self.peers:
            self._apply(self.core.handle(self._clock.now, Opened(conn, "10.0.0.9", "10.0.0.1")))

    def _received(self, conn: int, data: bytes) -> None:
        peer = self.peers.get(conn)
        if peer is None or not self.up:
            return
        self.core.begin(self._clock.now)
        for request_id, message, body in peer.requests(data):
            self._trace(f"server <- {conn} {request_id} {message.op}")
            if isinstance(message, Hello):
                version = peer.agree(message, body)
                self.agreed[version] += 1
                self._apply(self.core.handle(self._clock.now, Agreed(conn, version)))
            told = self._gate.admit(conn, message, body)
            if isinstance(told, Identified):
                self._apply(self.core.handle(self._clock.now, told))
                self._request(conn, request_id, self._gate.hello(conn))
            elif isinstance(told, Welcome | Error):
                peer.say(request_id, told)
            else:
                self._request(conn, request_id, told)
            if conn not in self.peers:
                break

    def _request(self, conn: int, request_id: int, message: AnyRequest) -> None:
        reply = self.core.request(conn, request_id, message)
        run_id = self.core.run_of(conn) or None  # a tick looks at all runs
        if isinstance(message, HelloNode):
            holder = self.core.tables.nodes.get((message.run, message.node_id))
            if holder is not None:
                self._incarnations[message.node_id] = holder.incarnation
                if (
                    holder.incarnation == message.incarnation
                ):  # one that was refused is not remembered
                    self._hellos += 1
                    self.met.setdefault(message.incarnation, self._hellos)
        if reply is None:
            self._apply(self.core.outcome(), run_id)
            return
        if isinstance(reply, Alive):
            self.monitor.check(self.core.tables, run_id)
            self._say(conn, request_id, reply)
        else:
            self._apply([Send(conn, request_id, reply)], run_id)

    def _lost(self, conn: int, reason: str) -> None:
        """The core may have cut it before, and is told all the same: while commits are under way the shell does
        not know yet."""
        self.peers.pop(conn, None)
        self._gate.gone(conn)
        if self.up:
            self._apply(self.core.handle(self._clock.now, Lost(conn, reason)))

    # --- time and effects ---------------------------------------------------------------------

    def _arm(self) -> None:
        """As `rdzv_server.shell.timer` does: one timer, at the next deadline, and at least once a tick."""
        now = self._clock.now
        if self._fires_at is not None and self.core.quiet_until(self._fires_at):
            return
        due = self.core.next_deadline()
        at = now + TICK_S if due is None else min(now + TICK_S, due)
        if self._fires_at is None or at < self._fires_at:
            self._timer, self._fires_at = self._timer + 1, at
            number = self._timer
            self._clock.at(at, lambda: self._fire(number))

    def _fire(self, number: int) -> None:
        if number != self._timer:
            return
        self._fires_at = None
        if self._clock.now >= self.stalled_until:  # else it fires when the process runs again
            self._tick()

    def _tick(self) -> None:
        if not self.up:
            return
        tables = self.core.tables
        due = tables.deadlines.next()
        idle = due is None or tables.clock.monotonic(due) > self._clock.now
        effects = self.core.tick(self._clock.now)
        if idle and not effects:  # but for the time everything is as it was checked last
            check_times(tables)
            self._arm()
        else:
            self._apply(effects)

    def _apply(self, effects: list[Effect], only: str | None = None) -> None:
        tables = self.core.tables
        check_effects(tables, effects, only)
        self.monitor.check(tables, only)
        self.lives.note(tables.runs)
        for effect in effects:  # of now: until it is told, a newer process may hold the node id
            if isinstance(effect, Report) and effect.event == "node_lost":
                self._lost_node(self._incarnations[effect.node])
        self.ledger.take(effects)
        self._steps += 1
        if self.disk is not None and self._steps % STORED_CHECK_EVERY == 0 and self.ledger.clean:
            check_stored(tables, self.disk.stored)
        self._arm()

    def _lost_node(self, incarnation: bytes) -> None:
        whole = {p.incarnation for p in self.peers.values() if p.link.up.empty}
        unread = any(whose == incarnation for whose, _ in self._missed) and incarnation in whole
        self._node_lost(incarnation, unread)

    def _do(self, effects: list[Effect]) -> None:
        asked: list[int] = []
        for effect in effects:
            match effect:
                case Send() | Broadcast() | Release() | Close():
                    self._speak(effect)
                case Report():
                    self._trace(f"report {effect.event} {effect.node} {effect.fields}")
                case OpenListener(listener):
                    asked.append(listener)
                case CloseListener(listener):
                    self._ports.pop(listener, None)
                case StoreSend() | StoreClose():
                    raise AssertionError("no simulated agent has TCPStore clients")
                case Persist():
                    raise AssertionError("records that nobody stores")
        for listener in asked:
            self._listen(listener)

    def _speak(self, effect: Send | Broadcast | Release | Close) -> None:
        match effect:
            case Send(conn, request_id, message):
                self._say(conn, request_id, self._welcome(conn, message))
            case Broadcast(conns, push):
                for conn in conns:
                    self._say(conn, 0, push)
            case Release(to, reply):
                for conn, request_id in to:
                    self._say(conn, request_id, reply)
            case Close(conn, goodbye):
                if goodbye is not None:
                    self._say(conn, 0, goodbye)
                peer = self.peers.pop(conn, None)
                if peer is not None:
                    peer.link.down.close("closed by the server")

    def _welcome(self, conn: int, message: AnyReply | AnyPush) -> AnyReply | AnyPush:
        """With the server's proof, if the client gave its own."""
        proof = self._gate.proof(conn) if isinstance(message, Welcome) else None
        return message if proof is None else replace(message, proof=proof)

    def _listen(self, listener: int) -> None:
        """Every run needs a port for each generation; there are few of them, so some must wait."""
        self._asked += 1
        if self._asked % 4 == 0:
            event: ListenerOpened | ListenerFailed = ListenerFailed(listener, "no port is free")
        else:
            self._ports[listener] = 40_000 + self._asked
            event = ListenerOpened(listener, self._ports[listener])
        self._trace(f"listener {event}")
        self._apply(self.core.handle(self._clock.now, event))

    def _say(self, conn: int, request_id: int, message: AnyReply | AnyPush) -> None:
        peer = self.peers.get(conn)
        if peer is not None:
            peer.say(request_id, message)
