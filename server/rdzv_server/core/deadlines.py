"""Deadlines by key: setting one again replaces it, and moving one later costs O(1).

A heartbeat moves its session's deadline; with thousands of sessions that must not touch a heap.
So the heap keeps the earliest time ever asked for each key and looks up the true one when it fires.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """A set of (key, time). Times are running seconds."""

    __slots__ = ("_due", "_heap", "_queued", "_serial")

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._queued: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: K, at: float) -> None:
        """Set or replace the deadline of a key."""
        self._due[key] = at
        queued = self._queued.get(key)
        if queued is None or at < queued[0]:
            self._push(key, at)

    def cancel(self, key: K) -> None:
        """Forget a key; unknown keys are fine."""
        self._due.pop(key, None)

    def next(self) -> float | None:
        """The earliest deadline, or None."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def none_before(self, at: float) -> bool:
        """True if it is certain, without a closer look, that `next` is not before a time."""
        return not self._heap or self._heap[0][0] >= at

    def pop_due(self, now: float, most: int) -> list[K]:
        """Remove and return up to `most` keys whose deadline is at or before `now`, earliest first."""
        found: list[K] = []
        while len(found) < most:
            self._settle()
            if not self._heap or self._heap[0][0] > now:
                break
            _, _, key = heapq.heappop(self._heap)
            del self._queued[key]
            del self._due[key]
            found.append(key)
        return found

    def _push(self, key: K, at: float) -> None:
        self._serial += 1
        self._queued[key] = (at, self._serial)
        heapq.heappush(self._heap, (at, self._serial, key))

    def _settle(self) -> None:
        """Bring the head of the heap in line with the true deadlines."""
        while self._heap:
            at, serial, key = self._heap[0]
            if self._queued.get(key) != (at, serial):
                heapq.heappop(self._heap)  # replaced by an earlier entry
                continue
            due = self._due.get(key)
            if due == at:
                return
            heapq.heappop(self._heap)
            del self._queued[key]
            if due is not None:
                self._push(key, due)
