"""Accepts connections, within what `Admission` allows; the surplus waits in the kernel's backlog.

The loop's own `create_server` has no such limit: out of descriptors, asyncio logs thousands of lines a
second and uvloop accepts and closes in silence (SEMANTICS D4). Here nothing spins: a listening socket is
watched only while a connection could be taken, and every other state ends by a callback or a timer.
"""

import asyncio
import contextlib
import enum
import errno
import resource
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rdzv_server.shell.addresses import host_of, shown
from rdzv_server.shell.admission import Admission

if TYPE_CHECKING:
    from rdzv_server.shell.peer import End

ACCEPTS_PER_TURN = 64
"""Of one socket. About 4 ms of work (measured: 53 µs each on uvloop), then members get their turn."""

TLS_ACCEPTS_PER_TURN = 8
"""Under TLS the first half of a handshake often follows at once: at most 10 ms of work."""

TLS_HANDSHAKES_MAX = 64
"""At a time. Each costs up to 1.35 ms of CPU (SEMANTICS D5), so this many keep a core busy even with
clients 100 ms away. Measured with 1,200 clients at once: members are answered within 10 to 35 ms, and
without a limit within 30 to 730 ms."""

HANDSHAKE_S = 5.0
"""For a TLS handshake; as long as for a hello, so that a peer that says nothing is gone as soon."""

RETRY_S = 0.1
"""Without room, look again after this long: an opening may have become old enough to be evicted."""

BEHIND_S = 2 * RETRY_S
"""After the last sign that connections wait, without a further one, none does."""

STALL_S = 3 * RETRY_S
"""Two looks farther apart than this: the server did not run in between, and hellos may wait unread."""

TURN_AWAY_PAUSE_S = 0.05
"""After a full turn of refusals. 1,280 a second cost 4 % of a core and empty a full backlog in
about 3 s; without a pause, a flood of connects would have the whole core."""

DRAIN_BYTES = 1 << 16
"""Read from a connection before it is turned away: a hello and what follows it. Closed with bytes unread,
a socket sends a reset, and the reason may be lost."""

EXHAUSTED_PAUSE_S = 0.5
"""Out of descriptors or memory, accepting rests this long; it must go on within 1 s of the end (L9)."""

PASSING = frozenset(
    {
        errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.ENOPROTOOPT, errno.EHOSTDOWN,
        errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH, errno.ETIMEDOUT,
    }
)  # fmt: skip
"""Errors of the connection that would have been next, not of the socket; see accept(2)."""

Reporter = Callable[[str, str, Mapping[str, object]], None]
"""Takes event, level and fields of a line for the log, and lets one a second of each event through."""


class _Way(enum.Enum):
    IN = enum.auto()
    """There is room for one."""
    WAIT = enum.auto()
    """In the backlog."""
    AWAY = enum.auto()
    """Only with a reason."""


