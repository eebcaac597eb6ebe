"""The log lines of one client: what people read of a connection and of the wait for a generation.

Texts of the server are escaped here, as everything that somebody else wrote.
"""

import logging

from rdzv_client.progress import ProgressLine
from rdzv_client.session_events import Event, State, StateChanged, Unreachable
from rdzv_proto.messages import Notice, Progress, View
from rdzv_proto.text import visible

log = logging.getLogger("rdzv")


class Reports:
    """Writes a line for each event that is worth one.

    Args:
        run: run id.
        where: the server.
    """

    def __init__(self, run: str, where: str) -> None:
        self._run, self._where = run, where
        self._progress = ProgressLine(run)

    @property
    def due_at(self) -> float | None:
        """When `tick` has something to say."""
        return self._progress.due_at

    def take(self, now: float, event: Event) -> None:
        """Something happened."""
        match event:
            case View():
                if event.waiting and event.reason and event.ended is None:
                    log.info("rdzv[%s] %s", self._run, visible(event.reason))
            case StateChanged():
                self._state_changed(event)
            case Unreachable():
                log.warning(
                    "rdzv[%s] server %s not reachable for %.0f s (giving up after %.0f s): %s",
                    self._run, self._where, event.elapsed_s, event.limit_s, visible(event.reason),
                )  # fmt: skip
            case Progress():
                log.info(visible(self._progress.take(now, event)))
            case Notice():
                log.warning("rdzv[%s] %s", self._run, visible(event.message))
            case _:
                pass  # an answer, or what is told where it is handled

    def tick(self, now: float) -> None:
        """Say again what still is so."""
        if self._progress.due_at is not None:
            text = self._progress.tick(now)
            if text is not None:
                log.info(visible(text))

    def stop(self) -> None:
        """Nobody waits any more. From any thread."""
        self._progress.stop()

    def _state_changed(self, event: StateChanged) -> None:
        to = f"connection to {self._where}"
        if event.state is State.SUSPENDED:
            log.warning("rdzv[%s] %s lost: %s", self._run, to, visible(event.reason))
        elif event.away_s:
            log.warning("rdzv[%s] %s restored after %.1f s", self._run, to, event.away_s)
