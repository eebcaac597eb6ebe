"""The server process around the core: accepts, feeds events, executes effects, keeps the timer.

The clock is read here and nowhere else: once per batch of input. The core is entered at least once
per tick, which is how it notices that the process did not run (SEMANTICS D1).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from itertools import repeat

from rdzv_proto import codec
from rdzv_proto.messages import AnyRequest, Welcome
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
    Release,
    Report,
    Send,
    StoreClose,
    StoreLost,
    StoreOpened,
    StoreReceived,
    StoreSend,
)
from rdzv_server.core.settings import Identity, Settings
from rdzv_server.shell import log
from rdzv_server.shell.connection import Connection
from rdzv_server.shell.limiter import Limiter
from rdzv_server.shell.memory import Memory
from rdzv_server.shell.store_connection import StoreConnection
from rdzv_server.shell.store_listener import NoPortError, StoreListeners, StorePorts

SHUTDOWN_S = 2.0
"""Clients get this long to read that the server is going away."""

RETRY_AFTER_MS = 500
"""How long clients hold off after that: a restart takes about this long."""


class Server:
    """One server process.

    Args:
        settings: for the core.
        identity: of this start.
        store_ports: where workers' stores may listen.
        tcpstore: TCPStore clients are served at the main port too.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        store_ports: StorePorts | None = None,
        *,
        tcpstore: bool = False,
    ) -> None:
        self.version = identity.version
        self.tcpstore = tcpstore
        self._core = Coordinator(settings, identity)
        self._connections: dict[int, Connection] = {}
        self._stores: dict[int, StoreConnection] = {}
        self._listeners = StoreListeners(store_ports or StorePorts(), self.store_protocol)
        self._sockets = 0
        self._next_conn = 0
        self._to_flush: list[Connection | StoreConnection] = []
        self._in_turn = False
        """Input of this turn of the loop has come already."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._limiters: dict[str, Limiter] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._memory = Memory()
        self._stopped = False
        self._execute(self._core.tick(time.monotonic()))
        self._arm()

    def protocol(self) -> Connection:
        """A new connection's end, for `loop.create_server`."""
        self._next_conn += 1
        return Connection(self, self._next_conn)

    def store_protocol(self, listener: int) -> StoreConnection:
        """The end of a TCPStore client's connection."""
        self._next_conn += 1
        return StoreConnection(self, self._next_conn, listener)

    async def shut_down(self) -> None:
        """Tell everyone, give them a moment to read it, and cut what is left."""
        self._execute(self._core.shut_down(time.monotonic(), RETRY_AFTER_MS))
        self.flush()
        for connection in list(self._connections.values()):
            connection.finish()
        self._listeners.close_all()
        for store in list(self._stores.values()):
            store.finish()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._empty.wait(), SHUTDOWN_S)
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    # --- from connections ---------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """A socket was accepted."""
        self._count(1)
        self.later(self._core.tables.settings.hello_timeout_s, connection.expect_preamble)

    def opened(self, connection: Connection) -> None:
        """A good preamble came."""
        self._connections[connection.conn] = connection
        event = Opened(connection.conn, connection.peer_host, connection.local_host)
        self._execute(self._core.handle(time.monotonic(), event))

    def begin(self) -> None:
        """Requests came. The clock is read once for all that are read in one turn of the loop, and the
        timer looked at once, when they are through."""
        if not self._in_turn:
            self._in_turn = True
            self._core.begin(time.monotonic())
            self._loop.call_soon(self._turn_over)

    def received(self, connection: Connection, request_id: int, message: AnyRequest) -> None:
        """A request came."""
        if connection.conn in self._connections:
            reply = self._core.request(connection.conn, request_id, message)
            if reply is not None:  # most of the time
                connection.send(codec.encode(request_id, reply))
            elif effects := self._core.outcome():
                self._execute(effects)

    def lost(self, connection: Connection, reason: str) -> None:
        """The connection is gone, or is being closed by the shell."""
        if self._connections.pop(connection.conn, None) is not None:
            self._execute(self._core.handle(time.monotonic(), Lost(connection.conn, reason)))
            self.flush()

    def disconnected(self, connection: Connection, reason: str) -> None:
        """The socket is closed."""
        self.lost(connection, reason)
        self._count(-1)

    def refused(self, connection: Connection | StoreConnection, event: str, text: str) -> None:
        """Something from outside that nobody asked for: at most one line a second of each kind."""
        held = self._limiters.setdefault(event, Limiter()).pass_at(time.monotonic())
        if held is not None:
            more = {"suppressed": held} if held else {}
            log.event(event, "warning", peer=connection.peer, reason=text[:256], **more)

    def to_flush(self, connection: Connection | StoreConnection) -> None:
        """The connection has something queued."""
        self._to_flush.append(connection)

    def flush(self) -> None:
        """Write everything queued, one call per connection; then look at the timer."""
        while self._to_flush:
            waiting, self._to_flush = self._to_flush, []
            for connection in waiting:
                connection.flush()
        self._arm()

    def flush_others(self) -> None:
        """Write what a request made the server say on other connections."""
        if self._to_flush:
            self.flush()

    def _turn_over(self) -> None:
        self._in_turn = False
        self.flush()

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run an action after a while."""
        self._loop.call_later(delay_s, action)

    def _count(self, change: int) -> None:
        self._sockets += change
        if self._sockets:
            self._empty.clear()
        else:
            self._empty.set()

    # --- from TCPStore clients ----------------------------------------------------------------

    def handed_over(self, connection: Connection) -> None:
        """It turned out to be a TCPStore client's: its socket is counted there from now on."""
        self._count(-1)

    def store_opened(self, store: StoreConnection) -> None:
        """A TCPStore client connected."""
        self._count(1)
        self._stores[store.conn] = store
        event = StoreOpened(store.conn, store.listener, store.peer_host)
        self._execute(self._core.handle(time.monotonic(), event))
        self.flush()

    def store_received(self, store: StoreConnection, data: bytes) -> None:
        """Bytes of a TCPStore client."""
        event = StoreReceived(store.conn, data)
        self._execute(self._core.handle(time.monotonic(), event))
        self.flush()

    def store_lost(self, store: StoreConnection) -> None:
        """A TCPStore client is gone."""
        self._stores.pop(store.conn, None)
        self._count(-1)
        self._execute(self._core.handle(time.monotonic(), StoreLost(store.conn)))
        self.flush()

    # --- effects and time ---------------------------------------------------------------------

    def _execute(self, effects: list[Effect]) -> None:
        answers: list[ListenerOpened | ListenerFailed] = []
        for effect in effects:
            match effect:
                case Send() | Broadcast() | Release() | Close():
                    self._speak(effect)
                case StoreSend() | StoreClose() | CloseListener():
                    self._execute_store(effect)
                case OpenListener(listener):
                    answers.append(self._listen(listener))
                case Report():
                    log.write(effect)
                    if effect.event == "run_forgotten":
                        self._memory.freed()
        for event in answers:
            self._execute(self._core.handle(time.monotonic(), event))

    def _speak(self, effect: Send | Broadcast | Release | Close) -> None:
        match effect:
            case Send(conn, request_id, message):
                connection = self._connections.get(conn)
                if connection is not None:
                    connection.send(codec.encode(request_id, message))
                    if isinstance(message, Welcome):
                        connection.welcome()
            case Broadcast(conns, push):
                self._send_frames(zip(conns, repeat(codec.encode(0, push))))
            case Release(to, reply):
                tail = codec.encode_tail(reply)
                self._send_frames((conn, codec.frame(number, tail)) for conn, number in to)
            case Close(conn, goodbye):
                connection = self._connections.pop(conn, None)
                if connection is not None:
                    connection.goodbye(goodbye)

    def _execute_store(self, effect: CloseListener | StoreSend | StoreClose) -> None:
        match effect:
            case StoreSend(conn, data):
                store = self._stores.get(conn)
                if store is not None:
                    store.send(data)
            case StoreClose(conn):
                store = self._stores.get(conn)
                if store is not None:
                    store.finish()
            case CloseListener(listener):
                self._listeners.close(listener)

    def _listen(self, listener: int) -> ListenerOpened | ListenerFailed:
        try:
            return ListenerOpened(listener, self._listeners.open(listener))
        except NoPortError as error:
            return ListenerFailed(listener, str(error))

    def _send_frames(self, frames: Iterable[tuple[int, bytes]]) -> None:
        for conn, frame in frames:
            connection = self._connections.get(conn)
            if connection is not None:
                connection.send(frame)

    def _arm(self) -> None:
        """One timer for everything. A later deadline is found when the present timer fires."""
        if self._stopped or (self._timer is not None and self._core.quiet_until(self._timer_at)):
            return
        now = time.monotonic()
        due = self._core.next_deadline()
        at = now + TICK_S if due is None else min(now + TICK_S, due)
        if self._timer is None or at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self._loop.call_later(max(0.0, at - now), self._tick)

    def _tick(self) -> None:
        self._timer = None
        # uvloop's timers fire up to a millisecond early; the core must find its deadline due.
        self._execute(self._core.tick(max(time.monotonic(), self._timer_at)))
        self.flush()
