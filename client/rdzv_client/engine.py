"""The one thread that owns the socket: it drives the sans-IO session for both client classes.

Heartbeats, reconnects and pushes happen here, so they do not depend on what the caller's thread or
event loop is doing. Callers send from their own thread (one lock guards the session), which may be
interrupted at any point by a signal; replies are handed out on the engine's thread, which may not.
"""

import contextlib
import logging
import os
import random
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from rdzv_client import dial, endpoint, forks, tls
from rdzv_client.access import Access
from rdzv_client.connection import Connection
from rdzv_client.credentials import Credentials
from rdzv_client.endpoint import Endpoint
from rdzv_client.handout import Callback, Handout
from rdzv_client.options import NodeOptions
from rdzv_client.reports import Reports
from rdzv_client.session import Session
from rdzv_client.session_events import Event
from rdzv_client.targets import Targets
from rdzv_client.tls import DistrustError
from rdzv_client.wire import Hello
from rdzv_proto.auth import Grant, Scope
from rdzv_proto.messages import AnyRequest, HelloAdmin, View

log = logging.getLogger("rdzv")

IDLE_S = 5.0
"""Longest sleep of the thread; only a bound on what a bug could cost."""

STOP_S = 2.0
"""`stop` waits this long for the thread; it may sit in a name lookup."""

INTERNAL = "internal error of the rdzv client library"
"""Begins what is said of a fault of our own."""

FAULT = f"rdzv[%s] {INTERNAL}; please report it"

REPORT = "Please report it, with the traceback that is logged under the name rdzv."


