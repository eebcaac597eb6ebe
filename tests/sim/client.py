"""The production client session on the virtual clock and network: what `rdzv_client.engine` does, without sockets."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from rdzv_client.proving import Prover
from rdzv_client.session import Session
from rdzv_client.session_events import Answered, Event, State, StateChanged
from rdzv_client.wire import Hello
from rdzv_proto.agreement import Spoken
from rdzv_proto.auth import NONCE_BYTES, Token
from rdzv_proto.messages import AnyReply, AnyRequest, HelloAdmin
from tests.sim.net import Clock, Link, Pipe

if TYPE_CHECKING:
    from tests.sim.server import SimServer

BOTH_WAYS, UP, DOWN = "both ways", "up", "down"
"""What a cut for ever leaves out; a new connection needs both."""


class Client:
    """A process with a session.

    Args:
        event: is told what the session says, except answers.
        token: proves who this is; None: it has none.
        rng: of this process's own draws.
        reconnect_timeout_s: how long it tries after it lost contact.
        spoken: versions of the protocol; None: the present one.
    """

    def __init__(
        self,
        hello: Hello,
        clock: Clock,
        rng: random.Random,
        server: "SimServer",
        event: Callable[[Event], None],
        *,
        token: Token | None = None,
        reconnect_timeout_s: float = 30.0,
        spoken: Spoken | None = None,
    ) -> None:
        self._clock, self._rng, self._server, self._event = clock, rng, server, event
        self._token = token
        self.incarnation = b"" if isinstance(hello, HelloAdmin) else hello.incarnation
        self.link: Link | None = None
        self.running = True
        self.frozen = self._for_ever = False
        self.cut = ""
        """Directions in which nothing ever arrives again."""
        self.impaired_until = 0.0
        """No fault of the process or its network reaches beyond this time."""
        self.late_s: tuple[float, float] | None = None
        """Of the next connection: its client sees it break after the first time, and what it sent arrives
        after the second."""
        self.refused_until = 0.0
        """No new connection comes about before."""
        self._held: list[Callable[[], None]] = []
        self._asked: dict[int, Callable[[AnyReply], None]] = {}
        self._wakes_at = float("inf")
        self._pumping = False
        self.session = Session(
            hello, rng, clock.now, reconnect_timeout_s=reconnect_timeout_s, spoken=spoken
        )

    def start(self) -> None:
        """Connect; requests may have been made before."""
        self._pump()

    def ask(self, message: AnyRequest, done: Callable[[AnyReply], None]) -> None:
        """Make a request; `done` gets its answer, unless the process ends before."""
        self._asked[self.session.request(message)] = done
        if not self._pumping:
            self._pumping = True
            self._clock.after(0, self._pump)

    # --- what happens to it ---------------------------------------------------------------------

    def end(self, *, killed: bool = False) -> None:
        """The process ends; the kernel closes its socket. Killed, it says nothing more."""
        self.running = False
        self.session.close()
        if self.link is not None:
            self.link.up.close("connection closed")
            if killed:
                self.link.down.dead = True

    def freeze(self, seconds: float) -> None:
        """SIGSTOP and, later, SIGCONT."""
        self.frozen = True
        self.impaired(seconds)
        self._clock.after(seconds, self.thaw)

    def freeze_for_ever(self) -> None:
        """SIGSTOP, and nobody who would let it go on."""
        self.frozen = self._for_ever = True
        self.impaired_until = float("inf")

    def thaw(self) -> None:
        """SIGCONT."""
        if self._for_ever:
            return
        self.frozen = False
        held, self._held = self._held, []
        for action in held:
            self.when_running(action)
        self._pump()

    def impaired(self, seconds: float) -> None:
        """A fault of the process or its network; it may be lost without the server's fault."""
        self.impaired_until = max(self.impaired_until, self._clock.now + seconds)

    def cut_for_ever(self, directions: str) -> None:
        """From now on nothing arrives in these directions, and no new connection comes about."""
        self.cut = directions
        self.impaired_until = float("inf")
        if self.link is not None:
            if directions in (UP, BOTH_WAYS):
                self.link.up.cut()
            if directions in (DOWN, BOTH_WAYS):
                self.link.down.cut()

    def heal(self) -> None:
        """Everything that slows or holds its traffic ends, but what is cut for ever."""
        self.refused_until = 0.0
        if self.link is not None and not self.cut:
            for pipe in self.link.pipes:
                pipe.slow_s = 0.0
                pipe.heal()
        if self.frozen:
            self._clock.after(0, self.thaw)

    # --- the shell ------------------------------------------------------------------------------

    def when_running(self, action: Callable[[], None]) -> None:
        """Do it now, or when the process goes on, or never."""
        if self.frozen:
            self._held.append(action)
        elif self.running:
            action()

    def _pump(self) -> None:
        """Send, act, reconnect, and come back at the next deadline."""
        self._pumping = False
        session = self.session
        if not self.running or self.frozen:
            return
        now = self._clock.now
        session.tick(now)
        if session.wants_disconnect and self.link is not None:
            link, self.link = self.link, None
            link.up.close("closed by the client")
            link.down.dead = True
            session.disconnected(now, session.last_error)
        attempt_at = session.reconnect.attempt_at
        if self.link is None and attempt_at is not None and now >= attempt_at:
            self._connect()
        data = session.data_to_send()
        if data and self.link is not None:
            self.link.up.send(data)
        for event in session.events():
            if isinstance(event, Answered):
                self._asked.pop(event.request_id)(event.reply)
            else:
                self._event(event)
                if isinstance(event, StateChanged) and event.state is State.OVER:
                    self.running = False
        due = session.next_deadline()
        if due is not None and self.running:
            at = max(due, now + 0.001)
            if at < self._wakes_at:
                self._wakes_at = at
                self._clock.at(at, self._wake)

    def _wake(self) -> None:
        if self._clock.now < self._wakes_at:
            return  # an earlier wake-up took its place
        self._wakes_at = float("inf")
        self._pump()

    def _connect(self) -> None:
        session, clock = self.session, self._clock
        attempt_s = session.reconnect.attempt_s
        session.connecting()
        if self.cut:
            clock.after(attempt_s, lambda: self.when_running(self._not_reached))
            return
        if not self._server.up or clock.now < self.refused_until:
            session.disconnected(clock.now, "connection refused")
            return
        link = Link()
        link.down = Pipe(
            clock, self._rng,
            lambda data: self.when_running(lambda: self._received(link, data)),
            lambda reason: self.when_running(lambda: self._dropped(link, reason)),
        )  # fmt: skip
        link.up = Pipe(
            clock, self._rng,
            lambda data: self._server.received(conn, data),
            lambda reason: self._server.lost(conn, reason),
        )  # fmt: skip
        self.link = link
        conn = self._server.accept(link, self.incarnation)
        if self.late_s is not None:
            (breaks_s, arrives_s), self.late_s = self.late_s, None
            self.break_late(link, breaks_s, arrives_s)
        prover = None
        if self._token is not None:
            prover = Prover(self._token, lambda: self._rng.randbytes(NONCE_BYTES))
        session.connected(clock.now, prover)

    def break_late(self, link: Link, breaks_s: float, arrives_s: float) -> None:
        """The client sees a connection break; what it sent on it arrives later, behind what it says on a new one."""
        link.up.hole = True
        self.impaired(arrives_s)

        def broken() -> None:
            link.up.close("connection reset")
            link.down.dead = True
            self.when_running(lambda: self._dropped(link, "connection reset"))

        self._clock.after(breaks_s, broken)
        self._clock.after(arrives_s, link.up.heal)

    def _not_reached(self) -> None:
        self.session.disconnected(self._clock.now, "no answer to the connection attempt")
        self._pump()

    def _received(self, link: Link, data: bytes) -> None:
        if self.link is link:  # nothing is read from a socket that is closed
            self.session.received(self._clock.now, data)
            self._pump()

    def _dropped(self, link: Link, reason: str) -> None:
        if self.link is link:
            self.link = None
            self.session.disconnected(self._clock.now, reason)
            self._pump()
