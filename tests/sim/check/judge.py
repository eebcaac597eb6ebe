"""All checkers over one history."""

from collections.abc import Iterable

from tests.sim.check import ids, keys, rounds, views
from tests.sim.check.entries import ON_KEYS, Entry
from tests.sim.check.linear import TRIED_MAX
from tests.sim.check.verdict import Verdict

PATIENCE_S = 60.0
"""For one key; a search that takes longer is undecided."""


def judge(
    entries: Iterable[Entry], patience_s: float = PATIENCE_S, tried_max: int = TRIED_MAX
) -> Verdict:
    """Judge a history.

    Args:
        entries: its operations.
        patience_s: for one key, after which it is undecided.
        tried_max: the same in configurations (see `linear`).
    """
    ops = list(entries)
    verdict = Verdict(ops=len(ops))
    keys.check(verdict, [op for op in ops if op.op in ON_KEYS], patience_s, tried_max)
    rounds.check(verdict, [op for op in ops if op.op == "barrier"])
    views.check(verdict, ops)
    ids.check(verdict, [op for op in ops if op.op == "id"])
    return verdict
