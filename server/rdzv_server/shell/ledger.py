"""Nothing is told before it is safe: effects wait until what they rest on is stored (S26).

Commits are made by one thread, one after the other; what comes up meanwhile goes into the next one, so that a
busy server makes few and large ones. While the store cannot be written, nothing that rests on it is said; heartbeats
are answered all the same, and the write is tried again until it works (S28).
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rdzv-store")
        self._changes: dict[bytes, bytes | None] = {}
        """Not being written yet."""
        self._waiting: deque[tuple[int, list[Effect]]] = deque()
        """With the commit that each of them waits for."""
        self._next = 1
        """Number of the commit that the changes go into."""
        self._busy = False
        self._failed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def clean(self) -> bool:
        """Everything that was told is safe, and nothing waits."""
        return not self._busy and not self._changes and not self._waiting

    def take(self, effects: list[Effect]) -> None:
        """Do effects now, or as soon as what they rest on is stored."""
        if self._store is not None and effects and isinstance(effects[0], Persist):
            self._changes.update(effects[0].changes)
            self._waiting.append((self._next, effects[1:]))
            self._start()
        elif self.clean:
            self._execute(effects)
        else:
            self._waiting.append((self._next if self._changes else self._next - 1, effects))

    async def close(self) -> None:
        """Store what is left, within a limit."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), CLOSE_S)
        if self._store is not None:
            await self._loop.run_in_executor(self._thread, self._store.close)
        self._thread.shutdown(wait=False)

    # --- inside -------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self._loop.call_soon(self._commit)  # with what else comes in this turn

    def _commit(self) -> None:
        changes, self._changes = self._changes, {}
        number, self._next = self._next, self._next + 1
        done = self._loop.run_in_executor(self._thread, self._write, changes)
        done.add_done_callback(lambda future: self._done(number, changes, future))

    def _write(self, changes: dict[bytes, bytes | None]) -> None:
        assert self._store is not None, "nothing to write to"
        began = time.perf_counter()
        self._store.commit(changes)
        self._took(time.perf_counter() - began)

    def _done(
        self, number: int, changes: dict[bytes, bytes | None], future: "asyncio.Future[None]"
    ) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._not_done(number, changes, error)
            return
        if self._failed:
            self._failed = False
            self._trouble("")
        self._busy = False
        self._release(number)
        if self._changes:
            self._start()
        elif not self._busy:
            self._idle.set()
            if self._store is not None:
                self._thread.submit(self._store.tidy)

    def _not_done(
        self, number: int, changes: dict[bytes, bytes | None], error: BaseException
    ) -> None:
        """None of it is safe: it goes into the next commit, under what came since."""
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
