"""The client without IO: what to send, what arrived, when to reconnect. Time comes as `now`.

A shell owns the socket and a clock. Its contract: call `connecting` when it starts a connection
attempt (due at `reconnect.attempt_at`), then `connected` or `disconnected`; pass received bytes to `received`;
after every call send `data_to_send()`, act on `events()`, close the socket if `wants_disconnect`,
and call `tick` at `next_deadline()`.

A session outlives its connections. Requests that are not answered yet are sent again under the same
request id after a reconnect, and the server does each of them once. When the server lost the session
(or its memory), waiting joins go on in a new session and everything else ends with an error.
"""

import random

from msgspec.structs import replace

from rdzv_client.heartbeat import Heartbeats
from rdzv_client.inflight import InFlight
from rdzv_client.proving import Prover, unauthenticated
from rdzv_client.reconnect import Reconnect, hello_s
from rdzv_client.session_events import Answered, Event, State, StateChanged, Unreachable
from rdzv_client.watch import Watch
from rdzv_client.wire import Hello, Wire
from rdzv_proto import limits
from rdzv_proto.agreement import Spoken
from rdzv_proto.codec import MalformedError
from rdzv_proto.errors import ErrorCode, Retry, info
from rdzv_proto.framing import LENGTH_BYTES, FrameTooLargeError
from rdzv_proto.messages import (
    AnyPush,
    AnyReply,
    AnyRequest,
    Done,
    Error,
    Finished,
    Goodbye,
    Heartbeat,
    HelloAdmin,
    HelloWorker,
    Join,
    Joined,
    Leave,
    NcclRevoked,
    Notice,
    Progress,
    Resume,
    ViewChanged,
    Welcome,
)


