"""The one timer of a server: it enters the core when a deadline is due, and at least once a tick."""

import asyncio
import time
from collections.abc import Callable

from rdzv_server.core.clock import TICK_S
from rdzv_server.core.coordinator import Coordinator
from rdzv_server.core.sessions import SOCKET_POLL_S


class Timer:
    """Made in the running event loop.

    Args:
        core: whose deadlines these are.
        due: called at one of them, with the time to tell the core.
    """

    def __init__(self, core: Coordinator, due: Callable[[float], None]) -> None:
        self._core, self._due = core, due
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._stopped = False

    def arm(self) -> None:
        """The core may have an earlier deadline now. A later one is found when the present one is due."""
        if self._stopped or (self._handle is not None and self._core.quiet_until(self._at)):
            return
        now = time.monotonic()
        due = self._core.next_deadline()
        at = now + TICK_S if due is None else min(now + TICK_S, due)
        if self._handle is None or at < self._at:
            if self._handle is not None:
                self._handle.cancel()
            self._at = at
            # uvloop makes a `call_soon` of less than half a millisecond, which comes before the sockets are
            # looked at: the second phase of an expiry would come right after the first one.
            self._handle = self._loop.call_later(max(SOCKET_POLL_S, at - now), self._fire)

    def stop(self) -> None:
        """For good."""
        self._stopped = True
        if self._handle is not None:
            self._handle.cancel()

    def _fire(self) -> None:
        self._handle = None
        # uvloop's timers fire up to a millisecond early; the core must find its deadline due.
        self._due(max(time.monotonic(), self._at))
