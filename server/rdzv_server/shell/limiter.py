"""At most so many log lines per second from the outside world."""

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
