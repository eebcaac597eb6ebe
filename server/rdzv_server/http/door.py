"""Takes connections of the HTTP side, within limits of its own.

Nobody proves anything here, so what anybody can make the server do is little: so many descriptors, which
the main port never gets, so many connections a second, and each of them for so long. What is more is closed
at once. The limits of the main port (`admission`) are no good for this: whoever is not let in there must
still find out that the server lives.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from rdzv_server.shell.accept import ACCEPTS_PER_TURN, EXHAUSTED_PAUSE_S, PASSING, TURN_AWAY_PAUSE_S
from rdzv_server.shell.addresses import host_of
from rdzv_server.shell.bucket import Bucket

CONNECTIONS_MAX = 64
"""At a time. A probe and a scrape take milliseconds, so this is dozens of each in the same moment."""

LIFE_S = 10.0
"""Then a connection is cut, whatever it does: 5 s to send a request (`pages.READ_S`) and as long to read
the answer, which is at most 60 KiB."""

RATE_PER_S, BURST = 20.0, 32
"""Connections of one address: every tool of a machine, some of them behind one address."""

RATE_ALL_PER_S, BURST_ALL = 100.0, 128
"""Of all addresses. One costs the loop about 0.4 ms, so a flood has 4 % of it."""

HOSTS_KEPT = 256
"""Addresses whose rate is known. Who was forgotten begins anew, and what all may have still holds."""

Gone = Callable[[], None]
"""To be called once, when the connection is closed."""

Report = Callable[[str, str, Mapping[str, object]], None]
"""Takes event, level and fields of a line for the log, and lets one a second of each event through."""


def connections_max(capacity: int) -> int:
    """How many the HTTP side may have, of all connections that the process can have: at most a sixteenth.
    The main port gets the others."""
    return max(1, min(CONNECTIONS_MAX, capacity // 16))


class _Cut(NamedTuple):
    """What ends a connection."""

    transport: asyncio.Transport
    timer: asyncio.TimerHandle


class Door:
    """Owns the listening sockets.

    Args:
        sockets: bound, listening and not blocking.
        protocol: makes the end of a connection, and is told whom to tell when that is gone.
        report: writes to the log.
        most: connections at a time.
        life_s: after which one is cut.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        protocol: Callable[[Gone], asyncio.Protocol],
        report: Report,
        *,
        most: int = CONNECTIONS_MAX,
        life_s: float = LIFE_S,
    ) -> None:
        self._sockets = list(sockets)
        self._protocol = protocol
        self._report = report
        self._most = most
        self._life_s = life_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._open: dict[int, _Cut | None] = {}
        """By number; None until the loop has taken it over."""
        self._number = 0
        self._all = Bucket(RATE_ALL_PER_S, BURST_ALL, self._loop.time())
        self._hosts: dict[str, Bucket] = {}
        """The one that came last is last."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def connections(self) -> int:
        """Open now."""
        return len(self._open)

    def start(self) -> None:
        """Take connections from now on.

        Raises:
            OSError: the loop cannot watch the sockets.
        """
        for sock in self._sockets:
            self._loop.add_reader(sock, self._readable, sock)

    async def close(self, patience_s: float) -> None:
        """Take none any more, and let those that are there end; they are cut after a while."""
        self._pause()
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._empty.wait(), patience_s)
        for cut in list(self._open.values()):
            if cut is not None:
                cut.transport.abort()
        for task in self._tasks:
            task.cancel()

    def _pause(self, duration_s: float | None = None) -> None:
        for sock in self._sockets:
            self._loop.remove_reader(sock)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if duration_s is not None:
            self._timer = self._loop.call_later(duration_s, self._resume)

    def _resume(self) -> None:
        self._timer = None
        try:
            self.start()
        except OSError as error:
            self._exhausted(error)

    def _readable(self, sock: socket.socket) -> None:
        surplus = 0
        for _ in range(ACCEPTS_PER_TURN):
            try:
                conn, address = sock.accept()
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno in PASSING:
                    continue
                self._exhausted(error)
                return
            if self._allowed(host_of(address)):
                self._let_in(conn)
            else:
                conn.close()
                surplus += 1
        if surplus:
            self._report(
                "http_full", "warning", {"closed": surplus, "connections": self.connections}
            )
            self._pause(TURN_AWAY_PAUSE_S)  # or a flood of connects would have the whole core

    def _allowed(self, host: str) -> bool:
        now = self._loop.time()
        rate = self._hosts.pop(host, None) or Bucket(RATE_PER_S, BURST, now)
        self._hosts[host] = rate
        if len(self._hosts) > HOSTS_KEPT:
            del self._hosts[next(iter(self._hosts))]
        return len(self._open) < self._most and rate.take(now) and self._all.take(now)

    def _let_in(self, sock: socket.socket) -> None:
        self._number += 1
        self._open[self._number] = None
        self._empty.clear()
        task = self._loop.create_task(self._arrive(self._number, sock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _arrive(self, number: int, sock: socket.socket) -> None:
        gone = partial(self._gone, number)
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: self._protocol(gone), sock
            )
        except OSError:  # it went away at once
            sock.close()
            gone()
        else:
            if number in self._open:
                timer = self._loop.call_later(self._life_s, transport.abort)
                self._open[number] = _Cut(transport, timer)

    def _gone(self, number: int) -> None:
        cut = self._open.pop(number, None)
        if cut is not None:
            cut.timer.cancel()
        if not self._open:
            self._empty.set()

    def _exhausted(self, error: OSError) -> None:
        self._pause(EXHAUSTED_PAUSE_S)
        text = f"cannot accept connections at the HTTP port: {error.strerror or error}"
        self._report("http_accept_failed", "error", {"text": text})
