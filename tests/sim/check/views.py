"""S1 to S4, S8 and S10: who is in a generation, what all are told of it, and that it stays over when it is."""

from collections import defaultdict
from collections.abc import Sequence

from tests.sim.check.entries import Entry
from tests.sim.check.verdict import Verdict

Fence = tuple[int, int]


def check(verdict: Verdict, ops: Sequence[Entry]) -> None:
    """Judge the assignments, and every operation that names one."""
    by_run: dict[str, list[Entry]] = defaultdict(list)
    for op in ops:
        if op.generation is not None or op.op == "join":
            by_run[op.run].append(op)
    for own in by_run.values():
        joins = [op for op in own if op.op == "join" and op.known and op.ok]
        for op in joins:
            if op.fence is None or op.rank is None or op.world is None:
                verdict.broken("S4", "an assignment without fence, rank or world", (op,))
        joins = [op for op in joins if op.fence is not None and op.rank is not None and op.world]
        _agree(verdict, joins)
        _rise(verdict, joins)
        _same_place(verdict, joins, own)
        _over_stays_over(verdict, joins, own)


def _agree(verdict: Verdict, joins: list[Entry]) -> None:
    """One world for all of a generation, and each rank in it once."""
    first: dict[Fence, Entry] = {}
    holder: dict[tuple[Fence, int], Entry] = {}
    for op in joins:
        assert op.fence is not None and op.rank is not None and op.world is not None  # noqa: PT018
        other = first.setdefault(op.fence, op)
        if op.world != other.world:
            verdict.broken("S3", f"two sizes of the world of generation {op.fence}", (other, op))
        if op.result.get("digest") != other.result.get("digest"):
            verdict.broken("S3", f"two member tables of generation {op.fence}", (other, op))
        if not 0 <= op.rank < op.world:
            verdict.broken("S1", f"rank {op.rank} in a world of {op.world}", (op,))
        other = holder.setdefault((op.fence, op.rank), op)
        if op.client != other.client:
            verdict.broken("S1", f"rank {op.rank} of generation {op.fence} twice", (other, op))


def _rise(verdict: Verdict, joins: list[Entry]) -> None:
    """Nobody is told of an earlier generation after a later one: not the same client, and not one that
    asked after the later one had been told to anybody (S2)."""
    ended = sorted(joins, key=lambda op: op.end_s)
    done, newest = 0, None
    for op in sorted(joins, key=lambda op: op.start_s):
        while done < len(ended) and ended[done].end_s < op.start_s:
            if newest is None or _fence(ended[done]) > _fence(newest):
                newest = ended[done]
            done += 1
        if newest is not None and _fence(op) < _fence(newest):
            what = f"generation {op.fence} was told after {newest.fence}"
            verdict.broken("S2", what, (newest, op))
    last: dict[str, Entry] = {}
    for op in ended:
        before = last.get(op.client)
        if before is not None and _fence(op) < _fence(before):
            what = f"{op.client} fell from generation {before.fence} to {op.fence}"
            verdict.broken("S3", what, (before, op))
        last[op.client] = op


def _same_place(verdict: Verdict, joins: list[Entry], own: list[Entry]) -> None:
    """A client has one place in a generation, in all that it does there; a training process has its agent's."""
    place: dict[tuple[str, Fence], Entry] = {}
    for op in joins:
        assert op.fence is not None
        other = place.setdefault((op.client, op.fence), op)
        if (op.rank, op.world) != (other.rank, other.world):
            what = f"two places of {op.client} in generation {op.fence}"
            verdict.broken("S3", what, (other, op))
    for op in own:
        if op.op == "attach" and op.fence is not None:
            agent = place.get((op.args["agent"], op.fence))
            if agent is None or (op.rank, op.world) != (agent.rank, agent.world):
                what = f"{op.client} has another place in generation {op.fence} than its agent"
                verdict.broken("S4", what, (op,) if agent is None else (agent, op))
            place[op.client, op.fence] = op
    for op in own:
        if op.op in ("join", "attach") or op.fence is None or op.rank is None:
            continue
        joined = place.get((op.client, op.fence))
        if joined is None:
            what = f"{op.client} acts in generation {op.fence}, which it was never told of"
            verdict.broken("S4", what, (op,))
        elif op.rank != joined.rank or op.world not in (None, joined.world):
            verdict.broken("S4", f"{op.client} acts in another place", (joined, op))


def _over_stays_over(verdict: Verdict, joins: list[Entry], own: list[Entry]) -> None:
    """Nothing succeeds in a generation that was begun after a later one had been told to anybody."""
    ended = sorted(joins, key=lambda op: op.end_s)
    done, newest = 0, None
    inside = [op for op in own if op.op != "join" and op.fence is not None and op.ok and op.known]
    for op in sorted(inside, key=lambda op: op.start_s):
        while done < len(ended) and ended[done].end_s < op.start_s:
            if newest is None or _fence(ended[done]) > _fence(newest):
                newest = ended[done]
            done += 1
        if newest is not None and _fence(op) < _fence(newest):
            what = f"{op.op} succeeded in generation {op.fence} after {newest.fence} had formed"
            verdict.broken("S10", what, (newest, op))


def _fence(op: Entry) -> Fence:
    fence = op.fence
    assert fence is not None
    return fence
