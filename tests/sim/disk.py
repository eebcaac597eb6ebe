"""The store of a simulated server, and the ledger in front of it: what `rdzv_server.shell.ledger` does, on the
virtual clock. Commits take time, fail while the disk is full, and a crash finds one of them half done."""

import random
from collections import deque
from collections.abc import Callable

from rdzv_server.core.events import Effect, Persist
from rdzv_server.shell.ledger import RETRY_S
from tests.lab import save
from tests.sim.net import Clock


class Disk:
    """What outlives a server process.

    Args:
        rng: how long commits take, and which of them a crash catches.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.stored: dict[bytes, bytes] = {}
        self.full_until = 0.0

    def commit_s(self) -> float:
        """How long the next commit takes; now and then the disk is slow."""
        return self.rng.expovariate(500) if self.rng.random() < 0.95 else 0.3


class SimLedger:
    """Effects of one server process on their way. Without a disk nothing ever waits."""

    def __init__(
        self,
        clock: Clock,
        disk: Disk | None,
        execute: Callable[[list[Effect]], None],
        trouble: Callable[[str], None],
    ) -> None:
        self._clock, self._disk = clock, disk
        self._execute, self._trouble = execute, trouble
        self._changes: dict[bytes, bytes | None] = {}
        """Not being written yet."""
        self._writing: dict[bytes, bytes | None] | None = None
        self._waiting: deque[tuple[int, list[Effect]]] = deque()
        self._next = 1
        self._failed = self._dead = False

    @property
    def clean(self) -> bool:
        """Everything that was told is safe, and nothing waits."""
        return self._writing is None and not self._changes and not self._waiting

    def take(self, effects: list[Effect]) -> None:
        """Do effects now, or as soon as what they rest on is stored."""
        if effects and isinstance(effects[0], Persist):
            assert self._disk is not None, "nothing is stored"
            self._changes.update(effects[0].changes)
            self._waiting.append((self._next, effects[1:]))
            self._start()
        elif self.clean:
            self._execute(effects)
        else:
            self._waiting.append((self._next if self._changes else self._next - 1, effects))

    def crash(self) -> None:
        """The process dies. What was not stored is gone; the commit that was under way may have been made,
        though nobody was told."""
        self._dead = True
        disk, writing = self._disk, self._writing
        if disk is None or writing is None or self._failed:
            return
        if disk.rng.random() < 0.5:
            save(disk.stored, writing)

    def _start(self) -> None:
        if self._writing is None:
            self._writing, self._changes = self._changes, {}
            number, self._next = self._next, self._next + 1
            assert self._disk is not None, "nothing is stored"
            self._clock.after(self._disk.commit_s(), lambda: self._written(number))

    def _written(self, number: int) -> None:
        if self._dead:
            return
        disk, writing = self._disk, self._writing
        assert disk is not None, "nothing is stored"
        assert writing is not None, "nothing is being written"
        if self._clock.now < disk.full_until:
            self._changes = {**writing, **self._changes}
            self._waiting = deque((max(at, number + 1), effects) for at, effects in self._waiting)
            if not self._failed:
                self._failed = True
                self._trouble("the disk is full")
            self._clock.after(RETRY_S, self._again)
            return
        save(disk.stored, writing)
        if self._failed:
            self._failed = False
            self._trouble("")
        while self._waiting and self._waiting[0][0] <= number:
            self._execute(self._waiting.popleft()[1])
        self._writing = None
        if self._changes:
            self._start()

    def _again(self) -> None:
        if not self._dead:
            self._writing = None
            self._start()
