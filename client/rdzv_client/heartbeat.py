"""When heartbeats are due, and when their answers are overdue. Pure; times are monotonic seconds."""

import random


class Heartbeats:
    """The heartbeats of one connection.

    One is due every third of the lease. Half a lease without an answer means that the connection is
    dead in one direction at least; the other half is left for a new one.
    """

    def __init__(self) -> None:
        self.due_at: float | None = None
        self._lease_s = 0.0
        self._waiting: tuple[int, float] | None = None

    def start(self, now: float, lease_s: float, rng: random.Random) -> None:
        """A connection was welcomed."""
        self._lease_s, self._waiting = lease_s, None
        # The phase is random, so that the heartbeats of a whole world do not come together.
        self.due_at = now + lease_s / 3 * rng.uniform(0.5, 1.0)

    def stop(self) -> None:
        """The connection is gone."""
        self.due_at = self._waiting = None

    @property
    def answer_s(self) -> float:
        """Patience for an answer."""
        return self._lease_s / 2

    @property
    def overdue_at(self) -> float | None:
        """When the connection must be given up if no answer comes."""
        return None if self._waiting is None else self._waiting[1] + self.answer_s

    @property
    def next_at(self) -> float | None:
        """When the session must look again: the next one is due, or patience is over."""
        overdue_at = self.overdue_at
        if self.due_at is None or overdue_at is None:
            return self.due_at
        return min(self.due_at, overdue_at)

    def sent(self, now: float, request_id: int) -> None:
        """A heartbeat was sent."""
        self.due_at = now + self._lease_s / 3
        if self._waiting is None:
            self._waiting = (request_id, now)

    def answered(self, request_id: int) -> bool:
        """True if the reply belongs to the heartbeat that is waited for."""
        if self._waiting is None or self._waiting[0] != request_id:
            return False
        self._waiting = None
        return True
