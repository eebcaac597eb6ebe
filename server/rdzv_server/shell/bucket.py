"""A bucket of tokens: so many at once, and so many a second after that."""


class Bucket:
    """Begins full.

    Args:
        per_s: that come back.
        burst: that it holds.
        now: monotonic seconds.
    """

    __slots__ = ("_at", "_burst", "_per_s", "left")

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s, self._burst, self._at = per_s, float(burst), now
        self.left = self._burst
        """May be taken from as it is; below 0 it is owed."""

    def fill(self, now: float) -> None:
        """Put in what has come back."""
        self.left = min(self.left + (now - self._at) * self._per_s, self._burst)
        self._at = now

    def take(self, now: float) -> bool:
        """Take one, if there is one."""
        self.fill(now)
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True
