"""S13 to S17: barriers of nodes, in time that grows with their length only.

What is checked of a barrier `(generation, name)`:

- a round is released only after every rank that takes part has begun to arrive for it, and a rank is counted
  once (S13);
- all who are told how a round ended are told the same, payloads included (S14, S17);
- a member's calls and the rounds are in step (S15): its n-th call is about round n as long as it knows of
  every call before how it ended, and at most n otherwise;
- nobody who does not take part gets a release (S16).

All ranks of the world take part, or those that the calls name.
"""

from collections import defaultdict
from collections.abc import Sequence

from tests.sim.check.entries import Entry
from tests.sim.check.verdict import Verdict

DECIDED = frozenset({"BARRIER_TIMEOUT", "BARRIER_BROKEN", "BARRIER_MISMATCH"})
"""Errors that are the end of a round, for all its members alike. Others are of the caller only."""


def check(verdict: Verdict, ops: Sequence[Entry]) -> None:
    """Judge all barriers."""
    by_place: dict[tuple[object, str], list[Entry]] = defaultdict(list)
    for op in ops:
        by_place[op.scope, op.key].append(op)
    for own in by_place.values():
        _Barrier(verdict, own).check()


class _Barrier:
    """One barrier of one generation."""

    def __init__(self, verdict: Verdict, ops: list[Entry]) -> None:
        self._verdict = verdict
        self._by_rank: dict[int, list[Entry]] = defaultdict(list)
        for op in sorted(ops, key=lambda op: op.start_s):
            if op.rank is not None:
                self._by_rank[op.rank].append(op)
        self._where = f"barrier {ops[0].key!r} of {ops[0].scope}"
        self._world = range(max((op.world or 0 for op in ops), default=0))
        self._came: dict[int, dict[int, Entry]] = defaultdict(dict)
        """For each round the call of each rank that is known to be about it."""

    def check(self) -> None:
        for rank, own in self._by_rank.items():
            self._in_step(rank, own)
        for number, came in sorted(self._came.items()):
            self._alike(number, came)
            self._after_all(number, came)

    def _in_step(self, rank: int, own: list[Entry]) -> None:
        """Give every call its round, and hold what is told against it."""
        low, high = 0, 0
        """The last round this rank has had: at least, and at most."""
        for op in own:
            if op.args.get("round") is not None:  # it asked for one: an old one may be told again
                continue
            if not op.known:
                high += 1
                continue
            if op.ok:
                if op.round is None:
                    self._broken("S15", "a release without a round", op)
                elif not low < op.round <= high + 1:
                    said = f"round {op.round} is told where {low + 1} to {high + 1} may be"
                    self._broken("S15", said, op)
                    self._came[op.round].setdefault(rank, op)
                    low = high = max(low, op.round)
                else:
                    low = high = op.round
                    self._came[op.round][rank] = op
                if op.world is not None and not rank < op.world:
                    self._broken("S16", f"rank {rank} in a world of {op.world}", op)
                if rank not in self._members(op):
                    self._broken("S16", f"rank {rank} is none of those that take part", op)
            elif op.result.get("error") in DECIDED:
                low, high = self._failed(low, high, op)
                if low == high:
                    self._came[low][rank] = op

    def _failed(self, low: int, high: int, op: Entry) -> tuple[int, int]:
        """The last round that a rank has had, at least and at most, after one of them failed. Once somebody can not
        come any more every call is a round that is broken at once, and who calls later does not hear of them all."""
        if op.round is None:
            return low + 1, high + 1
        if op.round <= low or (op.round > high + 1 and op.result.get("error") != "BARRIER_BROKEN"):
            said = f"the failure of round {op.round} is told where {low + 1} to {high + 1} may be"
            self._broken("S15", said, op)
        return max(low, op.round), max(low, op.round)

    def _members(self, op: Entry) -> Sequence[int]:
        """Ranks that take part, in the order of the payloads."""
        return sorted(op.args.get("members") or self._world)

    def _alike(self, number: int, came: dict[int, Entry]) -> None:
        """One decision."""
        told = list(came.values())
        first = told[0]
        for op in told[1:]:
            if _decision(op) != _decision(first):
                self._broken("S14", f"round {number} ended in two ways", first, op)
        payloads = first.result.get("payloads") if first.ok else None
        if not payloads:
            return
        given = dict(zip(self._members(first), payloads, strict=False))
        for rank, op in came.items():
            if rank in given and given[rank] != op.args.get("payload"):
                self._broken("S14", f"round {number} has another payload of rank {rank}", op, first)

    def _after_all(self, number: int, came: dict[int, Entry]) -> None:
        """Released after all have come: each rank has a call that is about this round, or may be."""
        released = [op for op in came.values() if op.ok]
        if not released:
            return
        first = min(released, key=lambda op: op.end_s)
        for rank in self._members(first):
            call = came.get(rank) or self._may_be(rank, number)
            if call is None:
                said = f"round {number} was released although rank {rank} never came"
                self._broken("S13", said, first)
            elif call.start_s > first.end_s:
                said = f"round {number} was released before rank {rank} came"
                self._broken("S13", said, first, call)

    def _may_be(self, rank: int, number: int) -> Entry | None:
        """A call of which it is not known how it ended, and that may be about this round."""
        own = self._by_rank.get(rank, [])
        decided = [r for r, came in self._came.items() if rank in came and r < number]
        after = self._came[max(decided)][rank].start_s if decided else float("-inf")
        for op in own:
            if op.start_s > after and (not op.known or _lost_with_its_caller(op)):
                return op
        return None

    def _broken(self, rule: str, what: str, *ops: Entry) -> None:
        self._verdict.broken(rule, f"{self._where}: {what}", ops)


def _lost_with_its_caller(op: Entry) -> bool:
    """It failed for a reason of its own, which says nothing of whether it had arrived."""
    return op.ok is False and op.result.get("error") not in DECIDED


def _decision(op: Entry) -> tuple[object, ...]:
    if op.ok:
        return True, repr(op.result.get("payloads"))
    return False, op.result.get("error")
