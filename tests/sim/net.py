"""A virtual clock and a virtual network: ordered byte streams with delays, cuts and black holes."""

import heapq
import random
from collections.abc import Callable

Action = Callable[[], None]


class Clock:
    """Runs actions in order of their time; equal times in order of entry."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Action]] = []

    def at(self, when: float, action: Action) -> None:
        self.steps += 1
        heapq.heappush(self._heap, (max(when, self.now), self.steps, action))

    def after(self, delay: float, action: Action) -> None:
        self.at(self.now + delay, action)

    def run_until(self, end: float) -> None:
        while self._heap and self._heap[0][0] <= end:
            self.now, _, action = heapq.heappop(self._heap)
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
        self._held: list[Action] = []
        self.dead = False

    def send(self, data: bytes) -> None:
        while data:
            cut = self._rng.choice((len(data), len(data), self._rng.randint(1, len(data))))
            piece, data = data[:cut], data[cut:]
            self._later(lambda piece=piece: self._deliver(piece))  # type: ignore[misc]

    def close(self, reason: str) -> None:
        self._later(lambda: self._end(reason))

    def heal(self) -> None:
        """What was held arrives first, in its order."""
        self.hole = False
        if self._held:
            self._clock.at(self._clock.now, self._drain)

    def _drain(self) -> None:
        if self.hole:
            return
        held, self._held = self._held, []
        for action in held:
            if not self.dead:
                action()

    def _end(self, reason: str) -> None:
        if not self.dead:
            self.dead = True
            self._closed(reason)

    def _later(self, action: Action) -> None:
        delay = self._rng.choice((0.0002, 0.001, 0.005, self._rng.uniform(0, 0.05)))
        self._arrives = max(self._arrives, self._clock.now + delay)
        self._clock.at(self._arrives, lambda: None if self.dead else self._through(action))

    def _through(self, action: Action) -> None:
        if self.hole or self._held:
            self._held.append(action)
        else:
            action()


class Link:
    """A connection between a node and the server."""

    def __init__(self) -> None:
        self.up: Pipe
        """Node to server."""
        self.down: Pipe
        """Server to node."""

    @property
    def pipes(self) -> tuple[Pipe, Pipe]:
        return self.up, self.down

    def reset(self) -> None:
        """Both ends see the connection break."""
        for pipe in self.pipes:
            pipe.heal()
            pipe.close("connection reset")
