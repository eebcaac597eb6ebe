"""Is there an order of a key's operations that explains all answers? (Wing and Gong's search, with Lowe's
memory of what was tried.)

An operation takes effect at one instant between its start and its end. One whose outcome is not known may
take effect at any time after its start, or never. Keys are independent of each other, so each one is
searched alone (P-compositionality).
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from tests.sim.check.entries import Entry
from tests.sim.check.kv_model import NOT_THERE, State, step

TRIED_MAX = 2_000_000
"""Remembered configurations of one key: about 1 GiB. Beyond that, or a smaller limit that was asked for, it is undecided."""

LOOK_EVERY = 512
"""Steps between two looks at the clock."""


@dataclass(frozen=True)
class Answer:
    """Of a search. `linear` None: not decided. `stuck` are the operations none of which could come next,
    where the longest explanation ended."""

    linear: bool | None
    stuck: tuple[Entry, ...] = ()


_Turn = tuple[int, int]
_Place = tuple[int, int, int, State]
"""All of `certain` before an index, those behind it as bits, unknown ones as bits, and the state."""


class Search:
    """Over the operations of one key.

    Args:
        ops: of one key, in any order.
        patience_s: after which it is undecided.
        tried_max: the same in configurations, which are as many on every machine.
    """

    def __init__(self, ops: Sequence[Entry], patience_s: float, tried_max: int = TRIED_MAX) -> None:
        self._tried_max = tried_max
        done = [op for op in ops if op.known and op.ok is not False]
        self._certain = sorted(done, key=lambda op: op.start_s)
        self._unknown = sorted(
            (op for op in ops if not op.known and op.op != "get"), key=lambda op: op.start_s
        )
        self._alike = [self._effect(op) for op in self._unknown]
        self._turns = [_turn(op) for op in self._certain]
        self._in_turn = sorted((turn, i) for i, turn in enumerate(self._turns) if turn is not None)
        self._first: list[int] = []
        """For each place in `_certain`: how many of `_in_turn` go before the first that stands there or later."""
        for number, (_, index) in enumerate(self._in_turn):
            self._first += [number] * (index + 1 - len(self._first))
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
                if len(tried) >= self._tried_max:
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
        changes: list[_Place] = []
        due = self._due(low, bits)
        for index in candidates:
            if self._turns[index] not in (None, due):
                continue
            after = step(state, self._certain[index])
            if after is None:
                continue
            new_low, new_bits = low, bits | 1 << (index - low)
            while new_bits & 1:
                new_low, new_bits = new_low + 1, new_bits >> 1
            if after == state and _looks(self._certain[index]):
                # It fits here, and makes no difference to any of the others: if there is an order at
                # all, then there is one in which it comes now. Many looks that wait for each other
                # would otherwise be tried in every order.
                yield new_low, new_bits, used, after
                return
            changes.append((new_low, new_bits, used, after))
        yield from changes
        seen: set[tuple[object, ...]] = set()
        begun = [number for number, op in enumerate(self._unknown) if op.start_s <= horizon]
        if len(begun) > 1:
            begun = self._likely_first(begun, low, bits, state[0] or "")
        for number in begun:
            op = self._unknown[number]
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

    def _due(self, low: int, bits: int) -> _Turn | None:
        """Whose turn it is of those that tell the key's revision."""
        return next((turn for turn, _ in self._to_come(low, bits)), None)

    def _to_come(self, low: int, bits: int) -> Iterator[tuple[_Turn, int]]:
        """Of those that tell the key's revision: who is left, in turn."""
        if low >= len(self._first):
            return
        for number in range(self._first[low], len(self._in_turn)):
            turn, index = self._in_turn[number]
            if index >= low and not bits >> (index - low) & 1:
                yield turn, index

    def _likely_first(self, begun: list[int], low: int, bits: int, here: str) -> list[int]:
        """Unknown operations; those before the others whose value is in the next one that is told, behind the one that is
        here, and as they are there. This only makes the search of a good history short: all are tried if need be."""
        told = (self._certain[index].result.get("value") for _, index in self._to_come(low, bits))
        next_value = next((value for value in told if isinstance(value, str)), "").removeprefix(
            here
        )

        def place(number: int) -> float:
            value = self._unknown[number].args.get("value")
            at = next_value.find(value) if isinstance(value, str) else -1
            return at if at >= 0 else float("inf")

        return sorted(begun, key=place)

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


def _turn(op: Entry) -> _Turn | None:
    """Where its answer puts it among the others: a key's revision only grows, and a look comes after the change whose
    revision it tells. None: it may be anywhere."""
    if tells_change(op):
        return op.result["revision"], 0
    found = op.result.get("value") is not None and op.result.get("revision") is not None
    return (op.result["revision"], 1) if found and op.op in ("get", "cas") else None


def tells_change(op: Entry) -> bool:
    """It certainly changed something, and tells the number of that change."""
    if op.op == "get" or not op.known or not op.ok or op.result.get("revision") is None:
        return False
    if op.op == "cas":
        return bool(op.result.get("swapped"))
    return op.op != "delete" or bool(op.result.get("deleted"))


def _looks(op: Entry) -> bool:
    """It changed nothing, and says so."""
    match op.op:
        case "get":
            return True
        case "cas":
            return op.result.get("swapped") is False
        case "delete":
            return op.result.get("deleted") == 0
        case _:
            return False


def search(ops: Sequence[Entry], patience_s: float = 60.0, tried_max: int = TRIED_MAX) -> Answer:
    """Whether the operations of one key are linearizable."""
    done = [op for op in ops if op.known and op.ok is not False]
    # Each took effect at its start, or each at its end: mostly one of these explains them all, without a search.
    if _explains(sorted(done, key=_start)) or _explains(sorted(done, key=_end)):
        return Answer(True)
    return Search(ops, patience_s, tried_max).run()


_start, _end = attrgetter("start_s"), attrgetter("end_s")


def _explains(order: Sequence[Entry]) -> bool:
    state = NOT_THERE
    for op in order:
        after = step(state, op)
        if after is None:
            return False
        state = after
    return True
