"""What is written and ended in a turn of the loop: answers together, and in portions what may come in thousands."""

import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdzv_server.shell.connection import Connection
    from rdzv_server.shell.peer import Peer

FLUSHES_PER_TURN = 256
"""Connections that are written to in one turn: about 3 ms."""

FLUSH_BYTES_PER_TURN = 4 << 20
"""Bytes that are written in one turn: the system copies them, in about 2 ms."""

LOSSES_S = 0.005
"""Of one turn, for the ends of connections."""

Soon = Callable[[Callable[[], None]], object]
"""Runs an action in the next turn."""


class Outbox:
    """Connections that have something queued, and writes it.

    Args:
        soon: runs an action in the next turn.
    """

    def __init__(self, soon: Soon) -> None:
        self.answered: list[Peer] = []
        """Whose own requests were answered: they come first, and all of them."""
        self.told: deque[Peer] = deque()
        """Who is told what others did: a new world, or what all gave at a barrier, goes to thousands."""
        self._soon = soon
        self._scheduled = False

    def flush(self) -> None:
        """Write the answers, and as much of the rest as this turn allows; what is left follows by itself."""
        answered, self.answered = self.answered, []
        for peer in answered:
            peer.flush()
        if not self._scheduled:
            self._some()

    def _some(self) -> None:
        self._scheduled = False
        size = 0
        for count in itertools.count(1):
            if not self.told:
                return
            size += self.told.popleft().flush()
            if count >= FLUSHES_PER_TURN or size >= FLUSH_BYTES_PER_TURN:
                break
        if self.told:
            self._scheduled = True
            self._soon(self._some)


class Ends:
    """Connections that are closed, and not told to the core yet: a switch takes thousands along.

    Args:
        soon: runs an action in the next turn.
        now: monotonic seconds.
        lose: tells the core of one, and why it ended.
    """

    def __init__(
        self, soon: Soon, now: Callable[[], float], lose: Callable[["Connection", str], None]
    ) -> None:
        self._soon, self._now, self._lose = soon, now, lose
        self._ended: deque[tuple[Connection, str]] = deque()

    def add(self, connection: "Connection", reason: str) -> None:
        """It is closed."""
        if not self._ended:
            self._soon(self._some)
        self._ended.append((connection, reason))

    def _some(self) -> None:
        until = self._now() + LOSSES_S
        while self._ended:
            self._lose(*self._ended.popleft())
            if self._now() >= until:
                break
        if self._ended:
            self._soon(self._some)
