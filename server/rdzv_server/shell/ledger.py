"""Nothing is told before it is safe: effects wait until what they rest on is stored (S26).

Commits are made by one thread, one after the other; what comes up meanwhile goes into the next one, so that a
busy server makes few and large ones. While the store cannot be written, nothing that rests on it is said; heartbeats
are answered all the same, and the write is tried again until it works (S28).
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from rdzv_server.core.events import Effect, Persist
from rdzv_server.storage.base import RecordStore, StorageError

RETRY_S = 1.0
"""After a commit failed: space may have come back."""

CLOSE_S = 2.0
"""At the end, for what is not stored yet."""


class Ledger:
    """Effects on their way, in order.

    Args:
        store: where records go; None: nothing is stored, and nothing ever waits.
        execute: does effects.
        trouble: told why nothing can be stored, and with an empty text that it can be again.
        took: told how long each commit took, in seconds; by the thread.
    """

    def __init__(
        self,
        store: RecordStore | None,
        execute: Callable[[list[Effect]], None],
        trouble: Callable[[str], None],
        took: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._store = store
        self._execute = execute
        self._trouble, self._took = trouble, took
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = False
        if store is not None:
            # A daemon: a disk that hangs must not hold up the end of the process.
            threading.Thread(target=self._work, name="rdzv-store", daemon=True).start()
        self._changes: dict[bytes, bytes | None] = {}
        """Not being written yet."""
        self._waiting: deque[tuple[int, list[Effect]]] = deque()
        """With the commit that each of them waits for."""
        self._next = 1
        """Number of the commit that the changes go into."""
        self._busy = False
        self._failed = False
        self.clean = True
        """Everything that was told is safe, and nothing waits."""
        self._idle = asyncio.Event()
        self._idle.set()

    def take(self, effects: list[Effect]) -> None:
        """Do effects now, or as soon as what they rest on is stored; never, if that cannot be any more."""
        if self._closed:
            if not (effects and isinstance(effects[0], Persist)):
                self._execute(effects)
        elif self._store is not None and effects and isinstance(effects[0], Persist):
            self._changes.update(effects[0].changes)
            self._waiting.append((self._next, effects[1:]))
            self._start()
        elif self.clean:
            self._execute(effects)
        else:
            self._waiting.append((self._next if self._changes else self._next - 1, effects))

    async def close(self) -> None:
        """Store what is left, within a limit; nothing is stored after that."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), CLOSE_S)
        self._closed = True
        if self._store is None:
            return
        let_go = asyncio.Event()
        store = self._store

        def close() -> None:
            store.close()
            self._call(let_go.set)

        self._jobs.put(close)
        self._jobs.put(None)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(let_go.wait(), CLOSE_S)

    def abandon(self) -> None:
        """Store and tell nothing any more, whatever waits: another server leads."""
        self._closed = True
        self._changes.clear()
        self._waiting.clear()
        self._jobs.put(None)

    # --- inside -------------------------------------------------------------------------------

    def _work(self) -> None:
        """The thread."""
        while (job := self._jobs.get()) is not None:
            job()

    def _call(self, action: Callable[[], object]) -> None:
        """From the thread: in the loop, if there still is one."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action)

    def _start(self) -> None:
        if not self._busy:
            self._busy = True
            self.clean = False
            self._idle.clear()
            self._loop.call_soon(self._commit)  # with what else comes in this turn

    def _commit(self) -> None:
        if self._closed:
            return
        changes, self._changes = self._changes, {}
        number, self._next = self._next, self._next + 1
        self._jobs.put(lambda: self._write(number, changes))

    def _write(self, number: int, changes: dict[bytes, bytes | None]) -> None:
        """In the thread."""
        assert self._store is not None, "nothing to write to"
        began = time.perf_counter()
        try:
            self._store.commit(changes)
        except Exception as error:  # noqa: BLE001 (whatever it is, nothing of it was stored)
            failure = error
            self._call(lambda: self._not_done(number, changes, failure))
        else:
            self._took(time.perf_counter() - began)
            self._call(lambda: self._done(number))

    def _done(self, number: int) -> None:
        if self._closed:
            return
        if self._failed:
            self._failed = False
            self._trouble("")
        self._busy = False
        try:
            self._release(number)
        finally:
            self._next_one()

    def _next_one(self) -> None:
        if self._changes:
            self._start()
        elif not self._busy:
            self.clean = not self._waiting  # some still do if an effect raised
            self._idle.set()
            if self._store is not None:
                self._jobs.put(self._store.tidy)

    def _not_done(self, number: int, changes: dict[bytes, bytes | None], error: Exception) -> None:
        """None of it is safe: it goes into the next commit, under what came since."""
        if self._closed:
            return
        self._changes = {**changes, **self._changes}
        self._waiting = deque((max(at, number + 1), effects) for at, effects in self._waiting)
        text = str(error) if isinstance(error, StorageError) else repr(error)
        if not self._failed:
            self._failed = True
            self._trouble(text)
        self._loop.call_later(RETRY_S, self._commit)

    def _release(self, number: int) -> None:
        while self._waiting and self._waiting[0][0] <= number:
            self._execute(self._waiting.popleft()[1])
