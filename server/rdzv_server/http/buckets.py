"""Counting durations, cheap enough to do it always."""

from bisect import bisect_left
from collections.abc import Sequence

LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for how late the event loop is: 5 ms is a full turn of one connection (`turns`), 200 ms is what
the core calls a stall."""

COMMIT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for commits: from an NVMe disk (below a millisecond) to one that hangs."""


class Buckets:
    """A histogram. One thread observes; any thread may read, and sees each number as it is then.

    Args:
        bounds_s: upper bounds in seconds, rising; one more bucket takes what is above.
    """

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = tuple(bounds_s)
        self.counts = [0] * (len(self.bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        """Count one. About 0.2 µs."""
        self.counts[bisect_left(self.bounds_s, duration_s)] += 1
        self.sum_s += duration_s

    def copy(self) -> "Buckets":
        """As it is now."""
        made = Buckets(self.bounds_s)
        made.counts, made.sum_s = list(self.counts), self.sum_s
        return made

    def cumulative(self) -> list[tuple[str, float]]:
        """Bound and how many were not above it, as Prometheus wants them."""
        rows: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*map(str, self.bounds_s), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows
