"""The production core under the virtual clock: what `rdzv_server.shell` does, without sockets."""

import hashlib
import random
from collections.abc import Callable

from rdzv_proto import codec, limits
from rdzv_proto.framing import PREAMBLE_BYTES, FrameBuffer
from rdzv_proto.messages import HelloNode
from rdzv_server.core.clock import TICK_S
from rdzv_server.core.coordinator import Coordinator
from rdzv_server.core.events import (
    Broadcast,
    Close,
    CloseListener,
    Effect,
    ListenerFailed,
    ListenerOpened,
    Lost,
    Opened,
    OpenListener,
    Persist,
    Received,
    Release,
    Report,
    Send,
    StoreClose,
    StoreSend,
)
from rdzv_server.core.invariants import Monitor, check_effects
from rdzv_server.core.model import Phase
from rdzv_server.core.settings import Identity, Settings
from tests.lab import save
from tests.sim.net import Clock, Link


class SimServer:
    """One server start after another, on one clock; invariants are checked after every step."""

    def __init__(
        self,
        clock: Clock,
        trace: Callable[[str], None],
        lost: Callable[[bytes], None],
        disk: random.Random | None = None,
    ) -> None:
        self._disk = disk
        """Of a durable server: how long commits take, and which of them a crash catches."""
        self.stored: dict[bytes, bytes] = {}
        self._uncommitted: list[tuple[dict[bytes, bytes | None], list[Effect]]] = []
        """Commits that are under way or wait, with the effects that wait for them."""
        self._starts = 0
        self._clock, self._trace, self._node_lost = clock, trace, lost
        self.links: dict[int, Link] = {}
        self._buffers: dict[int, FrameBuffer] = {}
        self._greeted: dict[int, int] = {}
        self._next_conn = 0
        self.stalled_until = 0.0
        self._missed: list[Callable[[], None]] = []
        self._incarnations: dict[str, bytes] = {}
        """Of the process that holds a node id's session, or held it last."""
        self.epoch = 0
        self._lives: dict[str, int] = {}
        self._over: set[str] = set()
        self.up = False
        self.start()
        self._beat()

    def start(self) -> None:
        """A start, without memory or with what was stored."""
        self._starts += 1
        if self._disk is None or not self.stored:
            self.epoch += 1
        key = hashlib.sha256(b"sim%d" % self._starts).digest()
        identity = Identity("sim", f"i{self._starts}", self.epoch, key)
        self.core = Coordinator(Settings(), identity, durable=self._disk is not None)
        self.monitor = Monitor()
        self._ports: dict[int, int] = {}
        """Open listeners of this start."""
        self._asked = 0
        self.up = True
        if self.stored:
            self._apply(self.core.resume(self._clock.now, dict(self.stored)))

    def life(self, run: str) -> tuple[int, int]:
        """Of a run's keys."""
        return self.epoch, self._lives.get(run, 0)

    def crash(self) -> None:
        """The process dies: every connection breaks, all memory is gone, and what was not stored. The commit
        that was under way may have been made, though nobody was told."""
        self.up = False
        if self._disk is not None and self._uncommitted and self._disk.random() < 0.5:
            save(self.stored, self._uncommitted[0][0])
        self._uncommitted.clear()
        for link in list(self.links.values()):
            link.reset()
        self.links.clear()
        self._buffers.clear()
        self._greeted.clear()

    def accept(self, link: Link) -> int:
        self._next_conn += 1
        conn = self._next_conn
        self.links[conn] = link
        self._buffers[conn] = FrameBuffer(limits.FRAME_BYTES_MAX)
        self._greeted[conn] = 0
        self._enter(lambda: self._opened(conn))
        return conn

    def received(self, conn: int, data: bytes) -> None:
        self._enter(lambda: self._received(conn, data))

    def lost(self, conn: int, reason: str) -> None:
        self._enter(lambda: self._lost(conn, reason))

    def stall(self, seconds: float) -> None:
        """The process does not run; what arrives waits in the kernel."""
        self.stalled_until = max(self.stalled_until, self._clock.now + seconds)
        self._clock.at(self.stalled_until, self._wake)

    def _wake(self) -> None:
        if self._clock.now < self.stalled_until:
            return
        # The timer fires first, before what is in the sockets is read: the worst order.
        self._tick()
        missed, self._missed = self._missed, []
        for action in missed:
            action()

    def _enter(self, action: Callable[[], None]) -> None:
        if self._clock.now < self.stalled_until:
            self._missed.append(action)
        elif self.up:
            action()

    def _opened(self, conn: int) -> None:
        if conn in self.links:
            self._apply(self.core.handle(self._clock.now, Opened(conn, "10.0.0.9", "10.0.0.1")))

    def _received(self, conn: int, data: bytes) -> None:
        buffer = self._buffers.get(conn)
        if buffer is None:
            return
        skip = min(PREAMBLE_BYTES - self._greeted[conn], len(data))
        self._greeted[conn] += skip
        buffer.feed(data[skip:])
        while conn in self._buffers and (body := buffer.pop()) is not None:
            request_id, message = codec.decode_request(body)
            self._trace(f"server <- {conn} {request_id} {message.op}")
            effects = self.core.handle(self._clock.now, Received(conn, request_id, message))
            if isinstance(message, HelloNode):
                holder = self.core.tables.nodes.get((message.run, message.node_id))
                if holder is not None:
                    self._incarnations[message.node_id] = holder.incarnation
            self._apply(effects)

    def _lost(self, conn: int, reason: str) -> None:
        if self.links.pop(conn, None) is not None:
            self._buffers.pop(conn)
            self._apply(self.core.handle(self._clock.now, Lost(conn, reason)))

    def _beat(self) -> None:
        if self.up and self._clock.now >= self.stalled_until:
            self._tick()
        self._clock.after(TICK_S, self._beat)

    def _tick(self) -> None:
        if self.up:
            self._apply(self.core.tick(self._clock.now))

    def _apply(self, effects: list[Effect]) -> None:
        check_effects(self.core.tables, effects)
        self.monitor.check(self.core.tables)
        self._note_lives()
        for effect in effects:  # of now: until it is told, a newer process may hold the node id
            if isinstance(effect, Report) and effect.event == "node_lost":
                self._node_lost(self._incarnations[effect.node])
        if effects and isinstance(effects[0], Persist):
            if len(self._uncommitted) < 2:  # one is under way; the others go together into the next
                self._uncommitted.append(({}, []))
            changes, waiting = self._uncommitted[-1]
            changes.update(effects[0].changes)
            waiting.extend(effects[1:])
            if len(self._uncommitted) == 1:
                self._commit_soon()
        elif self._uncommitted:
            self._uncommitted[-1][1].extend(effects)
        else:
            self._do(effects)
        due = self.core.next_deadline()
        if due is not None and due < self._clock.now + TICK_S:
            self._clock.at(due, lambda: self._enter(self._tick))

    def _commit_soon(self) -> None:
        assert self._disk is not None, "nothing is stored"
        delay_s = self._disk.expovariate(500) if self._disk.random() < 0.95 else 0.3
        start = self._starts
        self._clock.after(delay_s, lambda: self._committed(start))

    def _committed(self, start: int) -> None:
        if start != self._starts or not self.up:
            return
        changes, effects = self._uncommitted[0]
        save(self.stored, changes)
        self._do(effects)  # what comes of it joins the line
        del self._uncommitted[0]
        if self._uncommitted:
            self._commit_soon()

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send() | Broadcast() | Release() | Close() | Report():
                    self._speak(effect)
                case _:
                    pass
        for effect in effects:
            match effect:
                case OpenListener(listener):
                    self._listen(listener)
                case CloseListener(listener):
                    self._ports.pop(listener, None)
                case StoreSend() | StoreClose():
                    raise AssertionError("no simulated agent has TCPStore clients")
                case _:
                    pass

    def _note_lives(self) -> None:
        runs = self.core.tables.runs.values()
        over = {run.id for run in runs if run.phase in (Phase.ENDED, Phase.CLOSED)}
        for run_id in sorted(over - self._over):
            self._lives[run_id] = self._lives.get(run_id, 0) + 1
        self._over = over

    def _speak(self, effect: Send | Broadcast | Release | Close | Report) -> None:
        match effect:
            case Send(conn, request_id, message):
                self._write(conn, codec.encode(request_id, message))
            case Broadcast(conns, message):
                frame = codec.encode(0, message)
                for conn in conns:
                    self._write(conn, frame)
            case Release(to, reply):
                tail = codec.encode_tail(reply)
                for conn, request_id in to:
                    self._write(conn, codec.frame(request_id, tail))
            case Close(conn, goodbye):
                if goodbye is not None:
                    self._write(conn, codec.encode(0, goodbye))
                link = self.links.pop(conn, None)
                self._buffers.pop(conn, None)
                if link is not None:
                    link.down.close("closed by the server")
            case Report():
                self._reported(effect)

    def _reported(self, report: Report) -> None:
        self._trace(f"report {report.event} {report.node} {report.fields}")

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

    def _write(self, conn: int, data: bytes) -> None:
        link = self.links.get(conn)
        if link is not None:
            link.down.send(data)
