"""Time in which the server ran. Stalls are taken out, so they are charged to nobody (S32).

Everything in the core reckons in this time. A stopped process, a suspended machine or a starved
core shows as a gap between two entries into the core, which the shell enters at least once per
tick. The excess of such a gap is subtracted from all later readings, which moves every deadline by
the same amount. Redis Sentinel's TILT mode and etcd's lease extension serve the same end.
"""

TICK_S = 0.1
"""The shell enters the core at least this often. Ten wake-ups a second cost nothing measurable and
make a stall of a fifth of a second visible."""

STALL_S = 2 * TICK_S
"""A longer gap than this is a stall."""


class RunClock:
    """Turns monotonic readings into running time.

    Attributes:
        stalls: gaps seen so far.
        stalled_s: their sum, in seconds.
    """

    __slots__ = ("_last", "stalled_s", "stalls")

    def __init__(self) -> None:
        self._last: float | None = None
        self.stalls = 0
        self.stalled_s = 0.0

    def advance(self, now: float) -> tuple[float, float]:
        """Take a reading.

        Args:
            now: monotonic seconds; an earlier reading than the last one counts as the last one.

        Returns:
            Running time in seconds, and the length of the stall that just ended (0 if none).
        """
        stall = 0.0
        if self._last is None:
            self._last = now
        elif now > self._last:
            gap = now - self._last
            self._last = now
            if gap > STALL_S:
                stall = gap - TICK_S
                self.stalls += 1
                self.stalled_s += stall
        return self._last - self.stalled_s, stall

    def monotonic(self, t: float) -> float:
        """When a running time will be reached, in monotonic seconds, if no stall comes between."""
        return t + self.stalled_s
