"""At most so many log lines per second from the outside world."""

import time
from collections import Counter
from collections.abc import Mapping

from rdzv_server.shell import log

LINE_S = 1.0
"""A port scan must not fill the disk."""


class Limiter:
    """Lets one line through per `LINE_S` and counts the others."""

    def __init__(self) -> None:
        self._next = 0.0
        self._held = 0

    def pass_at(self, now: float) -> int | None:
        """None: keep quiet. Otherwise the number of lines that were held back before this one."""
        if now < self._next:
            self._held += 1
            return None
        held, self._held, self._next = self._held, 0, now + LINE_S
        return held


class Lines:
    """Lines about what comes from outside: one a second of each event, and how many there would have been."""

    def __init__(self) -> None:
        self._limiters: dict[str, Limiter] = {}
        self.told: Counter[str] = Counter()
        """Events that `tell` was given, let through or not."""

    def tell(self, event: str, level: str, fields: Mapping[str, object]) -> None:
        """A line for the log, at most one a second of each event."""
        self.told[event] += 1
        held = self._limiters.setdefault(event, Limiter()).pass_at(time.monotonic())
        if held is not None:
            more = {"suppressed": held} if held else {}
            log.event(event, level, **fields, **more)
