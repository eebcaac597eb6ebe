"""How many requests of whom are done in one turn of the loop, so that nobody waits for a flood.

One request costs the server some 5 to 20 µs. A connection may bring thousands of them in one read, and a
run has many connections. What is more than its share is done in the next turn, after everybody else's:
nothing is refused, and where only one run is there nothing is held up.
"""

import weakref

PER_CONNECTION = 256
"""Requests of one connection in a turn: at most about 5 ms."""

PER_TURN = 1_024
"""Requests in a turn of all runs that have more than this turn can do: about 20 ms."""

PER_RUN_MIN = 64
"""However many runs flood the server, each does so many in a turn."""

RATE_PER_S = 5_000
"""Requests of one session: a tenth of what the server can do. A training process asks for some dozens."""

BURST = 10_000
"""That a session may be ahead of its rate: a rank exchange of the largest world."""


class Share:
    """What the connections of one run may do in the present turn."""

    __slots__ = ("__weakref__", "exhausted_in", "left", "turn")

    def __init__(self) -> None:
        self.left = 0
        self.turn = self.exhausted_in = -1


class Turns:
    """The present turn, and who shares it."""

    def __init__(self) -> None:
        self.number = 0
        self._shares: weakref.WeakValueDictionary[str, Share] = weakref.WeakValueDictionary()
        self._exhausted = 0
        self._per_run = PER_TURN

    def share(self, run: str) -> Share:
        """Of a run; its connections hold it, and it ends with the last of them."""
        share = self._shares.get(run)
        if share is None:
            share = self._shares[run] = Share()
        return share

    def left(self, share: Share) -> int:
        """Requests that a run may still do in this turn."""
        if share.turn != self.number:
            share.turn = self.number
            share.left = self._per_run if len(self._shares) > 1 else PER_CONNECTION * 1_000_000
        return share.left

    def exhausted(self, share: Share) -> None:
        """A run has more to do than its share."""
        if share.exhausted_in != self.number:
            share.exhausted_in = self.number
            self._exhausted += 1

    def next(self) -> None:
        """The turn is over. Runs that could not do everything share the next one."""
        self.number += 1
        self._per_run = max(PER_TURN // max(1, self._exhausted), PER_RUN_MIN)
        self._exhausted = 0


class Budget:
    """The rate of one session, as a bucket of tokens."""

    __slots__ = ("_at", "left")

    def __init__(self, now: float) -> None:
        self.left = float(BURST)
        self._at = now

    def refill(self, now: float) -> float:
        """After `left` has fallen below 0: seconds to wait until it is 0 again, 0 for none."""
        self.left = min(self.left + (now - self._at) * RATE_PER_S, float(BURST))
        self._at = now
        return max(0.0, -self.left / RATE_PER_S)
