"""That a server leads, and until when: known without any of what etcd needs."""

import asyncio
import math
from dataclasses import dataclass, field


@dataclass
class Lead:
    """That a server leads: for ever where there is only one."""

    until: float = math.inf
    """Monotonic seconds. From then on it must say nothing more."""
    why: str = ""
    """Why it ended."""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, why: str) -> None:
        """It leads no more. The first reason counts."""
        if not self.over.is_set():
            self.until, self.why = -math.inf, why
            self.over.set()

    def lapsed(self, now: float) -> bool:
        """Whether it must be silent."""
        if now < self.until:
            return False
        self.end("its lease was not renewed in time")
        return True
