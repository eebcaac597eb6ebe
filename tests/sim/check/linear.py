"""Is there an order of a key's operations that explains all answers? (Wing and Gong's search, with Lowe's
memory of what was tried.)

An operation takes effect at one instant between its start and its end. One whose outcome is not known may
take effect at any time after its start, or never. Keys are independent of each other, so each one is
searched alone (P-compositionality).
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.sim.check.entries import Entry
from tests.sim.check.kv_model import NOT_THERE, State, step

TRIED_MAX = 2_000_000
"""Remembered configurations of one key: about 1 GiB. Beyond that it is undecided."""

LOOK_EVERY = 512
"""Steps between two looks at the clock."""


@dataclass(frozen=True)
class Answer:
    """Of a search. `linear` None: not decided. `stuck` are the operations none of which could come next,
    where the longest explanation ended."""

    linear: bool | None
    stuck: tuple[Entry, ...] = ()


_Place = tuple[int, int, int, State]
"""All of `certain` before an index, those behind it as bits, unknown ones as bits, and the state."""


class Search:
    """Over the operations of one key.

    Args:
        ops: of one key, in any order.
        patience_s: after which it is undecided.
    """

    def __init__(self, ops: Sequence[Entry], patience_s: float) -> None:
        done = [op for op in ops if op.known and op.ok is not False]
        self._certain = sorted(done, key=lambda op: op.start_s)
        self._unknown = sorted(
            (op for op in ops if not op.known and op.op != "get"), key=lambda op: op.start_s
        )
        self._alike = [self._effect(op) for op in self._unknown]
        self._deadline = time.monotonic() + patience_s
        self._best = -1
        self._stuck: tuple[Entry, ...] = ()

    def run(self) -> Answer:
        """Search."""
        begin: _Place = (0, 0, 0, NOT_THERE)
        tried = {begin}
        path = [self._next(begin)]
        steps = 0
        while path:
            found = next(path[-1], None)
            steps += 1
            if steps % LOOK_EVERY == 0 and time.monotonic() > self._deadline:
                return Answer(None, self._stuck)
            if found is None:
                path.pop()
            elif found[0] == len(self._certain):
                return Answer(True)
            elif found not in tried:
                if len(tried) >= TRIED_MAX:
                    return Answer(None, self._stuck)
                tried.add(found)
                path.append(self._next(found))
        return Answer(not self._certain, self._stuck)

    def _next(self, place: _Place) -> Iterator[_Place]:
        """Where one more operation leads, those whose outcome is known first."""
        low, bits, used, state = place
        candidates, horizon = self._candidates(low, bits)
        count = low + bits.bit_count()
        if count > self._best:
            self._best, self._stuck = count, tuple(self._certain[i] for i in candidates)
        for index in candidates:
            after = step(state, self._certain[index])
            if after is None:
                continue
            new_low, new_bits = low, bits | 1 << (index - low)
            while new_bits & 1:
                new_low, new_bits = new_low + 1, new_bits >> 1
            yield new_low, new_bits, used, after
        seen: set[tuple[object, ...]] = set()
        for number, op in enumerate(self._unknown):
            if op.start_s > horizon:
                break
            # Of those that do the same the earliest can stand wherever a later one could.
            if used >> number & 1 or self._alike[number] in seen:
                continue
            seen.add(self._alike[number])
            after = step(state, op)
            if after is not None and after != state:
                yield low, bits, used | 1 << number, after

    def _candidates(self, low: int, bits: int) -> tuple[list[int], float]:
        """Operations that may come next: those that began before any other of the rest had ended."""
        horizon = float("inf")
        found: list[int] = []
        for index in range(low, len(self._certain)):
            op = self._certain[index]
            if op.start_s > horizon:
                break
            if not bits >> (index - low) & 1:
                found.append(index)
                horizon = min(horizon, op.end_s)
        return [i for i in found if self._certain[i].start_s <= horizon], horizon

    @staticmethod
    def _effect(op: Entry) -> tuple[object, ...]:
        args = op.args
        return (
            op.op,
            args.get("value"),
            args.get("delta"),
            args.get("expected"),
            args.get("revision"),
        )


def search(ops: Sequence[Entry], patience_s: float = 60.0) -> Answer:
    """Whether the operations of one key are linearizable."""
    return Search(ops, patience_s).run()
