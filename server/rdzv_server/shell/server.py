"""The server process around the core: accepts, feeds events, executes effects, keeps the timer.

The clock is read here and nowhere else: once per batch of input. The core is entered at least once
per tick, which is how it notices that the process did not run (SEMANTICS D1).
"""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Awaitable, Callable

from rdzv_proto.auth import Grant
from rdzv_proto.messages import Alive as AliveReply
from rdzv_proto.messages import AnyRequest
from rdzv_server.core.coordinator import Coordinator
from rdzv_server.core.events import (
    Alive,
    Behind,
    Denied,
    Effect,
    Event,
    Identified,
    Lost,
    Opened,
    Send,
    StorageTrouble,
)
from rdzv_server.core.settings import Identity, Settings
from rdzv_server.core.tables import Tables
from rdzv_server.http.health import Health
from rdzv_server.shell import log
from rdzv_server.shell.admission import UNLIMITED, Admission
from rdzv_server.shell.connection import Connection
from rdzv_server.shell.doer import Doer
from rdzv_server.shell.framed import Framed
from rdzv_server.shell.gate import Delays, Gate
from rdzv_server.shell.laggards import Laggards
from rdzv_server.shell.ledger import Ledger
from rdzv_server.shell.limiter import Lines
from rdzv_server.shell.peer import Peer
from rdzv_server.shell.portions import Ends, Outbox
from rdzv_server.shell.store_connection import StoreConnection
from rdzv_server.shell.store_listener import StorePorts
from rdzv_server.shell.store_side import StoreSide
from rdzv_server.shell.stored import CommitNumbers, Stored
from rdzv_server.shell.timer import Timer
from rdzv_server.shell.turns import Turns
from rdzv_server.storage.lead import Lead

SHUTDOWN_S = 2.0
"""Clients get this long to read that the server is going away."""

READING_S = 0.01
"""How long a reading of the clock serves a turn. The process may be stopped in the middle of one, and what came
meanwhile is read in its rest: with the old reading its senders would count as silent since before the stop."""

FLUSH_AFTER_S = 0.001
"""What the requests of a turn of the loop are answered is written when the turn is over, or after this long. Written one
by one, each answer wakes who waits for it, and the server pays for that: more than for the whole request."""

RETRY_AFTER_MS = 500
"""How long clients hold off after that: a restart takes about this long."""


