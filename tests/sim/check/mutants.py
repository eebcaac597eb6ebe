"""Histories that are certainly wrong: a good one with one thing changed, and why that cannot have happened.

Each mutant rests on how `good` and the clients of `tests.chaos` make histories: values are unlike each other,
counters only grow, all that a client does is recorded, and there is one epoch. One that finds nothing to change in a
history gives None.
"""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.sim.check.entries import Entry
from tests.sim.check.good import COUNTER

History = list[Entry]
Mutant = Callable[[History, random.Random], History | None]

MUTANTS: dict[str, Mutant] = {}

_WRITES = ("put", "append", "cas")
NEVER = "<never>"
LATER_S = 0.0001


class NothingFoundError(Exception):
    """What a mutant needs is not in the history."""


def mutant(change: Mutant) -> Mutant:
    """Enter one."""
    MUTANTS[change.__name__] = change
    return change


def mutated(name: str, history: History, rng: random.Random) -> History | None:
    """A changed copy, or None if there is nothing to change."""
    try:
        return MUTANTS[name](copy.deepcopy(history), rng)
    except NothingFoundError:
        return None


# --- keys -------------------------------------------------------------------------------------


@mutant
def get_of_a_value_that_nobody_wrote(ops: History, rng: random.Random) -> History | None:
    return _with(ops, rng, "get", lambda op: op.result.update(value=NEVER))


@mutant
def get_of_a_value_that_was_replaced(ops: History, rng: random.Random) -> History | None:
    """It was written once, and changed by an operation that lies between."""
    for get in _some(ops, rng, "get"):
        own = _of_key(ops, get)
        for put in own:
            if put.op != "put" or put.ok is not True:
                continue
            between = [
                c for c in own if c is not put and _changes(c) and put.end_s < c.start_s
                and c.end_s < get.start_s
            ]  # fmt: skip
            if between:
                get.result = {"value": put.args["value"]}
                return ops
    return None


@mutant
def get_of_nothing_where_something_is(ops: History, rng: random.Random) -> History | None:
    """The key is never deleted, and a write had ended."""
    for get in _some(ops, rng, "get"):
        own = _of_key(ops, get)
        written = any(op.op == "put" and op.ok and op.end_s < get.start_s for op in own)
        if get.key == "kept" and written:
            get.result = {"value": None}
            return ops
    return None


@mutant
def get_before_its_write(ops: History, rng: random.Random) -> History | None:
    for put, get in _seen(ops, rng):
        if _whole(put, get):
            get.end_s = put.start_s - LATER_S
            get.start_s = get.end_s - LATER_S
            return ops
    return None


@mutant
def get_with_another_revision(ops: History, rng: random.Random) -> History | None:
    for put, get in _seen(ops, rng):
        if _whole(put, get):
            get.result["revision"] = put.result["revision"] - 1
            return ops
    return None


@mutant
def get_of_another_generation(ops: History, rng: random.Random) -> History | None:
    """S11: the value was written in one generation only."""
    for put, get in _seen(ops, rng):
        if put.generation is not None:
            get.generation, get.rank, get.world = put.generation + 1, None, None
            return ops
    return None


@mutant
def write_that_is_missing(ops: History, rng: random.Random) -> History | None:
    for put, _ in _seen(ops, rng):
        return [op for op in ops if op is not put]
    return None


@mutant
def write_that_failed_is_seen(ops: History, rng: random.Random) -> History | None:
    for put, _ in _seen(ops, rng):
        put.ok, put.result = False, {"error": "LIMIT_EXCEEDED"}
        return ops
    return None


@mutant
def add_told_more_than_all_together(ops: History, rng: random.Random) -> History | None:
    """The largest sum is that of all that was added, where all is known."""
    for add in _some(ops, rng, "add"):
        own = [op for op in _of_key(ops, add) if op.op == "add"]
        if all(op.known for op in own):
            last = max(own, key=lambda op: int(op.result["value"]))
            last.result["value"] += 1
            return ops
    return None


@mutant
def add_counted_once_for_two(ops: History, rng: random.Random) -> History | None:
    """Two sums are the same, although both added something."""
    for add in _some(ops, rng, "add"):
        for other in _of_key(ops, add):
            if other is not add and other.op == "add" and other.known:
                add.result["value"] = other.result["value"]
                return ops
    return None


@mutant
def adds_with_swapped_sums(ops: History, rng: random.Random) -> History | None:
    """One had ended before the other began, and its sum is larger."""
    for one, two in _in_turn(ops, rng, "add"):
        one.result["value"], two.result["value"] = two.result["value"], one.result["value"]
        return ops
    return None


@mutant
def revision_told_twice(ops: History, rng: random.Random) -> History | None:
    for one, two in _in_turn(ops, rng, "put"):
        two.result["revision"] = one.result["revision"]
        return ops
    return None


