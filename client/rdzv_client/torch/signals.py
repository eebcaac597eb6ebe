"""SIGTERM while an agent waits in its first rendezvous.

torch installs its signal handlers only when workers start. Until then SIGTERM would end the process
without a word, and the others would wait a grace period for it. Here it becomes an exception, the
node leaves, and the process ends as it would have.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Terminated(BaseException):
    """SIGTERM arrived."""

    def die(self) -> None:
        """End the process by the very signal, so that its exit status stays what it was."""
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def termination_raises() -> Iterator[None]:
    """Turn SIGTERM into `Terminated`, where nobody else handles it."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
