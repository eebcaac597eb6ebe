"""Ids that were taken back: the server's pushes, and who wants to know of them.

A push may overtake the caller who is just taking the ids out of their answer, so it is kept until
somebody asks. Listeners run on a thread of their own: aborting a communicator takes long, and the thread
that hears the push keeps this node's lease.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from rdzv_proto.messages import Fence, NcclRevoked
from rdzv_proto.text import visible

log = logging.getLogger("rdzv")

KEPT_MAX = 64
"""Pushes that nobody asked for yet: those of communicators whose ids are being taken right now."""

Key = tuple[Fence, str, int]
"""(fence, group, attempt)."""

Listener = Callable[[str], None]


class Revocations:
    """Of one client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, str] = OrderedDict()
        self._listeners: dict[Key, list[Listener]] = {}

    def take(self, push: NcclRevoked) -> None:
        """The server took ids back. Never blocks, never raises."""
        key = (push.fence, push.group, push.attempt)
        log.warning("rdzv %s", visible(push.message))
        with self._lock:
            listeners = self._listeners.pop(key, [])
            self._kept[key] = push.message
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        for listener in listeners:
            listener(push.message)

    def listen(self, key: Key, listener: Listener) -> None:
        """Call once when those ids are taken back; at once if they are."""
        with self._lock:
            why = self._kept.get(key)
            if why is None:
                self._listeners.setdefault(key, []).append(listener)
                return
        listener(why)

    def forget(self, key: Key, listener: Listener) -> None:
        """The listener is not interested any more."""
        with self._lock:
            left = [one for one in self._listeners.pop(key, []) if one is not listener]
            if left:
                self._listeners[key] = left


class RevokedFlag:
    """Whether ids were taken back, and why. The first reason stays.

    Args:
        run: calls listeners; a thread of their own, or an event loop.
    """

    def __init__(self, run: Callable[[Callable[[], None]], None]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self.reason = ""

    def __bool__(self) -> bool:
        return bool(self.reason)

    def set(self, why: str) -> None:
        """They were."""
        with self._lock:
            if self.reason:
                return
            self.reason = why or "revoked"
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            self._start(listener)

    def when_set(self, listener: Listener) -> None:
        """Call once with the reason; at once if it is set."""
        with self._lock:
            if not self.reason:
                self._listeners.append(listener)
                return
        self._start(listener)

    def _start(self, listener: Listener) -> None:
        def call() -> None:
            try:
                listener(self.reason)
            except Exception:
                log.exception("rdzv: a listener for revoked unique ids failed")

        self._run(call)


def on_a_thread(call: Callable[[], None]) -> None:
    """Run on a new thread."""
    threading.Thread(target=call, name="rdzv-revoked", daemon=True).start()
