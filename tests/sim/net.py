"""A virtual clock and a virtual network: ordered byte streams with delays, jitter, cuts and black holes."""

import random
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[], None]

DELAYS_S = (0.0002, 0.001, 0.005)
"""Of most pieces; the others take up to `JITTER_S`."""

JITTER_S = 0.05


class Clock:
    """Runs actions in order of their time; equal times in order of entry."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Action]] = []

    def at(self, when: float, action: Action) -> None:
        self.steps += 1
        heappush(self._heap, (max(when, self.now), self.steps, action))

    def after(self, delay: float, action: Action) -> None:
        self.steps += 1
        heappush(self._heap, (self.now + delay, self.steps, action))

    def run_until(self, end: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, action = heappop(heap)
            action()
        self.now = end


class Pipe:
    """One direction of a connection. Bytes arrive in order, in pieces, later; or wait in a hole."""

    def __init__(self, clock: Clock, rng: random.Random, deliver: Callable[[bytes], None],
                 closed: Callable[[str], None]) -> None:  # fmt: skip
        self._clock, self._rng = clock, rng
        self._deliver, self._closed = deliver, closed
        self._arrives = 0.0
        self.hole = False
        """Swallows everything until it is healed; then TCP's retransmission delivers it."""
        self._cut = False
        self.slow_s = 0.0
        """Further delay of each piece, up to this."""
        self._flying: deque[bytes | str] = deque()
        """Pieces under way, and last the reason of the end, if it was closed."""
        self._held = 0
        """So many of them have come as far as the hole."""
        self.dead = False

    @property
    def empty(self) -> bool:
        """Everything that was sent has arrived."""
        return not self._flying

    def send(self, data: bytes) -> None:
        rng = self._rng
        while data:
            whole = len(data)
            cut = whole if rng.random() < 0.67 else rng.randint(1, whole)
            self._later(data[:cut])
            data = data[cut:]

    def close(self, reason: str) -> None:
        self._later(reason)

    def cut(self) -> None:
        """Nothing arrives any more."""
        self.hole = self._cut = True

    def heal(self) -> None:
        """What was held arrives first, in its order."""
        if self._cut:
            return
        self.hole = False
        if self._held:
            self._clock.at(self._clock.now, self._drain)

    def _drain(self) -> None:
        while self._held and not self.hole and not self.dead:
            self._held -= 1
            self._deliver_next()

    def _later(self, piece: bytes | str) -> None:
        rng = self._rng
        choice = rng.random() * 4
        delay = DELAYS_S[int(choice)] if choice < 3 else rng.random() * JITTER_S
        if self.slow_s:
            delay += rng.random() * self.slow_s
        self._arrives = max(self._arrives, self._clock.now + delay)
        self._flying.append(piece)
        self._clock.at(self._arrives, self._arrived)

    def _arrived(self) -> None:
        if self.dead:
            return
        if self.hole or self._held:
            self._held += 1
        else:
            self._deliver_next()

    def _deliver_next(self) -> None:
        piece = self._flying.popleft()
        if isinstance(piece, bytes):
            self._deliver(piece)
        else:
            self.dead = True
            self._closed(piece)


class Link:
    """A connection between a client and the server."""

    def __init__(self) -> None:
        self.up: Pipe
        """Client to server."""
        self.down: Pipe
        """Server to client."""

    @property
    def pipes(self) -> tuple[Pipe, Pipe]:
        return self.up, self.down

    def reset(self) -> None:
        """Both ends see the connection break."""
        for pipe in self.pipes:
            pipe.heal()
            pipe.close("connection reset")
