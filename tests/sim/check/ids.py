"""S18 to S20: a unique id belongs to one attempt of one communicator of one generation."""

from collections import defaultdict
from collections.abc import Sequence

from tests.sim.check.entries import Entry
from tests.sim.check.verdict import Verdict

Slot = tuple[str, int, int, str, int]
"""Run, epoch, generation, group, attempt."""

Id = tuple[int | None, str]
"""Epoch and fingerprint: a server that lost its memory knows of none."""


NOT_TAKEN = ("DUPLICATE_ID", "ID_MISMATCH", "UNROUTABLE_ROOT")
"""Refusals of the id that was offered. Any other failure may come after it was taken and handed out: of a server that
was killed in between its minter learns only, from the next one, that the communicator failed."""


def check(verdict: Verdict, ops: Sequence[Entry]) -> None:
    """Judge the ids that were handed out."""
    had = [op for op in ops if op.known and op.ok and op.result.get("id") is not None]
    minted: dict[Id, list[Entry]] = defaultdict(list)
    for op in ops:
        if op.args.get("minted") is not None and op.result.get("error") not in NOT_TAKEN:
            minted[op.epoch, op.args["minted"]].append(op)
    first: dict[Id, Entry] = {}
    by_slot: dict[Slot, list[Entry]] = defaultdict(list)
    for op in had:
        value: Id = op.epoch, op.result["id"]
        other = first.setdefault(value, op)
        if _slot(op) != _slot(other):
            verdict.broken("S18", f"one id for {_slot(other)} and {_slot(op)}", (other, op))
        if minted:
            _source(verdict, op, minted.get(value, []))
        by_slot[_slot(op)].append(op)
    for slot, own in by_slot.items():
        _slot_is_good(verdict, slot, own)


def _source(verdict: Verdict, op: Entry, minted: list[Entry]) -> None:
    """Somebody made that id for this communicator, before."""
    here = [one for one in minted if (one.scope, one.key) == (op.scope, op.key)]
    if not minted:
        verdict.broken("S19", "an id that nobody minted", (op,))
    elif not here:
        verdict.broken("S20", "an id that was minted elsewhere", (*minted, op))
    elif all(one.start_s > op.end_s for one in here):
        verdict.broken("S20", "an id from before it was minted", (*here, op))


def _slot_is_good(verdict: Verdict, slot: Slot, own: list[Entry]) -> None:
    """The same bytes for all, and each rank once."""
    holder: dict[int, Entry] = {}
    for op in own:
        if op.result["id"] != own[0].result["id"]:
            verdict.broken("S20", f"two ids for {slot}", (own[0], op))
        if op.rank is None:
            continue
        other = holder.setdefault(op.rank, op)
        if other is not op:
            verdict.broken("S18", f"rank {op.rank} used the id of {slot} twice", (other, op))


def _slot(op: Entry) -> Slot:
    return *op.scope, op.key, op.result.get("attempt", 0)