@mutant
def revisions_swapped(ops: History, rng: random.Random) -> History | None:
    for one, two in _in_turn(ops, rng, "put"):
        one.result, two.result = two.result, one.result
        return ops
    return None


@mutant
def compare_that_met_twice(ops: History, rng: random.Random) -> History | None:
    """Both replaced a value that was written once."""
    for cas in _some(ops, rng, "cas"):
        if cas.result["swapped"] and cas.args["expected"] is not None:
            twin = copy.deepcopy(cas)
            twin.args["value"] = twin.result["value"] = NEVER
            twin.client, twin.rank, twin.world = "twin", None, None
            del twin.result["revision"]
            return [*ops, twin]
    return None


@mutant
def compare_that_denies_what_it_met(ops: History, rng: random.Random) -> History | None:
    for cas in _some(ops, rng, "cas"):
        if not cas.result["swapped"]:
            cas.result["value"] = cas.args["expected"]
            return ops
    return None


@mutant
def compare_that_saw_what_nobody_wrote(ops: History, rng: random.Random) -> History | None:
    for cas in _some(ops, rng, "cas"):
        if not cas.result["swapped"]:
            cas.result["value"] = NEVER
            return ops
    return None


@mutant
def delete_of_nothing_that_tells_one(ops: History, rng: random.Random) -> History | None:
    """No operation ever wrote that key."""
    for delete in _some(ops, rng, "delete"):
        delete.key, delete.result["deleted"] = "none", 1
        return ops
    return None


@mutant
def delete_that_found_nothing_in_between(ops: History, rng: random.Random) -> History | None:
    """Of a key that is never deleted otherwise, after a write."""
    for put in _some(ops, rng, "put"):
        if put.key == "kept":
            gone = copy.deepcopy(put)
            gone.op, gone.args, gone.result = "delete", {}, {"deleted": 0}
            gone.start_s = put.end_s + LATER_S
            gone.end_s = gone.start_s + LATER_S
            return [*ops, gone]
    return None


@mutant
def append_shorter_than_what_it_appended(ops: History, rng: random.Random) -> History | None:
    return _with(ops, rng, "append", lambda op: op.result.update(length=len(op.args["value"]) - 1))


# --- barriers ---------------------------------------------------------------------------------


@mutant
def release_without_a_member(ops: History, rng: random.Random) -> History | None:
    one = _release(ops, rng)
    return [op for op in ops if op.op != "barrier" or op.scope != one.scope or op.rank != one.rank]


@mutant
def release_before_a_member_came(ops: History, rng: random.Random) -> History | None:
    """It is the last round, so that no other call can be meant."""
    late, others = _round(ops, rng, last=True)
    late.start_s = max(op.end_s for op in others) + LATER_S
    late.end_s = late.start_s + LATER_S
    return ops


@mutant
def release_told_twice(ops: History, rng: random.Random) -> History | None:
    one = _release(ops, rng)
    again = copy.deepcopy(one)
    again.start_s, again.end_s = one.end_s + LATER_S, one.end_s + 2 * LATER_S
    return [*ops, again]


@mutant
def release_for_some_and_timeout_for_one(ops: History, rng: random.Random) -> History | None:
    one, _ = _round(ops, rng)
    one.ok, one.round, one.result = False, None, {"error": "BARRIER_TIMEOUT"}
    return ops


@mutant
def timeout_for_some_and_another_error_for_one(ops: History, rng: random.Random) -> History | None:
    _timed_out(ops, rng).result = {"error": "BARRIER_BROKEN"}
    return ops


@mutant
def timeout_for_some_and_release_for_one(ops: History, rng: random.Random) -> History | None:
    one = _timed_out(ops, rng)
    before = [op for op in ops if op.op == "barrier" and op.scope == one.scope
              and op.rank == one.rank and op.start_s < one.start_s]  # fmt: skip
    one.ok, one.round, one.result = True, len(before) + 1, {}
    return ops


@mutant
def gather_with_another_payload(ops: History, rng: random.Random) -> History | None:
    one, _ = _round(ops, rng)
    one.result["payloads"] = [NEVER, *one.result["payloads"][1:]]
    return ops


@mutant
def gather_of_what_a_member_did_not_give(ops: History, rng: random.Random) -> History | None:
    one, _ = _round(ops, rng)
    one.args["payload"] = NEVER
    return ops


@mutant
def round_that_is_left_out(ops: History, rng: random.Random) -> History | None:
    one, _ = _round(ops, rng, last=True)
    assert one.round is not None
    one.round += 1
    return ops


@mutant
def round_that_comes_again(ops: History, rng: random.Random) -> History | None:
    one, _ = _round(ops, rng, last=True)
    assert one.round is not None
    one.round -= 1
    return ops


