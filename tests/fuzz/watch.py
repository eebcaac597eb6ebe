"""How long the product takes for one input, in processor time of this thread, and how memory grows."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

INPUT_MS_MAX = 5.0
"""Nothing that a stranger sends may hold up the loop for longer (SEMANTICS T9)."""


@dataclass
class Watch:
    """Times calls of the product; what the tests do around them does not count."""

    largest_ms: float = 0.0
    """Of any call since `begin`."""

    def begin(self) -> None:
        """A new input."""
        self.largest_ms = 0.0

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call, and keep the time if it is the largest."""
        began = time.thread_time_ns()
        try:
            return function(*arguments)
        finally:
            took_ms = (time.thread_time_ns() - began) / 1e6
            self.largest_ms = max(self.largest_ms, took_ms)


def rss_mib() -> float:
    """Memory of this process now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def slope(points: list[tuple[float, float]]) -> float:
    """Least squares: how much y grows for each x; 0 if that cannot be said."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / max(1, count)
    mean_y = sum(y for _, y in points) / max(1, count)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