class Acceptor:
    """Takes connections from listening sockets; owns these.

    Args:
        sockets: bound, listening, and not blocking.
        protocol: makes the server's end of a connection. It tells `admission` when its hello was good and
            when it is gone.
        admission: the books, shared with other acceptors.
        report: writes to the log.
        tls: the context for a new connection; None for plain ones.
        behind: told when connections begin to wait in the backlog, and when none does any more.
        busy: sent to plain connections that are turned away.
        handshake_s: time for a TLS handshake.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        protocol: Callable[[], "End"],
        admission: Admission,
        report: Reporter,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        behind: Callable[[bool], None] = lambda behind: None,
        busy: bytes = b"",
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self._sockets = list(sockets)
        self._protocol = protocol
        self._admission = admission
        self._report = report
        self._tls = tls
        self._busy = busy
        self._tell_behind = behind
        self._behind: asyncio.TimerHandle | None = None
        """Set while connections wait: looks whether some still do."""
        self._handshake_s = handshake_s
        self._per_turn = ACCEPTS_PER_TURN if tls is None else TLS_ACCEPTS_PER_TURN
        self._loop = asyncio.get_running_loop()
        self._watching = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = False
        """For room."""
        self._arriving: dict[End, asyncio.Task[None]] = {}
        """Accepted, not yet in the hands of its protocol: in a handshake, mostly. Oldest first."""
        self._untouched: dict[End, socket.socket] = {}
        """Of these, the ones that the loop has not taken over."""
        self._pressed_at: float | None = None
        """When there was no room the last time."""

    def start(self) -> None:
        """Accept from now on.

        Raises:
            OSError: the loop cannot watch the sockets.
        """
        self._pause()
        for sock in self._sockets:
            self._loop.add_reader(sock, self._readable, sock)
            self._watching = True

    def stop(self) -> None:
        """Accept nobody any more. Connections stay, those in a handshake too."""
        self._pause()
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        if self._behind is not None:
            self._behind.cancel()

    async def close(self) -> None:
        """Stop, and cut those in a handshake."""
        self.stop()
        arriving = list(self._arriving.values())
        for task in arriving:
            task.cancel()
        if arriving:
            await asyncio.wait(arriving)

    # --- when to accept -----------------------------------------------------------------------

    def _pause(self, duration_s: float | None = None) -> None:
        """Leave all in the backlog, for a while or until `start`."""
        if self._watching:
            self._watching = False
            for sock in self._sockets:
                self._loop.remove_reader(sock)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting = False
        self._admission.forget(self._room)
        if duration_s is not None and self._sockets:
            self._timer = self._loop.call_later(duration_s, self._resume)

    def _resume(self) -> None:
        try:
            self.start()
        except OSError as error:
            self._exhausted(error)

    def _fall_behind(self) -> None:
        """Some may be left in the backlog. The loop tells nobody when none is any more."""
        if self._behind is None:
            self._tell_behind(True)
        else:
            self._behind.cancel()
        self._behind = self._loop.call_later(BEHIND_S, self._look_behind)

    def _look_behind(self) -> None:
        if self._watching:
            self._catch_up()  # all this time the loop had nobody
        else:
            self._fall_behind()

    def _catch_up(self) -> None:
        if self._behind is not None:
            self._behind.cancel()
            self._behind = None
            self._tell_behind(False)

    def _wait(self) -> None:
        """Leave all in the backlog until there may be room."""
        self._fall_behind()
        self._pause(RETRY_S)
        self._waiting = True
        self._admission.when_room(self._room)

    def _room(self) -> None:
        """There is room. Called in the midst of something else."""
        if self._waiting:
            self._pause(0.0)

    def _readable(self, sock: socket.socket) -> None:
        """Somebody is in the backlog."""
        if not self._watching:  # another socket found no room, in this turn of the loop
            return
        now = self._loop.time()
        if not self._pressed():
            for _ in range(self._per_turn):
                if not self._accept(sock, partial(self._let_in, now)) or self._pressed():
                    return
            self._fall_behind()
            return
        # One is sure to be in the backlog now, so nobody is evicted for nothing; for the next one the loop
        # calls again.
        way = self._way(now)
        if way is _Way.IN:
            self._accept(sock, partial(self._let_in, now))
        elif way is _Way.AWAY:
            self._refuse(sock)
        else:
            self._wait()

    def _pressed(self) -> bool:
        """There is no room."""
        shaking = self._tls is not None and len(self._arriving) >= TLS_HANDSHAKES_MAX
        return shaking or self._admission.full or self._admission.crowded

    def _way(self, now: float) -> _Way:
        """What becomes of the next connection when there is no room.

        The first look only waits: after a stall of the server all openings are old, and their hellos are
        in the sockets, to be read in this turn of the loop (SEMANTICS D1).
        """
        looked = self._pressed_at is not None and now - self._pressed_at < STALL_S
        self._pressed_at = now
        if not looked:
            return _Way.WAIT
        # What is cut for a handshake or a descriptor gives it back in the next turn of the loop.
        if self._tls is not None and len(self._arriving) >= TLS_HANDSHAKES_MAX:
            self._admission.evict(now, self._arriving)
            return _Way.WAIT
        full = self._admission.full
        evicted = self._admission.evict(now)
        if full:
            return _Way.WAIT if evicted else _Way.AWAY
        return _Way.IN if evicted else _Way.WAIT

    def _accept(self, sock: socket.socket, take: Callable[[socket.socket, object], None]) -> bool:
        """Take one from the backlog; False if there is none, or if it cannot be had now."""
        try:
            conn, address = sock.accept()
        except (BlockingIOError, InterruptedError):
            self._catch_up()
            return False
        except OSError as error:
            if error.errno in PASSING:
                return True
            self._exhausted(error)
            return False
        take(conn, address)
        return True

    # --- what becomes of a connection ---------------------------------------------------------

    def _let_in(self, now: float, sock: socket.socket, address: object) -> None:
        peer = self._protocol()
        task = self._loop.create_task(self._arrive(peer, sock, shown(address)))

        def abort() -> None:
            task.cancel()  # nothing happens if it arrived
            peer.abort()

        self._arriving[peer] = task
        self._untouched[peer] = sock
        self._admission.opened(peer, host_of(address), now, abort)
        task.add_done_callback(partial(self._arrived, peer))

    async def _arrive(self, peer: "End", sock: socket.socket, name: str) -> None:
        """Give a connection to its protocol, after the handshake if there is one."""
        context = None if self._tls is None else self._tls()
        del self._untouched[peer]
        reason = "closed during the handshake"
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: peer,
                sock,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self._handshake_s,
            )
            # Both loops succeed as well when the peer went away; then the protocol hears of nothing.
            if context is None or transport.get_extra_info("ssl_object") is not None:
                return
        except OSError as error:
            reason = _reason(error) or reason
        self._admission.closed(peer)
        if context is not None:
            self._report("handshake_failed", "warning", {"peer": name, "reason": reason})

    def _arrived(self, peer: "End", task: "asyncio.Task[None]") -> None:
        """It is with its protocol, or it is gone."""
        del self._arriving[peer]
        sock = self._untouched.pop(peer, None)
        if sock is not None:
            sock.close()
        if task.cancelled() or task.exception() is not None:
            self._admission.closed(peer)
        if self._tls is not None:
            self._room()  # for one more handshake
        if not task.cancelled():
            task.result()  # the loop reports what nobody expected

    def _refuse(self, sock: socket.socket) -> None:
        """Turn away who is in the backlog, as many as a turn of the loop may take."""
        before = self._admission.turned_away
        for _ in range(self._per_turn):
            if not self._accept(sock, self._turn_away):
                break
        if refused := self._admission.turned_away - before:
            self._tell_full(refused)
        if self._watching:
            self._pause(TURN_AWAY_PAUSE_S)

    def _turn_away(self, sock: socket.socket, _address: object) -> None:
        self._admission.turned_away += 1
        with sock, contextlib.suppress(OSError):
            sock.setblocking(False)
            if self._busy and self._tls is None:
                sock.send(self._busy)
            sock.recv(DRAIN_BYTES)

    # --- what is said about it ----------------------------------------------------------------

    def _tell_full(self, refused: int) -> None:
        text = (
            f"turned away {refused} new connections: {self._admission.connections} are open, of at most "
            f"{self._admission.connections_max}; raise the limit of open files of rdzv-server (`ulimit -n`)"
        )
        self._report("connections_full", "error", {"text": text, **self._numbers()})

    def _exhausted(self, error: OSError) -> None:
        self._fall_behind()
        self._pause(EXHAUSTED_PAUSE_S)
        text = (
            f"cannot accept connections: {error.strerror or error}; {self._admission.connections} are open, "
            f"of at most {self._admission.connections_max}; if files are short, raise the limit of open "
            "files of rdzv-server (`ulimit -n`) or of the machine"
        )
        self._report("accept_failed", "error", {"text": text, **self._numbers()})

    def _numbers(self) -> dict[str, object]:
        return {
            "connections": self._admission.connections,
            "limit": self._admission.connections_max,
            "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)
