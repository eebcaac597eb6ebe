"""How much of whom is done in one turn of the loop, so that nobody waits for a flood.

A request costs the server from 5 µs to some milliseconds (a list of 16,384 keys). A connection may bring
thousands of them in one read, and a run has many connections. What is more than its share of the turn's time is
done in the next turn, after everybody else's: nothing is refused.
"""

import weakref
from collections import deque
from typing import Protocol

from rdzv_server.shell.bucket import Bucket

PER_CONNECTION_S = 0.005
"""Of one connection in a turn."""

PER_TURN_S = 0.01
"""Of all runs together that have more to do than their share. A heartbeat of another run waits for a turn or two,
and must not wait longer than 50 ms (L10) on a busy machine."""

NO_RUN = ""
"""Whose share those have who have not said their hello yet, and tools."""

PER_RUN_S_MIN = 0.001
"""However many runs flood the server, each gets on."""

ALONE_S = 0.05
"""Of the only run there is: only newcomers wait for it."""

OUT_BYTES_MAX = 1 << 20
"""Answers of one connection in a turn, before they are written: small requests may have large answers."""

UNREAD_BYTES_MAX = 4 << 20
"""Answers that a peer has not taken: with more than that, its next requests wait. A reader who takes nothing is
cut (`Laggards`)."""

RATE_PER_S = 5_000
"""Requests of one session: a tenth of what the server can do. A training process asks for some dozens."""

BURST = 10_000
"""That a session may be ahead of its rate: a rank exchange of the largest world."""

STEP = 50
"""Requests that a session may do ahead of its rate once its bucket is empty: so it waits 10 ms at a time, not for each
of them, and never has more done than that."""


class Waiting(Protocol):
    """A connection's end."""

    def go_on(self) -> None:
        """Do what waits, as far as this turn allows."""


class Share:
    """What the connections of one run may use of the present turn, in seconds."""

    __slots__ = ("__weakref__", "exhausted_in", "left_s", "turn", "waiting")

    def __init__(self) -> None:
        self.left_s = 0.0
        self.turn = self.exhausted_in = -1
        self.waiting: deque[Waiting] = deque()
        """Connections that have more to do, in order. Those that this turn cannot serve cost it nothing."""


class Turns:
    """The present turn, and who shares it."""

    def __init__(self) -> None:
        self.number = 0
        self._shares: weakref.WeakValueDictionary[str, Share] = weakref.WeakValueDictionary()
        self._exhausted = 0
        self._per_run_s = PER_TURN_S
        self._waited_for: dict[Share, None] = {}

    def share(self, run: str) -> Share:
        """Of a run; its connections hold it, and it ends with the last of them."""
        share = self._shares.get(run)
        if share is None:
            share = self._shares[run] = Share()
        return share

    def left_s(self, share: Share) -> float:
        """Time that a run may still use in this turn."""
        if share.turn != self.number:
            share.turn = self.number
            share.left_s = self._per_run_s if len(self._shares) > 1 else ALONE_S
        return share.left_s

    def wait(self, share: Share, connection: Waiting) -> None:
        """A connection has more to do than this turn allows."""
        share.waiting.append(connection)
        self._waited_for[share] = None

    def go_on(self) -> bool:
        """Serve those who wait, as far as their shares go. True: some still wait."""
        for share in list(self._waited_for):
            for _ in range(len(share.waiting)):
                if self.left_s(share) <= 0:
                    self.exhausted(share)
                    break
                share.waiting.popleft().go_on()
            if not share.waiting:
                del self._waited_for[share]
        return bool(self._waited_for)

    def exhausted(self, share: Share) -> None:
        """A run has more to do than its share."""
        if share.exhausted_in != self.number:
            share.exhausted_in = self.number
            self._exhausted += 1

    def next(self) -> None:
        """The turn is over. Runs that could not do everything share the next one."""
        self.number += 1
        self._per_run_s = max(PER_TURN_S / max(1, self._exhausted), PER_RUN_S_MIN)
        self._exhausted = 0


class Budget(Bucket):
    """The rate of one session."""

    __slots__ = ()

    def __init__(self, now: float) -> None:
        super().__init__(RATE_PER_S, BURST, now)

    def refill(self, now: float) -> float:
        """After `left` has fallen below 0: seconds to wait until it is 0 again, 0 for none."""
        self.fill(now)
        return max(0.0, -self.left / RATE_PER_S)
