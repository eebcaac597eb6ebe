"""The last transitions of a run, so that a report of a fault is also its reproduction."""

from collections import deque

STORY_LINES_MAX = 64
"""Enough for several generations; a run's memory must not grow with its age."""


class Story:
    """A bounded list of (running time, sentence)."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: deque[tuple[float, str]] = deque(maxlen=STORY_LINES_MAX)

    def tell(self, t: float, line: str) -> None:
        """Add a transition."""
        self._lines.append((t, line))

    def __str__(self) -> str:
        return "\n".join(f"{t:12.3f}  {line}" for t, line in self._lines)
