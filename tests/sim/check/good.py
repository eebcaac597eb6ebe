"""Histories that are good by construction: made by one imagined server that does everything at one instant.

Clients overlap, some are cut off in the middle of an operation, generations follow each other with changing
members; there are keys of generations and of the run, barriers with payloads and ids. Every value that is
written is unlike every other one, which is what lets `mutants` be sure.
"""

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

from tests.sim.check.entries import Entry, Scope

RUN = "good"
EPOCH = 7
GENERATION_S = 5.0
WORK_S = 4.0
ROUNDS = 5

VALUES = ("v0", "v1", "kept")
COUNTER = "n0"
"""Only added to. `kept` is never deleted."""


class World:
    """Makes one history.

    Args:
        seed: of all choices.
        clients: of each generation.
        generations: one after the other.
        ops: of each client on keys, in each generation.
    """

    def __init__(self, seed: int, clients: int = 4, generations: int = 3, ops: int = 12) -> None:
        self._rng = random.Random(seed)
        self._tokens = (f"<{n}>" for n in itertools.count(1))
        self._names = (f"c{n}" for n in itertools.count(1))
        self._clients, self._generations, self._ops = clients, generations, ops
        self._made: list[Entry] = []

    def history(self) -> list[Entry]:
        """All operations, in the order in which they began."""
        members = [next(self._names) for _ in range(self._clients)]
        pending: list[tuple[float, Entry]] = []
        for number in range(1, self._generations + 1):
            begin = number * GENERATION_S
            self._rng.shuffle(members)
            for rank, client in enumerate(members):
                place = {"generation": number, "rank": rank, "world": len(members)}
                self._joins(client, begin, place)
                pending += self._on_keys(client, begin, place)
            self._barriers(members, begin, number)
            self._ids(members, begin, number)
            members[self._rng.randrange(len(members))] = next(self._names)
        _serve(pending)
        return sorted(self._made, key=lambda op: op.start_s)

    def _entry(
        self, client: str, op: str, key: str, begin: float, end: float, **more: Any
    ) -> Entry:
        made = Entry(
            client=client, run=RUN, op=op, key=key, args=more.pop("args", {}), start_s=begin,
            end_s=end, ok=True, result=more.pop("result", {}), epoch=EPOCH, **more,
        )  # fmt: skip
        self._made.append(made)
        return made

    def _joins(self, client: str, begin: float, place: dict[str, Any]) -> None:
        begun, told = begin - self._rng.uniform(0, 0.5), begin + self._rng.uniform(0, 0.1)
        digest = f"table of {place['generation']}"
        self._entry(client, "join", "", begun, told, result={"digest": digest}, **place)

    def _on_keys(
        self, client: str, begin: float, place: dict[str, Any]
    ) -> Iterator[tuple[float, Entry]]:
        rng, step_s = self._rng, WORK_S / self._ops
        cut_off = rng.randrange(self._ops) if rng.random() < 0.2 else None
        for index in range(self._ops):
            started = begin + 0.2 + index * step_s
            end = started + rng.uniform(0.1, 0.99) * step_s
            at = rng.uniform(started, end)
            scope = place if rng.random() < 0.5 else {}
            op, key, args = self._choice()
            made = self._entry(client, op, key, started, end, args=args, **scope)
            if index == cut_off:
                made.end_s, made.ok = math.inf, None
                at = rng.choice((math.inf, rng.uniform(started, begin + WORK_S)))
            yield at, made
            if index == cut_off:
                return

    def _choice(self) -> tuple[str, str, dict[str, Any]]:
        rng = self._rng
        if rng.random() < 0.25:
            return rng.choice(
                (("add", COUNTER, {"delta": rng.randint(1, 3)}), ("get", COUNTER, {}))
            )
        key = rng.choice(VALUES)
        op = rng.choice(("put", "get", "get", "append", "cas", "delete"))
        if op == "delete" and key == "kept":
            op = "get"
        if op in ("put", "append", "cas"):
            return op, key, {"value": next(self._tokens)}
        return op, key, {}

    def _barriers(self, members: list[str], begin: float, number: int) -> None:
        rng = self._rng
        failing = rng.randrange(1, ROUNDS)
        for round_ in range(1, ROUNDS + 1):
            base = begin + round_ * WORK_S / (ROUNDS + 1)
            came = [base + rng.uniform(0, 0.2) for _ in members]
            payloads = [next(self._tokens) for _ in members]
            for rank, client in enumerate(members):
                end = max(came) + rng.uniform(0.001, 0.1)
                made = self._entry(
                    client, "barrier", "b", came[rank], end, args={"payload": payloads[rank]},
                    result={"payloads": payloads}, generation=number, rank=rank,
                    world=len(members), round=round_,
                )  # fmt: skip
                if round_ == failing:
                    made.ok, made.round, made.result = False, None, {"error": "BARRIER_TIMEOUT"}

    def _ids(self, members: list[str], begin: float, number: int) -> None:
        """In the second attempt the server is killed when all have the id but its minter, which learns of a failure."""
        rng = self._rng
        for attempt in range(2):
            base = begin + 0.5 + attempt * 1.5
            value = f"id {next(self._tokens)}"
            for rank, client in enumerate(members):
                started = base + rng.uniform(0, 0.2)
                made = self._entry(
                    client, "id", "dp", started, base + 0.3 + rng.uniform(0, 0.1),
                    args={"minted": value} if rank == 0 else {},
                    result={"id": value, "attempt": attempt}, generation=number, rank=rank,
                    world=len(members),
                )  # fmt: skip
                if attempt == 1 and rank == 0:
                    made.ok, made.result = False, {"error": "ID_FAILED"}


def _serve(pending: list[tuple[float, Entry]]) -> None:
    """Do the operations on keys at their instants, and answer them."""
    spaces: dict[Scope, dict[str, tuple[str, int]]] = {}
    revisions: dict[Scope, int] = {}
    for at, op in sorted(pending, key=lambda pair: pair[0]):
        if at == math.inf:
            continue
        space = spaces.setdefault(op.scope, {})
        answer = _do(op, space, revisions)
        if op.known:
            op.result = answer


def _do(
    op: Entry, space: dict[str, tuple[str, int]], revisions: dict[Scope, int]
) -> dict[str, Any]:
    value, revision = space.get(op.key, (None, 0))

    def change(new: str | None) -> int:
        number = revisions[op.scope] = revisions.get(op.scope, 0) + 1
        if new is None:
            del space[op.key]
        else:
            space[op.key] = new, number
        return number

    match op.op:
        case "get":
            return {"value": value, "revision": revision}
        case "put":
            return {"revision": change(op.args["value"])}
        case "append":
            joined = (value or "") + op.args["value"]
            return {"length": len(joined), "revision": change(joined)}
        case "add":
            total = int(value or 0) + op.args["delta"]
            return {"value": total, "revision": change(str(total))}
        case "delete" if value is None:
            return {"deleted": 0, "revision": revisions.get(op.scope, 0)}
        case "delete":
            return {"deleted": 1, "revision": change(None)}
        case _:  # a compare that sometimes meets what is there
            op.args["expected"] = value if revision % 3 else f"not {op.args['value']}"
            if op.args["expected"] != value:
                return {"swapped": False, "value": value, "revision": revision}
            new = change(op.args["value"])
            return {"swapped": True, "value": op.args["value"], "revision": new}


def history(seed: int, **size: int) -> list[Entry]:
    """A good history."""
    return World(seed, **size).history()
