"""To whom an event of the session goes: the caller who asked, a listener, or the log."""

import threading
import time
from collections.abc import Callable

from rdzv_client.reports import Reports
from rdzv_client.revocations import Revocations
from rdzv_client.session_events import Answered, Event, State, StateChanged
from rdzv_client.targets import Targets
from rdzv_proto.messages import AnyReply, NcclRevoked, View

Callback = Callable[[AnyReply], None]


class Handout:
    """Of one client.

    Args:
        targets: told which server has welcomed this client.
        on_view: called with each new view of the generation.
        reports: what people read.

    Attributes:
        callbacks: of requests without an answer, by their number.
        revocations: unique ids that were taken back.
        met: there was a first welcome, or the session is over.
    """

    def __init__(self, targets: Targets, on_view: Callable[[View], None], reports: Reports) -> None:
        self.callbacks: dict[int, Callback] = {}
        self.revocations = Revocations()
        self.met = threading.Event()
        self.on_view, self.reports = on_view, reports
        self._targets = targets

    def give(self, event: Event) -> None:
        """Hand one out. What the listeners raise is raised."""
        match event:
            case Answered():
                callback = self.callbacks.pop(event.request_id, None)
                if callback is not None:
                    callback(event.reply)
            case NcclRevoked():
                self.revocations.take(event)
            case _:
                self.reports.take(time.monotonic(), event)
        if isinstance(event, View):
            self.on_view(event)
        elif isinstance(event, StateChanged) and event.state is not State.SUSPENDED:
            if event.state is State.CONNECTED:
                self._targets.welcomed()
            self.met.set()