class Session:
    """One client's standing with the server.

    Args:
        hello: how to introduce itself; `attempt` and `resume` are filled in here.
        rng: source of jitter.
        now: monotonic seconds.
        connect_timeout_s: how long to try before the first contact.
        reconnect_timeout_s: how long to try after a contact was lost.
        where: the endpoint, for texts.
        spoken: versions of the protocol that it may speak; None: all that there are.
    """

    def __init__(
        self,
        hello: Hello,
        rng: random.Random,
        now: float,
        *,
        connect_timeout_s: float = 300.0,
        reconnect_timeout_s: float = 300.0,
        where: str = "the server",
        spoken: Spoken | None = None,
    ) -> None:
        self._hello, self._rng, self.where = hello, rng, where
        self.reconnect = Reconnect(now, rng, connect_timeout_s, reconnect_timeout_s)
        self.watch = Watch()
        self.state = State.SUSPENDED
        self.welcome: Welcome | None = None
        self.last_error = "no attempt yet"
        self.failure: Error | None = None
        """Why the session is over."""
        self.wants_disconnect = False
        self._in_flight = InFlight()
        self._out: list[bytes] = []
        self._events: list[Event] = []
        self.wire = Wire(spoken)
        self._attempts = 0
        self._hello_id = 0
        self._prover = Prover()
        self._hello_s = 0.0
        self._hello_until: float | None = None
        self._resume: Resume | None = None
        self._beats = Heartbeats()
        self._pause_s = 0.0

    # --- what the user of the session does ----------------------------------------------------

    @property
    def connected_now(self) -> bool:
        """There is a connection, and the server has welcomed it."""
        return self.state is State.CONNECTED

    @property
    def over(self) -> bool:
        """Nothing comes any more."""
        return self.state is State.OVER

    def request(self, message: AnyRequest) -> int:
        """Send a request, now or as soon as there is a connection; returns its id.

        Raises:
            ValueError: if the frame would exceed the server's limit.
        """
        request_id = self._in_flight.next_id()
        frame = self.wire.encode(request_id, message)
        if len(frame) > limits.FRAME_BYTES_MAX:
            raise ValueError(
                f"{message.op}: {len(frame)} bytes exceed the limit of {limits.FRAME_BYTES_MAX}"
            )
        if self.state is State.OVER:
            failure = self.failure or Error(code=ErrorCode.CONNECTION_LOST, message="closed")
            self._events.append(Answered(request_id, failure))
            return request_id
        self._in_flight.add(request_id, message)
        if self.state is State.CONNECTED:
            self._send(request_id, message, frame)
        return request_id

    def forget(self, request_id: int) -> None:
        """The caller does not want the answer any more."""
        self._in_flight.take(request_id)

    def close(self, reason: str = "closed by this process", action: str = "") -> None:
        """End the session from this side; no events follow but the answers that fail."""
        if self.state is not State.OVER:
            self._over(Error(code=ErrorCode.CONNECTION_LOST, message=reason, action=action))

    def data_to_send(self) -> bytes:
        """Bytes for the socket; each is returned once."""
        out, self._out = self._out, []
        return b"".join(out)

    def events(self) -> list[Event]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events

    def next_deadline(self) -> float | None:
        """When `tick` is due, in monotonic seconds."""
        if self.state is not State.SUSPENDED:
            return self._beats.next_at
        again = self.reconnect
        times = (self._hello_until, again.attempt_at, again.complain_at, again.give_up_at)
        return min(t for t in times if t is not None)

    # --- what the shell reports ---------------------------------------------------------------

    def connecting(self) -> None:
        """A connection attempt starts."""
        self.reconnect.attempt_at = None
        self.wants_disconnect = False

    def connected(
        self, now: float, prover: Prover | None = None, *, doubtful: bool = False
    ) -> None:
        """The connection stands: introduce ourselves, with proof if that is asked for (`doubtful`: see `hello_s`)."""
        self._prover = prover or Prover()
        self._hello_s = hello_s(self.lease_s, doubtful=doubtful)
        self._out = [self.wire.opened()]
        self.last_error = f"{self.where} accepted the connection but does not answer: is it rdzv?"
        self._say_hello(now)

    def disconnected(self, now: float, reason: str) -> None:
        """The connection is gone, or the attempt failed."""
        self.last_error = reason
        unanswered, self._hello_until = self._hello_until is not None, None
        self._beats.stop()
        self.wants_disconnect = False
        self._out.clear()
        if self.state is State.OVER:
            return
        if self.state is State.CONNECTED:
            self.state = State.SUSPENDED
            self.reconnect.broke(now)
            self._events.append(StateChanged(State.SUSPENDED, reason))
        else:
            self.reconnect.failed(now, unanswered=unanswered)
        pause_s, self._pause_s = self._pause_s, 0.0
        self.reconnect.hold_off(now, pause_s)

    def distrusted(self, now: float, reason: str, action: str) -> None:
        """A certificate was refused. Nothing mends that before the first contact; after it, one side
        may have its new certificate a little later than the other."""
        if self.welcome is None and self.state is not State.OVER:
            self._over(unauthenticated(reason, action))
        self.disconnected(now, reason)

    def received(self, now: float, data: bytes) -> None:
        """Bytes came."""
        self.wire.feed(data)
        try:
            while not self.wants_disconnect and (came := self.wire.pop()) is not None:
                self._in_flight.received(came[0])
                self._message(now, *came[1:])
        except (FrameTooLargeError, MalformedError) as error:
            self.last_error = self.wire.strange(self.where, error)
            self.wants_disconnect = True

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self._hello_until is not None and now >= self._hello_until and not self.wants_disconnect:
            self.last_error = f"no answer to the hello within {self._hello_s:g} s"
            self.wants_disconnect = True
        if self.state is State.CONNECTED:
            self._tick_connected(now)
        elif self.state is State.SUSPENDED:
            again = self.reconnect
            if now >= again.give_up_at:
                self._over(again.given_up(now, self.where, self.last_error))
            elif now >= again.complain_at:
                again.complained(now)
                elapsed = now - again.away_since
                self._events.append(Unreachable(elapsed, again.patience_s, self.last_error))

    # --- inside -------------------------------------------------------------------------------

    @property
    def lease_s(self) -> float:
        """In force for this session."""
        return self.welcome.lease_ms / 1000 if self.welcome is not None else 15.0

    def _tick_connected(self, now: float) -> None:
        beats = self._beats
        if beats.overdue_at is not None and now >= beats.overdue_at:
            self.last_error = f"no answer to a heartbeat for {beats.answer_s:.1f} s"
            self.reconnect.silent = self.wants_disconnect = True
        elif beats.due_at is not None and now >= beats.due_at:
            self._beat(now)

    def _beat(self, now: float) -> None:
        heartbeat = Heartbeat(acknowledged=self._in_flight.acknowledge())
        request_id = self._in_flight.next_id()
        self._beats.sent(now, request_id)
        self._out.append(self.wire.encode(request_id, heartbeat))

    def _say_hello(self, now: float) -> None:
        self._attempts += 1
        self._hello_id = self._in_flight.next_id()
        self._hello_until = now + self._hello_s
        hello = self._hello
        if not isinstance(hello, HelloAdmin):
            hello = replace(hello, attempt=self._attempts, resume=self._resume)
        frame = self.wire.hello(self._hello_id, hello)
        self._prover.hello(frame[LENGTH_BYTES:])
        self._out.append(frame)

    def _message(self, now: float, request_id: int, message: AnyReply | AnyPush) -> None:
        unproved = self._prover.required and self.state is not State.CONNECTED
        match message:
            case Goodbye():
                self._goodbye(message)
            case ViewChanged() | Progress() | Notice() | NcclRevoked() if unproved:
                pass  # anybody could say so
            case ViewChanged(view=view):
                self._note(self.watch.take(view))
            case Progress() | Notice() | NcclRevoked():
                self._events.append(message)
            case _ if request_id == self._hello_id:
                self._hello_answered(now, message)
            case _ if unproved:
                pass
            case _ if self._beats.answered(request_id):
                pass
            case _ if self._in_flight.take(request_id) is not None:
                self._answered(now, request_id, message)
            case _:
                pass  # answer to a request that was forgotten, or to an extra heartbeat

    def _answered(self, now: float, request_id: int, reply: AnyReply) -> None:
        if isinstance(reply, Joined):
            self._note(self.watch.joined(reply.fence))
        self._events.append(Answered(request_id, reply))
        if self._in_flight.acknowledgement_due and self._resume is not None:
            self._beat(now)

    def _hello_answered(self, now: float, reply: AnyReply) -> None:
        if isinstance(reply, Welcome):
            if (answer := self._prover.answer(reply)) is not None:
                self._hello_id = self._in_flight.next_id()
                self._out.append(self.wire.encode(self._hello_id, answer))
                return
            if (doubt := self._prover.doubt(reply, self.where)) is None:
                self._welcomed(now, reply)
                return
            reply = doubt
        self._hello_until = None
        if not isinstance(reply, Error):
            self.last_error = f"{self.where} answered a hello with {reply.op}"
            self.wants_disconnect = True
            return
        self.last_error = reply.message
        self._pause_s = reply.retry_after_ms / 1000
        if reply.code in (ErrorCode.SESSION_LOST, ErrorCode.UNKNOWN_EPOCH) and self._resume:
            self._session_gone(reply)
            self._say_hello(now)
        elif reply.code == ErrorCode.SUPERSEDED or info(reply.code).retry is Retry.LATER:
            self.wants_disconnect = True
        else:
            self._over(reply)

    def _welcomed(self, now: float, welcome: Welcome) -> None:
        before, self.welcome, self._hello_until = self.welcome, welcome, None
        if before is not None and before.epoch != welcome.epoch:
            self.watch.new_epoch()
        if welcome.session:
            self._resume = Resume(welcome.epoch, welcome.session, welcome.token)
            self._beats.start(now, self.lease_s, self._rng)
        self.state = State.CONNECTED
        away_s = 0.0 if before is None else now - self.reconnect.away_since
        self.reconnect.met()
        self._events.append(StateChanged(State.CONNECTED, welcome.server, away_s))
        if welcome.view is not None:
            self._note(self.watch.catch_up(welcome.view))
        for request_id, message in self._in_flight:
            self._send(request_id, message, self.wire.encode(request_id, message))

    def _send(self, request_id: int, message: AnyRequest, frame: bytes) -> None:
        if (lacking := self.wire.lacking(message, self.where)) is None:
            self._in_flight.sent(request_id)
            self._out.append(frame)
        else:
            self._settle(request_id, self._in_flight.without_answer(request_id, lacking))

    def _session_gone(self, why: Error) -> None:
        """The server knows this session no more: joins go on, everything else has ended. The generation of a worker
        does not end with its session; how it stands, the next welcome tells."""
        self._resume = None
        if why.code == ErrorCode.UNKNOWN_EPOCH:
            self._note(self.watch.end("server_restarted", why.message))
        elif not isinstance(self._hello, HelloWorker):
            self._note(self.watch.end("session_lost", why.message))
        for request_id, message in self._in_flight:
            if isinstance(message, Leave | Finished):
                self._settle(request_id, Done())
            elif not isinstance(message, Join):
                self._settle(request_id, why)

    def _note(self, changed: bool) -> None:
        if changed:
            self._events.append(self.watch.view)

    def _settle(self, request_id: int, reply: AnyReply) -> None:
        self._in_flight.take(request_id)
        self._events.append(Answered(request_id, reply))

    def _goodbye(self, goodbye: Goodbye) -> None:
        self.last_error = goodbye.message
        self._pause_s = goodbye.retry_after_ms / 1000
        self._hello_until = None
        self.wants_disconnect = True
        if goodbye.code == ErrorCode.NOT_LEADER:
            self.reconnect.leader = goodbye.leader
        row = info(goodbye.code)
        if row.retry is Retry.NO and row.code is not ErrorCode.SUPERSEDED:
            self._over(Error(code=goodbye.code, message=goodbye.message, action=row.action))

    def _over(self, why: Error) -> None:
        self.state, self.failure = State.OVER, why
        self.wants_disconnect = True
        self.reconnect.attempt_at = self._hello_until = None
        self._beats.stop()
        self._out.clear()
        kind = "fenced" if why.code == ErrorCode.FENCED else "disconnected"
        self._note(self.watch.end(kind, why.message))
        for request_id, _ in self._in_flight:
            self._settle(request_id, self._in_flight.without_answer(request_id, why))
        self._events.append(StateChanged(State.OVER, why.message))
