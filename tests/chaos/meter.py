"""How long runs take to be together again, and how many faults there were."""

import contextlib
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal

from tests.chaos.crew import Crew

Kind = Literal["loss", "return"]
"""`loss`: those who are left go on without the others, or all go on as before. `return`: a member comes (back)
and is waited for."""

POLL_S = 0.01
STUCK_S = 30.0
"""Longer than a lease, a last call and any pause of a client together by far: who is not together then
never will be."""

SLOWEST_SHOWN = 5


class Meter:
    """Counts, for all threads."""

    def __init__(self, stop: threading.Event, faults_max: int) -> None:
        self.stopping = stop
        self.faults: Counter[str] = Counter()
        self.times: dict[Kind, list[float]] = defaultdict(list)
        self.net_times: dict[Kind, list[float]] = defaultdict(list)
        """Without the time for which the machine let processes wait: other people's load is no fault."""
        self.slowest: dict[Kind, list[tuple[float, str]]] = defaultdict(list)
        self.stuck: list[str] = []
        self.notes: list[str] = []
        """What was done and measured, and when, in the clock of the histories."""
        self.disturbances = 0
        """Faults that come on top of others: who is on the way back then is not timed."""
        self._disturbing = 0
        self.untimed = 0
        self._faults_max = faults_max
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        return sum(self.faults.values())

    def allow(self, faults_max: int) -> None:
        """So many in all, up to now."""
        self._faults_max = faults_max

    @property
    def over(self) -> bool:
        """Enough faults, or told to stop."""
        return self.stopping.is_set() or self.total >= self._faults_max

    def fault(self, name: str) -> float:
        """Count one; returns the time."""
        now = time.monotonic()
        with self._lock:
            self.faults[name] += 1
            self.notes.append(f"{now:.3f} {name}")
        return now

    @contextlib.contextmanager
    def on_top(self) -> Iterator[None]:
        """While a fault comes on top of others."""
        self._disturb(1)
        try:
            yield
        finally:
            self._disturb(-1)

    def _disturb(self, change: int) -> None:
        with self._lock:
            self.disturbances += 1
            self._disturbing += change

    def pause(self, seconds: float) -> None:
        """Wait, or until all is to stop."""
        self.stopping.wait(seconds)

    def measure(self, crews: Sequence[Crew], since: float, kind: Kind, what: str) -> None:
        """Wait until each crew is together after `since`, and take its time."""
        before, deadline = self.disturbances, time.monotonic() + STUCK_S
        waits = {crew.run: crew.waits() for crew in crews}
        waiting = list(crews)
        while waiting and not self.stopping.is_set():
            for crew in list(waiting):
                at = crew.together(since)
                if at is not None:
                    waiting.remove(crew)
                    held_up_s = crew.held_up(waits[crew.run])
                    self._take(kind, at - since, held_up_s, f"{what} of {crew.run}", before)
            if time.monotonic() > deadline:
                if before == self.disturbances:
                    with self._lock:
                        self.stuck += [f"after {what}: {crew.shown()}" for crew in waiting]
                    return
                before, deadline = self.disturbances, time.monotonic() + STUCK_S
            self.pause(POLL_S)

    def _take(self, kind: Kind, seconds: float, held_up_s: float, what: str, before: int) -> None:
        with self._lock:
            timed = before == self.disturbances and not self._disturbing
            self.notes.append(
                f"{time.monotonic():.3f} together after {seconds:.3f} s ({kind}, {held_up_s:.3f} s held "
                f"up{'' if timed else ', not timed'}): {what}"
            )
            if not timed:
                self.untimed += 1
                return
            self.times[kind].append(seconds)
            self.net_times[kind].append(max(0.0, seconds - held_up_s))
            what = f"{what} ({held_up_s:.2f} s held up)"
            slowest = sorted([*self.slowest[kind], (seconds, what)], reverse=True)
            self.slowest[kind] = slowest[:SLOWEST_SHOWN]


def percentile(times: list[float], percent: float) -> float:
    """Seconds; 0 if there are none."""
    if not times:
        return 0.0
    return sorted(times)[max(0, math.ceil(len(times) * percent / 100) - 1)]
