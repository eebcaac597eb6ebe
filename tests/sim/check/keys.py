"""S23: keys are linearizable, one by one; and their revisions count the changes of a space."""

from collections import defaultdict
from collections.abc import Sequence

from tests.sim.check.entries import Entry, Scope
from tests.sim.check.linear import search, tells_change
from tests.sim.check.verdict import Verdict


def check(verdict: Verdict, ops: Sequence[Entry], patience_s: float, tried_max: int) -> None:
    """Judge all operations on keys.

    Args:
        verdict: gets what is wrong.
        ops: of all runs.
        patience_s: for one key.
        tried_max: configurations, for one key.
    """
    by_space: dict[Scope, list[Entry]] = defaultdict(list)
    for op in ops:
        by_space[op.scope].append(op)
    for space in by_space.values():
        _revisions(verdict, space)
        by_key: dict[str, list[Entry]] = defaultdict(list)
        for op in space:
            by_key[op.key].append(op)
        for key, own in by_key.items():
            verdict.keys += 1
            answer = search(own, patience_s, tried_max)
            if answer.linear is None:
                verdict.undecided.append(f"{own[0].scope} {key!r}")
                verdict.undecided_ops += len(own)
            elif not answer.linear:
                what = f"key {key!r} of {own[0].scope}: no order of {len(own)} operations explains these"
                verdict.broken("S23", what, answer.stuck)


def _revisions(verdict: Verdict, space: list[Entry]) -> None:
    """Each change has a number of its own, and a change that began after another one had ended has a
    higher one. What a look tells is not newer than the changes that had begun."""
    told = [(op, op.result["revision"]) for op in space if tells_change(op)]
    seen: dict[int, Entry] = {}
    for op, revision in told:
        other = seen.setdefault(revision, op)
        if other is not op:
            verdict.broken(
                "S23", f"two changes of {op.scope} have revision {revision}", (other, op)
            )
    ended = sorted(told, key=lambda pair: pair[0].end_s)
    done, highest = 0, None
    for op, revision in sorted(told, key=lambda pair: pair[0].start_s):
        while done < len(ended) and ended[done][0].end_s < op.start_s:
            if highest is None or ended[done][1] > highest[1]:
                highest = ended[done]
            done += 1
        if highest is not None and revision <= highest[1]:
            what = f"revision {revision} came after {highest[1]} in {op.scope}"
            verdict.broken("S23", what, (highest[0], op))
