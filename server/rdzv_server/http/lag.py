"""How late the event loop is: whether anything holds it up."""

import asyncio

from rdzv_server.http.buckets import Buckets

EVERY_S = 0.25
"""Four wake-ups a second cost nothing measurable, and meet any hold-up of a quarter of a second."""


class Lag:
    """Sets a timer again and again, and looks how late it fires.

    Args:
        seen: where that is counted.
    """

    def __init__(self, seen: Buckets) -> None:
        self._seen = seen
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    def start(self) -> None:
        """From now on, on the running loop."""
        loop = asyncio.get_running_loop()
        self._due_at = loop.time() + EVERY_S
        self._timer = loop.call_at(self._due_at, self._fired, loop)

    def stop(self) -> None:
        """Not any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fired(self, loop: asyncio.AbstractEventLoop) -> None:
        # uvloop's clock has whole milliseconds, and its timers fire up to one of them early.
        self._seen.observe(max(0.0, loop.time() - self._due_at))
        self.start()
