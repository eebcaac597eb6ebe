"""Who may do harm right now: each run its own, or one fault to all of them."""

import contextlib
import threading
from collections.abc import Iterator

LOOK_S = 0.1


class Gate:
    """Many hold it shared, or one alone."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._changed = threading.Condition()
        self._shared = 0
        self._wanted = False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Beside others; waits for one who is alone."""
        with self._changed:
            while self._wanted and not self._stop.is_set():
                self._changed.wait(LOOK_S)
            self._shared += 1
        try:
            yield
        finally:
            with self._changed:
                self._shared -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until nobody else is there."""
        with self._changed:
            self._wanted = True
            while self._shared and not self._stop.is_set():
                self._changed.wait(LOOK_S)
        try:
            yield
        finally:
            with self._changed:
                self._wanted = False
                self._changed.notify_all()