class Server:
    """One server process.

    Args:
        settings: for the core.
        identity: of this start.
        store_ports: where workers' stores may listen.
        tcpstore: TCPStore clients are served at the main port too.
        gate: asks every client for a proof; None: nobody has to prove anything.
        admission: the books of all connections; by default nothing is limited.
        stored: where state is kept, and what was there; None: it ends with the process.
        health: told whether state can be stored.
        lead: that this server leads; when it ends, nothing more is said to anybody. By default for ever.
        lines: about what comes from outside, for the log.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        store_ports: StorePorts | None = None,
        *,
        tcpstore: bool = False,
        gate: Gate | None = None,
        admission: Admission | None = None,
        stored: Stored | None = None,
        health: Health | None = None,
        lead: Lead | None = None,
        lines: Lines | None = None,
    ) -> None:
        self.version = identity.version
        self.tcpstore = tcpstore
        self.gate = gate
        self.turns = Turns()
        self.laggards = Laggards(self.later)
        self._delays = Delays(random.Random(secrets.token_bytes(8)))  # nosec B311 (jitter only)
        self._core = Coordinator(settings, identity, durable=stored is not None)
        self._health = health or Health()
        self._lead = lead or Lead()
        self.lines = lines or Lines()
        self.commits = CommitNumbers()
        store = None if stored is None else stored.store
        self._ledger = Ledger(store, self._execute_and_flush, self._trouble, self.commits.took)
        self._connections: dict[int, Connection] = {}
        self._unopened: set[Connection] = set()
        """Without their preamble."""
        self._admission = admission or Admission(UNLIMITED, UNLIMITED)
        self._doer = Doer(self, self._core, self._connections, self._admission)
        self.stores = StoreSide(self, self._core, self._admission, store_ports or StorePorts())
        self._sockets = 0
        self._next_conn = 0
        self._going_on = False
        """Connections wait for the next turn."""
        self._in_turn, self._read_at = False, 0.0
        """Input of this turn of the loop has come already; when the clock was read for it."""
        self._loop = asyncio.get_running_loop()
        self.outbox = Outbox(self._loop.call_soon)
        self.flush_at = 0.0
        """When what is queued is written though the turn goes on, in monotonic seconds."""
        self._ends = Ends(self._loop.call_soon, self.now, self.lost)
        self._timer = Timer(self._core, self._tick)
        self.requests = 0
        """Read from all connections."""
        self._empty = asyncio.Event()
        self._empty.set()
        self._stopped = False
        if stored is not None and stored.records:
            self._execute(self._core.resume(time.monotonic(), stored.records))
            stored.records.clear()  # they are state now, and need not be there twice
        else:
            self._execute(self._core.tick(time.monotonic()))
        self._timer.arm()

    @property
    def tables(self) -> Tables:
        """Of the core, to be looked at only."""
        return self._core.tables

    def protocol(self) -> Connection:
        """A new connection's end."""
        return Connection(self, self.next_conn())

    def next_conn(self) -> int:
        """A connection's number, never used before."""
        self._next_conn += 1
        return self._next_conn

    async def shut_down(self, resign: Callable[[], Awaitable[None]] | None = None) -> None:
        """Tell everyone, give them a moment to read it, and cut what is left.

        Args:
            resign: called when everything is stored.
        """
        self._execute(self._core.shut_down(time.monotonic(), RETRY_AFTER_MS))
        self.flush()
        await self._ledger.close()
        if resign is not None:
            await resign()
        for connection in list(self._connections.values()):
            connection.finish()
        self.stores.close_all()
        await self._emptied()
        self._stopped = True
        self._timer.stop()

    async def abandon(self) -> None:
        """Another server leads: say nothing more, to anybody, and drop everybody (S30)."""
        self._go_silent()
        await self._emptied()

    async def _emptied(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._empty.wait(), SHUTDOWN_S)

    def _go_silent(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._ledger.abandon()
        for connection in (*self._connections.values(), *self._unopened):
            connection.abort()
        self._connections.clear()
        self.stores.close_all()
        self._timer.stop()

    def _leads(self, now: float) -> bool:
        """Whether anything may still be said."""
        if self._lead.lapsed(now):
            self._go_silent()
            return False
        return True

    # --- from connections ---------------------------------------------------------------------

    def connected(self, connection: Connection) -> asyncio.TimerHandle:
        """A socket was accepted; returns the timer of its preamble."""
        self.count(1)
        self._unopened.add(connection)
        patience_s = self._core.tables.settings.hello_timeout_s
        return self._loop.call_later(patience_s, connection.expect_preamble)

    def opened(self, connection: Connection) -> None:
        """A good preamble came."""
        self._unopened.discard(connection)
        self._connections[connection.conn] = connection
        self.handle(Opened(connection.conn, connection.peer_host, connection.local_host))

    def begin(self) -> float:
        """Requests came. They are done at one time if they are read in one short turn of the loop, and
        the timer is looked at once, when they are through. Returns monotonic seconds."""
        now = time.monotonic()
        if not self._in_turn or now >= self._read_at + READING_S:
            self._read_at = now
            if self._leads(now):
                self._core.begin(now)
        if not self._in_turn:
            self._in_turn = True
            self._loop.call_soon(self._turn_over)
        return now

    def received(self, connection: Connection, request_id: int, message: AnyRequest) -> None:
        """A request came."""
        reply = self._core.request(connection.conn, request_id, message)
        if reply is None:
            if effects := self._core.outcome():
                self._execute(effects)
        elif not (
            self._ledger.clean
            or isinstance(reply, AliveReply)
            or self._core.looks(connection.conn, message)
        ):
            self._ledger.take([Send(connection.conn, request_id, reply)])
        elif connection.greeted:  # most of the time
            connection.send(connection.codec.encode(request_id, reply))
        else:
            self._doer.answer_hello(connection, request_id, reply)

    def identified(
        self, connection: Connection, grant: Grant, names: tuple[str, ...] | None
    ) -> None:
        """The sender of a hello proved who he is."""
        self.handle(Identified(connection.conn, grant, names))

    def behind(self, behind: bool) -> None:
        """Connections wait to be accepted, or none does any more."""
        self.handle(Behind(behind))
        self._timer.arm()

    def alive(self, connection: Connection) -> None:
        """The peer takes what it is sent."""
        self.handle(Alive(connection.conn))

    def denied(self) -> None:
        """Somebody could not."""
        self.handle(Denied())

    def delay_of_refusal_s(self, connection: Connection) -> float:
        """How late the next refusal of that address is."""
        return self._delays.next_s(connection.peer_host, time.monotonic())

    def lost(self, connection: Connection, reason: str) -> None:
        """The connection is gone, or is being closed by the shell."""
        if self._connections.pop(connection.conn, None) is not None:
            self.handle(Lost(connection.conn, reason))
            self.flush()

    def disconnected(self, connection: Connection, reason: str) -> None:
        """The socket is closed."""
        self._admission.closed(connection)
        self._unopened.discard(connection)
        self.count(-1)
        if connection.conn in self._connections:
            self._ends.add(connection, reason)

    def refused(self, connection: Peer, event: str, text: str) -> None:
        """Something from outside that nobody asked for: at most one line a second of each kind."""
        self.lines.tell(event, "warning", {"peer": connection.peer, "reason": text})

    def flush(self) -> None:
        """Write everything queued, one call per connection; then look at the timer."""
        self.outbox.flush()
        self._timer.arm()
        self.flush_at = time.monotonic() + FLUSH_AFTER_S

    now = staticmethod(time.monotonic)
    """Monotonic seconds."""

    def next_turn(self, connection: Framed | StoreConnection) -> None:
        """The connection has more to do than this turn allows."""
        self.turns.wait(connection.share, connection)
        if not self._going_on:
            self._going_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._going_on = self.turns.go_on()
        if self._going_on:
            self._loop.call_soon(self._go_on)

    def _turn_over(self) -> None:
        self._in_turn = False
        self.turns.next()
        self.flush()

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run an action after a while."""
        self._loop.call_later(delay_s, action)

    def count(self, change: int) -> None:
        """So many sockets more, or fewer."""
        self._sockets += change
        if self._sockets:
            self._empty.clear()
        else:
            self._empty.set()

    def handed_over(self, connection: Connection, store: StoreConnection) -> None:
        """It turned out to be a TCPStore client's: its socket is counted there from now on."""
        self._admission.handed_over(connection, store)
        self._unopened.discard(connection)
        self.count(-1)

    # --- effects and time ---------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Tell the core."""
        now = time.monotonic()
        if self._leads(now):
            self._execute(self._core.handle(now, event))

    def _execute(self, effects: list[Effect]) -> None:
        """Do effects as soon as what they rest on is safe: at once, mostly."""
        if effects:
            self._ledger.take(effects)

    def _execute_and_flush(self, effects: list[Effect]) -> None:
        if not self._leads(time.monotonic()):
            return
        self._doer.do(effects)
        if not self._in_turn:
            self.flush()

    def _trouble(self, why: str) -> None:
        """Nothing can be stored, or it can be again."""
        self._health.read_only = why
        self.commits.failures += bool(why)
        self.handle(StorageTrouble(why))
        if why:
            log.event(
                "storage_failed", "error", reason=why, text="nothing is acknowledged until it works"
            )
        else:
            log.event("storage_works_again", "warning")

    def _tick(self, now: float) -> None:
        """A deadline is due."""
        if self._leads(now):
            self._execute(self._core.tick(now))
            self.flush()
