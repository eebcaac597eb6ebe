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
    """Decides when a line is due: on each change, and every `REPEAT_S` without one."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._last: Progress | None = None
        self._ends_at: float | None = None
        self.due_at: float | None = None

    def take(self, now: float, progress: Progress) -> str:
        """The server told something new."""
        self._last = progress
        self._ends_at = None if progress.left_ms is None else now + progress.left_ms / 1000
        return self._line(now)

    def tick(self, now: float) -> str | None:
        """The line, if it is due again."""
        if self.due_at is None or now < self.due_at:
            return None
        return self._line(now)

    def stop(self) -> None:
        """The wait is over."""
        self._last = self.due_at = None

    def _line(self, now: float) -> str:
        assert self._last is not None, "no progress to show"
        self.due_at = now + REPEAT_S
        left_s = None if self._ends_at is None else max(0.0, self._ends_at - now)
        return line(self._run, self._last, left_s)