class Engine:
    """Connection and session of one client.

    Args:
        hello: how to introduce itself.
        endpoints: servers, tried in turn; one that stands by names the one that leads.
        access: what to show them, and what to demand of them.
        connect_timeout_s: patience before the first contact.
        reconnect_timeout_s: patience after a contact was lost.
        on_view: called with each new view of the generation.
    """

    def __init__(
        self,
        hello: Hello,
        endpoints: Sequence[Endpoint],
        access: Access,
        *,
        connect_timeout_s: float,
        reconnect_timeout_s: float,
        on_view: Callable[[View], None] = lambda view: None,
    ) -> None:
        self.run = "-" if isinstance(hello, HelloAdmin) else hello.run
        self.endpoints = list(endpoints)
        self.session = Session(
            hello,
            random.Random(os.urandom(8)),  # nosec B311 (jitter only)
            time.monotonic(),
            connect_timeout_s=connect_timeout_s,
            reconnect_timeout_s=reconnect_timeout_s,
            where=endpoint.show(self.endpoints),
        )
        self.local_host = self.remote_host = ""
        """Addresses of both ends of the present connection, or of the last one."""
        self._access = access
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._targets = Targets(self.endpoints)
        self._stopping = False
        self._ended = False
        """The thread hands out nothing any more."""
        self._interrupted = False
        """A caller was interrupted while it sent: what went out is not known."""
        self.handout = Handout(self._targets, on_view, Reports(self.run, self.session.where))
        self._wake_out, self._wake_in = socket.socketpair()
        for end in (self._wake_out, self._wake_in):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._interest = 0
        self._thread = threading.Thread(target=self._main, name="rdzv", daemon=True)
        forks.tell(self)

    def start(self) -> None:
        """Begin to connect; what is asked of an engine first does it. Until then a program may add to its environment:
        `getaddrinfo` reads that on our thread, and dies when it moves (setenv(3): MT-unsafe; glibc before 2.41)."""
        with self._lock:
            if not (self._begun or self._stopping):
                self.session.reconnect.begin(time.monotonic())
                self._thread.start()

    @property
    def _begun(self) -> bool:
        return self._thread.ident is not None

    @classmethod
    def of_node(
        cls,
        options: NodeOptions,
        server: str | None,
        credentials: Credentials,
        on_view: Callable[[View], None],
    ) -> "Engine":
        """The engine of a node, with its settings."""
        return cls(
            options.hello(),
            endpoint.find(server),
            Access(credentials, Grant(Scope.JOIN, options.run)),
            connect_timeout_s=options.connect_timeout_s,
            reconnect_timeout_s=options.reconnect_timeout_s,
            on_view=on_view,
        )

    # --- for the clients ----------------------------------------------------------------------

    @property
    def view(self) -> View:
        """The newest view; reading it costs nothing and never blocks."""
        return self.session.watch.view

    def tell_view(self) -> None:
        """Call the listener with the newest view: for a generation that was made just now. Again, if there is a newer
        one: the thread may have told that meanwhile, and what is told last is what holds."""
        told: View | None = None
        while told is not (newest := self.view):
            told = newest
            self.handout.on_view(told)

    def submit(self, message: AnyRequest, callback: Callback) -> int:
        """Send a request; the callback gets its reply, exactly once, on some thread.

        Raises:
            ValueError: the request is too large for a frame.
        """
        if not self._begun:
            self.start()
        with self._lock:
            try:
                request_id = self.session.request(message)
                self.handout.callbacks[request_id] = callback
                self._send()
            except ValueError:
                raise
            except BaseException:  # a signal's handler raised, between any two steps
                self._interrupted = True
                self._wake()
                raise
            connection = self._connection
            unsent = connection is not None and bool(connection.unsent)
            needs_thread = unsent or self._interrupted or self.session.over
        if needs_thread:
            self._wake()
            self._hand_out_the_rest()
        return request_id

    def forget(self, request_id: int) -> None:
        """The caller does not wait for this reply any more."""
        with self._lock:
            self.session.forget(request_id)
            self.handout.callbacks.pop(request_id, None)

    def wait_connected(self, timeout_s: float | None) -> bool:
        """Wait for the first welcome, or for the end of the session; True on one of them."""
        self.start()
        return self.handout.met.wait(timeout_s)

    def stop(self, reason: str = "closed by this process") -> None:
        """End the session and the thread. Safe to call twice and from any thread."""
        with self._lock:
            self._stopping = True
            self.session.close(reason)
        self._wake()
        if not self._begun:
            self._end()
        elif threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)
            self._hand_out_the_rest(even_if_alive=True)

    # --- the thread ---------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while not self._stopping:
                self._turn_once()
        except Exception as fault:
            log.exception(FAULT, self.run)
            self._give_up(fault)
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            self._close_socket()
        self._hand_out_the_rest()
        for end in (self._selector, self._wake_out, self._wake_in):
            end.close()

    def _turn_once(self) -> None:
        with self._lock:
            now = time.monotonic()
            self.session.tick(now)
            if self._interrupted:
                self._drop_interrupted(now)
            if self.session.wants_disconnect and self._connection is not None:
                self._close_socket()
                self.session.disconnected(now, self.session.last_error)
            attempt_at = self.session.reconnect.attempt_at
            self._send()
            events = self.session.events()
            due = (self.session.next_deadline(), self.handout.reports.due_at)
            until = min((at for at in due if at is not None), default=now + IDLE_S)
        # Handed out last: a caller that wakes up finds this thread asleep, not holding the GIL.
        if not self._dispatch(events):
            return
        if self._connection is None and attempt_at is not None and now >= attempt_at:
            self._connect()
        else:
            self._wait(until - now)
            self.handout.reports.tick(time.monotonic())

    def _wait(self, pause_s: float) -> None:
        """Sleep until there is input, a wake-up or a deadline; then read."""
        connection = self._connection
        if connection is not None and connection.interest != self._interest:
            self._interest = connection.interest
            self._selector.modify(connection.sock, self._interest)
        for key, mask in self._selector.select(min(max(0.0, pause_s), IDLE_S)):
            if key.fileobj is self._wake_out:
                with contextlib.suppress(BlockingIOError):
                    self._wake_out.recv(4096)
            elif connection is not None and connection.readable(mask):
                self._read(connection)

    def _read(self, connection: Connection) -> None:
        """Read before anything is judged: an answer may be waiting in the kernel."""
        with self._lock:  # TLS cannot be read by one thread while another one writes
            try:
                data = connection.receive()
            except OSError as error:
                self._lost(dial.reason(error), error)
            else:
                self.session.received(time.monotonic(), data)

    def _lost(self, reason: str, error: Exception) -> None:
        """A connection, or an attempt at one, has ended. Called with the lock held."""
        session, now = self.session, time.monotonic()
        if session.wants_disconnect:
            reason = session.last_error
        elif self._connection is not None and not session.connected_now:
            reason = self._access.hint(reason, error)
        self._close_socket()
        if isinstance(error, DistrustError):
            session.distrusted(now, reason, tls.ACTION)
        else:
            session.disconnected(now, reason)

    def _connect(self) -> None:
        """One attempt: resolve the name afresh, try its addresses in turn."""
        with self._lock:
            to = self._targets.next(self.session.reconnect)
            patience_s = self.session.reconnect.attempt_s
            self.session.connecting()
        try:
            token = self._access.token()  # before the server's patience for a hello begins
            sock = dial.connect(to, patience_s, self._access.tls)
        except (OSError, ValueError) as error:
            with self._lock:
                self._lost(f"{to}: {dial.reason(error)}", error)
            return
        with self._lock:
            if self._stopping:
                sock.close()
                return
            self._connection = Connection(sock, self._access.tls)
            self._interrupted = False  # nothing was written to this one
            self._interest = selectors.EVENT_READ
            self._selector.register(sock, self._interest)
            self.local_host, self.remote_host = dial.hosts(sock)
            prover = self._access.prover(token, sock)
            doubtful = self._targets.reached(self.remote_host)
            self.session.connected(time.monotonic(), prover, doubtful=doubtful)
            self._send()

    def _drop_interrupted(self, now: float) -> None:
        """Part of a frame may be missing or written twice: only a new connection is certain again.
        Requests are repeated there under their ids, and the server does each of them once."""
        self._interrupted = False
        if self._connection is not None:
            self._close_socket()
            self.session.disconnected(now, "a signal interrupted this process while it sent")

    def _send(self) -> None:
        """Write what the session has, as far as the socket takes it. Called with the lock held."""
        data = self.session.data_to_send()
        if self._connection is not None and not self._interrupted:
            self._connection.send(data)

    def _close_socket(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._selector.unregister(connection.sock)
            connection.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    # --- events -------------------------------------------------------------------------------

    def _dispatch(self, events: list[Event]) -> bool:
        """Hand out every one of them, whatever the handling of another does: there is a caller
        waiting behind each. False: one failed, and the session is over."""
        good = True
        for event in events:
            try:
                self.handout.give(event)
            except Exception as fault:
                log.exception(FAULT, self.run)
                self._give_up(fault)
                good = False
        return good

    def _give_up(self, fault: Exception) -> None:
        """Nothing that is kept here can be trusted any more. What it was is in the error too: many
        programs show no log of their libraries."""
        last = traceback.extract_tb(fault.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}:{last.lineno}"
        what = f"{type(fault).__name__}: {fault} ({where})"
        with self._lock:
            self.session.close(f"{INTERNAL}: {what}", REPORT)

    def _hand_out_the_rest(self, *, even_if_alive: bool = False) -> None:
        """Without the thread, whoever is here answers those who wait."""
        with self._lock:
            events = self.session.events() if self._ended or even_if_alive else []
        while events:
            self._dispatch(events)
            with self._lock:
                events = self.session.events()

    def progress_over(self) -> None:
        """Nobody waits any more."""
        self.handout.reports.stop()

    def forked(self) -> None:
        """In a forked child: give the socket up, so that the parent's death closes it, and fail
        every call. There is no thread here, and the lock may have been held by it."""
        self._lock = threading.Lock()
        self._stopping = self._ended = True
        self.handout.callbacks.clear()
        self.session.close(
            f"this client belongs to the process from which process {os.getpid()} was forked"
        )
        self.session.events()  # what they tell has happened to the parent
        self.handout.met.set()
        if self._connection is not None:
            self._connection.sock.close()  # says nothing: a word of TLS would be the parent's
        for end in (self._wake_in, self._wake_out, self._selector):
            end.close()