@mutant
def release_for_a_stranger(ops: History, rng: random.Random) -> History | None:
    one = copy.deepcopy(_release(ops, rng))
    one.client, one.rank, one.round = "stranger", one.world, 1
    return [*ops, one]


@mutant
def release_of_another_generation(ops: History, rng: random.Random) -> History | None:
    """That rank has rounds of its own there, or that client was never told of it."""
    one = _release(ops, rng)
    assert one.generation is not None
    one.generation += 1
    return ops


# --- generations ------------------------------------------------------------------------------


@mutant
def rank_given_twice(ops: History, rng: random.Random) -> History | None:
    one, two = _joins(ops, rng)
    one.rank = two.rank
    return ops


@mutant
def rank_outside_of_the_world(ops: History, rng: random.Random) -> History | None:
    one, _ = _joins(ops, rng)
    one.rank = one.world
    return ops


@mutant
def world_of_another_size(ops: History, rng: random.Random) -> History | None:
    one, _ = _joins(ops, rng)
    assert one.world is not None
    one.world += 1
    return ops


@mutant
def another_member_table(ops: History, rng: random.Random) -> History | None:
    one, _ = _joins(ops, rng)
    one.result["digest"] = "another"
    return ops


@mutant
def generation_that_falls(ops: History, rng: random.Random) -> History | None:
    """A client is told the later one first."""
    for one, two in _in_turn(ops, rng, "join", same_client=True):
        one.generation, two.generation = two.generation, one.generation
        return ops
    return None


@mutant
def newcomer_in_an_old_generation(ops: History, rng: random.Random) -> History | None:
    """It asks after the next one had been told to others."""
    one, _ = _joins(ops, rng, first=True)
    late = copy.deepcopy(one)
    assert one.generation is not None
    told = [
        op.end_s for op in ops
        if op.op == "join" and op.known and op.generation == one.generation + 1
    ]  # fmt: skip
    if not told:
        return None
    late.client, late.start_s = "newcomer", max(told) + LATER_S
    late.end_s = late.start_s + LATER_S
    return [*ops, late]


@mutant
def two_places_in_a_generation(ops: History, rng: random.Random) -> History | None:
    one, two = _joins(ops, rng)
    again = copy.deepcopy(one)
    again.rank, again.end_s = two.rank, one.end_s + LATER_S
    return [*ops, again]


@mutant
def act_without_having_been_told(ops: History, rng: random.Random) -> History | None:
    one = _any(ops, rng, lambda op: op.op == "barrier")
    return [op for op in ops if op.op != "join" or (op.client, op.fence) != (one.client, one.fence)]


@mutant
def act_in_another_place(ops: History, rng: random.Random) -> History | None:
    one = _any(ops, rng, lambda op: op.op == "id")
    assert one.rank is not None and one.world is not None  # noqa: PT018
    one.rank = (one.rank + 1) % one.world
    return ops


@mutant
def success_after_the_end(ops: History, rng: random.Random) -> History | None:
    """S10: it began when the next generation had been told."""
    told = [op.end_s for op in ops if op.op == "join" and op.known and op.generation == 2]
    if not told:
        return None
    one = _any(ops, rng, lambda op: op.op in ("put", "id") and op.ok and op.generation == 1)
    one.start_s = max(told) + LATER_S
    one.end_s = one.start_s + LATER_S
    return ops


# --- ids --------------------------------------------------------------------------------------


@mutant
def id_in_two_generations(ops: History, rng: random.Random) -> History | None:
    one = _id(ops, rng)
    other = _id(ops, rng, lambda op: op.generation != one.generation)
    for op in _with_id(ops, other.result["id"]):
        op.result["id"] = one.result["id"]
    return ops


@mutant
def id_in_two_attempts(ops: History, rng: random.Random) -> History | None:
    one = _id(ops, rng, lambda op: len(_with_id(ops, op.result["id"])) > 1)
    one.result["attempt"] += 1
    return ops


@mutant
def two_ids_for_one_communicator(ops: History, rng: random.Random) -> History | None:
    one = _id(ops, rng, lambda op: len(_with_id(ops, op.result["id"])) > 1)
    other = _id(ops, rng, lambda op: op.result["id"] != one.result["id"])
    one.result["id"] = other.result["id"]
    return ops


@mutant
def id_that_nobody_minted(ops: History, rng: random.Random) -> History | None:
    for op in _with_id(ops, _id(ops, rng).result["id"]):
        op.result["id"] = NEVER
    return ops


@mutant
def id_used_twice(ops: History, rng: random.Random) -> History | None:
    again = copy.deepcopy(_id(ops, rng))
    again.args = {}
    again.start_s, again.end_s = again.end_s + LATER_S, again.end_s + 2 * LATER_S
    return [*ops, again]


