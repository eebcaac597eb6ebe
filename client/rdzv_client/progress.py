"""The line that people read while a job waits for its nodes."""

from rdzv_proto.messages import Progress

REPEAT_S = 30.0
"""An unchanged line is repeated after this long: silence looks like a hang."""


def line(run: str, progress: Progress, left_s: float | None) -> str:
    """`rdzv[llama] 3/4 nodes joined · waiting for node-7 · 12 s left`.

    Args:
        run: run id.
        progress: what the server told.
        left_s: what is left of the wait now; None for no limit.
    """
    if progress.standby:
        parts = [f"standby: {progress.joined} nodes are running (max {progress.max_nodes})"]
        parts.append(progress.reason)
    else:
        parts = [f"{progress.joined}/{_goal(progress)} nodes joined"]
        if progress.waiting_for:
            parts.append(f"waiting for {', '.join(progress.waiting_for)}")
        elif progress.joined >= progress.min_nodes:
            parts.append(progress.reason)
        if progress.joined < progress.min_nodes < progress.max_nodes:
            parts.append(f"min {progress.min_nodes}")
    if left_s is not None:
        parts.append(f"{left_s:.0f} s left")
    return f"rdzv[{run}] " + " · ".join(part for part in parts if part)


def _goal(progress: Progress) -> int:
    return progress.max_nodes


class ProgressLine:
    """Decides when a line is due: on each change, and every `REPEAT_S` without one.

    `stop` may come from another thread at any point; nothing is shown or due after it.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._last: Progress | None = None
        self._ends_at: float | None = None
        self._due_at = 0.0

    @property
    def due_at(self) -> float | None:
        """When the line is due again; None while nobody waits."""
        return None if self._last is None else self._due_at

    def take(self, now: float, progress: Progress) -> str:
        """The server told something new."""
        self._ends_at = None if progress.left_ms is None else now + progress.left_ms / 1000
        self._due_at = now + REPEAT_S
        self._last = progress
        return self._line(now, progress)

    def tick(self, now: float) -> str | None:
        """The line, if it is due again."""
        last = self._last
        if last is None or now < self._due_at:
            return None
        self._due_at = now + REPEAT_S
        return self._line(now, last)

    def stop(self) -> None:
        """The wait is over."""
        self._last = None

    def _line(self, now: float, progress: Progress) -> str:
        left_s = None if self._ends_at is None else max(0.0, self._ends_at - now)
        return line(self._run, progress, left_s)