@mutant
def id_from_before_it_was_minted(ops: History, rng: random.Random) -> History | None:
    other = _id(ops, rng, lambda op: "minted" not in op.args)
    minter = _any(ops, rng, lambda op: op.args.get("minted") == other.result["id"])
    minter.start_s = other.end_s + LATER_S
    minter.end_s = minter.start_s + LATER_S
    return ops


# --- finding something to change --------------------------------------------------------------


def _some(ops: History, rng: random.Random, op: str) -> list[Entry]:
    """Those of a kind that went well, in any order."""
    found = [each for each in ops if each.op == op and each.known and each.ok]
    rng.shuffle(found)
    return found


def _with(
    ops: History, rng: random.Random, op: str, change: Callable[[Entry], Any]
) -> History | None:
    for each in _some(ops, rng, op):
        change(each)
        return ops
    return None


def _of_key(ops: History, like: Entry) -> list[Entry]:
    return [
        op for op in ops if op.op != "barrier" and op.key == like.key and op.scope == like.scope
    ]


def _changes(op: Entry) -> bool:
    """It certainly made another value of what was there."""
    return bool(op.known and op.ok) and (
        op.op in ("put", "append")
        or (op.op == "cas" and op.result["swapped"])
        or (op.op == "delete" and bool(op.result["deleted"]))
    )


def _seen(ops: History, rng: random.Random) -> Iterator[tuple[Entry, Entry]]:
    """Writes, and a look that shows each."""
    for get in _some(ops, rng, "get"):
        value = get.result["value"]
        if value is None or get.key == COUNTER:
            continue
        for put in _of_key(ops, get):
            if put.op in _WRITES and put.args["value"] in value and put.known and put.ok:
                yield put, get


def _whole(put: Entry, get: Entry) -> bool:
    """What was seen is what this operation left there."""
    return put.op == "put" and get.result["value"] == put.args["value"]


def _in_turn(
    ops: History, rng: random.Random, op: str, *, same_client: bool = False
) -> Iterator[tuple[Entry, Entry]]:
    """Two of a kind, one of which had ended before the other began."""
    for one in _some(ops, rng, op):
        for two in _some(ops, rng, op):
            here = one.client == two.client if same_client else one.scope == two.scope
            if one.end_s < two.start_s and one.key == two.key and here:
                yield one, two


def _any(ops: History, rng: random.Random, fits: Callable[[Entry], object]) -> Entry:
    """One that fits.

    Raises:
        NothingFoundError: none does.
    """
    found = [op for op in ops if fits(op)]
    if not found:
        raise NothingFoundError
    return rng.choice(found)


def _others(ops: History, one: Entry) -> list[Entry]:
    """The other members' calls that were released in its round."""
    return [
        op for op in ops
        if op.op == "barrier" and op.scope == one.scope and op.round == one.round and op is not one
    ]  # fmt: skip


def _release(ops: History, rng: random.Random) -> Entry:
    """A member's call that was released, as were others in its round."""
    return _any(ops, rng, lambda op: op.op == "barrier" and op.ok and _others(ops, op))


def _timed_out(ops: History, rng: random.Random) -> Entry:
    """A member's call in a round that timed out for all."""
    return _any(
        ops, rng, lambda op: op.op == "barrier" and op.result.get("error") == "BARRIER_TIMEOUT"
    )


def _round(ops: History, rng: random.Random, *, last: bool = False) -> tuple[Entry, list[Entry]]:
    """A member's call for a round that was released, and those of the others."""
    one = _release(ops, rng)
    if last:
        own = [op for op in ops if op.op == "barrier" and op.ok and op.scope == one.scope]
        highest = max(op.round or 0 for op in own if _others(ops, op))
        one = _any(own, rng, lambda op: op.round == highest)
        if any(op.start_s > one.start_s for op in ops
               if op.op == "barrier" and (op.scope, op.rank) == (one.scope, one.rank)):  # fmt: skip
            raise NothingFoundError  # it went on to a round that was not released
    return one, _others(ops, one)


def _joins(ops: History, rng: random.Random, *, first: bool = False) -> tuple[Entry, Entry]:
    """Two members of one generation."""
    joins = [
        op for op in ops
        if op.op == "join" and op.known and op.ok and (not first or op.generation == 1)
    ]  # fmt: skip
    one = _any(joins, rng, lambda op: True)
    return one, _any(joins, rng, lambda op: op.generation == one.generation and op is not one)


def _id(
    ops: History, rng: random.Random, fits: Callable[[Entry], object] = lambda op: True
) -> Entry:
    """Somebody who got an id."""
    return _any(ops, rng, lambda op: op.op == "id" and op.ok and op.known and fits(op))


def _with_id(ops: History, value: str) -> list[Entry]:
    return [op for op in ops if op.op == "id" and op.result.get("id") == value]
