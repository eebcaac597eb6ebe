"""The checkers are good for something: good histories pass, and wrong ones are all found."""

import itertools
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.sim.check import __main__ as command
from tests.sim.check import mutants
from tests.sim.check.entries import Entry, FormatError, entry, read, write
from tests.sim.check.good import history
from tests.sim.check.judge import judge
from tests.sim.check.kv_model import NOT_THERE, State, step
from tests.sim.check.linear import search

PATIENCE_S = 20.0
SEEDS = range(8)
"""For each of the mutants: 47 × 8 histories."""


def recorded() -> list[Entry]:
    """What the clients of a chaos campaign saw in its first seconds."""
    return list(read(str(Path(__file__).parent / "recorded.jsonl")))


@pytest.mark.parametrize("seed", range(20))
def test_good_histories_pass(seed: int) -> None:
    verdict = judge(history(seed), PATIENCE_S)
    assert verdict.good, verdict.violations[:3]


def test_a_recorded_history_passes() -> None:
    assert judge(recorded(), PATIENCE_S).good


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_every_wrong_history_is_found(name: str) -> None:
    tried = [mutants.mutated(name, history(seed), random.Random(seed)) for seed in SEEDS]
    wrong = [ops for ops in tried if ops is not None]
    assert len(wrong) >= len(SEEDS) // 2, "it finds something to change"
    assert all(judge(ops, PATIENCE_S).violations for ops in wrong)


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_every_wrong_history_is_found_that_was_a_recorded_one(name: str) -> None:
    """There is not something to change for all of them."""
    for seed in SEEDS:
        wrong = mutants.mutated(name, recorded(), random.Random(seed))
        assert wrong is None or judge(wrong, PATIENCE_S).violations


def test_there_are_enough_wrong_histories() -> None:
    for good in (recorded(), history(1)):
        made = sum(
            mutants.mutated(name, good, random.Random(seed)) is not None
            for name in mutants.MUTANTS
            for seed in SEEDS
        )
        assert made >= 200


@pytest.mark.parametrize("seed", range(40))
def test_s23_the_search_agrees_with_trying_every_order(seed: int) -> None:
    """Of few operations with answers drawn at random: most are impossible, some are not."""
    rng = random.Random(seed)
    for _ in range(30):
        ops = _anything(rng)
        assert search(ops, PATIENCE_S).linear is _some_order_fits(ops), ops


@pytest.mark.parametrize("seed", range(40))
def test_s23_the_search_agrees_with_trying_every_order_of_what_tells_revisions(seed: int) -> None:
    """Half of the histories happened, but for one answer in some of them."""
    rng = random.Random(seed)
    for number in range(30):
        ops = _anything(rng)
        for op in ops:
            if op.known and rng.random() < 0.8:
                op.result["revision"] = rng.randint(1, 3)
        if number % 2:
            _do_in_some_order(ops, rng)
        assert search(ops, PATIENCE_S).linear is _some_order_fits(ops), ops


def test_looks_that_all_wait_for_each_other_take_no_time() -> None:
    """Each order of them is as good as the others."""
    put = _op("put", 0.0, 50.0, value="v", result={"revision": 4})
    looks = [_op("get", n / 100, 50.0, result={"value": None}) for n in range(40)]
    looks += [_op("get", n / 100, 50.0, result={"value": "v", "revision": 4}) for n in range(40)]
    assert search([put, *looks], PATIENCE_S, tried_max=500).linear


def test_what_was_cut_off_is_not_tried_where_revisions_say_otherwise() -> None:
    """Fifteen appends that may have been done; the answers of the others say which one was, and where."""
    cut = [_op("append", 0.0, math.inf, value=f"<{n:02}>") for n in range(15)]
    known, text = [], "<07>"
    for n in range(20, 40):
        text += f"<{n}>"
        result = {"length": len(text), "revision": n}
        known.append(_op("append", 0.0, 50.0, value=f"<{n}>", result=result))
        known.append(_op("get", 0.0, 50.0, result={"value": text, "revision": n}))
    assert search([*cut, *known], PATIENCE_S, tried_max=5_000).linear


def test_the_search_is_undecided_when_it_has_tried_so_much() -> None:
    ops = [_op("put", 0.0, 1.0, value=f"v{n}") for n in range(30)]
    ops.append(_op("get", 2.0, 3.0, result={"value": "another"}))
    assert search(ops, PATIENCE_S, tried_max=100).linear is None


def test_the_search_is_undecided_when_its_time_is_up() -> None:
    """Thirty writes at once and a look at what none of them wrote: any order must be tried."""
    ops = [_op("put", 0.0, 1.0, value=f"v{n}") for n in range(30)]
    ops.append(_op("get", 2.0, 3.0, result={"value": "another"}))
    assert search(ops, 0.05).linear is None
    assert judge(ops, 0.05).undecided == ["('r', -1, -1) 'k'"]


def test_an_operation_cut_off_may_have_happened_or_not_but_only_once() -> None:
    cut = _op("add", 0.0, math.inf, delta=1)
    look = _op("get", 2.0, 3.0)
    for value, good in ((None, True), ("1", True), ("2", False)):
        look.result = {"value": value}
        assert search([cut, look], PATIENCE_S).linear is good


def test_an_operation_cut_off_may_happen_late_but_not_be_undone() -> None:
    cut = _op("put", 0.0, math.inf, value="late")
    looks = [
        _op("get", float(n), n + 0.5, result={"value": v}) for n, v in enumerate([None, "late"])
    ]
    assert search([cut, *looks], PATIENCE_S).linear
    looks[0].result, looks[1].result = looks[1].result, looks[0].result
    assert not search([cut, *looks], PATIENCE_S).linear


def test_s11_the_same_key_of_two_epochs_has_nothing_in_common() -> None:
    put = _op("put", 0.0, 1.0, value="old")
    get = _op("get", 2.0, 3.0, result={"value": None})
    put.epoch, get.epoch = 1, 2
    assert judge([put, get]).good
    get.epoch = 1
    assert not judge([put, get]).good


# --- what only some of the clients do -----------------------------------------------------------


def _act(client: str, op: str, start_s: float, rank: int | None = None, **more: Any) -> Entry:
    """It took a second and went well, in the generation of three nodes, if nothing else is said."""
    fields = {"args": {}, "result": {}, "ok": True, "end_s": start_s + 1, "epoch": 1, "generation": 1, "world": 3,
              "key": "", **more}  # fmt: skip
    return Entry(client=client, run="r", op=op, start_s=start_s, rank=rank, **fields)


def _met(client: str, start_s: float, rank: int, **more: Any) -> Entry:
    return _act(client, "barrier", start_s, rank, **{"key": "b", **more})


PAIR = {"members": [0, 2]}
LATE = {"ok": False, "result": {"error": "BARRIER_TIMEOUT"}}
BROKEN = {"ok": False, "result": {"error": "BARRIER_BROKEN"}}
REFUSED_ID: dict[str, Any] = {"ok": False, "result": {"error": "DUPLICATE_ID"}}
FAILED_ID: dict[str, Any] = {"ok": False, "result": {"error": "ID_FAILED"}}
STRANGER = {"ok": False, "result": {"error": "NOT_A_MEMBER"}}
JOINS = [_act("a", "join", 0.0, 0), _act("b", "join", 0.0, 1)]


@pytest.mark.parametrize(
    ("ops", "rule"),
    [
        # A training process has the place of the agent that started it.
        ([*JOINS, _act("a/w", "attach", 1.0, 0, args={"agent": "a"})], ""),
        ([*JOINS, _act("a/w", "attach", 1.0, 1, args={"agent": "a"})], "S4: a/w has another place"),
        ([*JOINS, _act("c/w", "attach", 1.0, 0, args={"agent": "c"})], "S4: c/w has another place"),
        (
            [*JOINS, _act("a/w", "attach", 1.0, 0, args={"agent": "a"}), _met("a/w", 3.0, 1)],
            "S4: a/w acts in another place",
        ),
        # Some ranks meet.
        ([_met("a", 0.0, 0, args=PAIR, round=1), _met("c", 0.0, 2, args=PAIR, round=1)], ""),
        ([_met("a", 0.0, 0, args=PAIR, round=1)], "S13: .* rank 2 never came"),
        (
            [
                _met("a", 0.0, 0, args=PAIR, round=1),
                _met("c", 0.0, 2, args=PAIR, round=1),
                _met("b", 0.0, 1, args=PAIR, **STRANGER),
            ],
            "",
        ),
        (
            [
                _met("a", 0.0, 0, args=PAIR, round=1),
                _met("c", 0.0, 2, args=PAIR, round=1),
                _met("b", 0.0, 1, args=PAIR, round=1),
            ],
            "S16: .* rank 1 is none of those that take part",
        ),
        (
            [
                _met("a", 0.0, 0, args={**PAIR, "payload": "x"}, round=1, result={"payloads": ["x", "y"]}),
                _met("c", 0.0, 2, args={**PAIR, "payload": "z"}, round=1, result={"payloads": ["x", "y"]}),
            ],
            "S14: .* another payload of rank 2",
        ),
        # A failure that tells its round.
        ([_met("a", 0.0, 0, round=1, **LATE), _met("a", 2.0, 0, round=2, **LATE)], ""),
        ([_met("a", 0.0, 0, round=1, **LATE), _met("a", 2.0, 0, round=3, **LATE)], "S15"),
        ([_met("a", 0.0, 0, round=1, **LATE), _met("a", 2.0, 0, round=1, **LATE)], "S15"),
        ([_met("a", 0.0, 0, round=1, **LATE), _met("a", 2.0, 0, round=9, **BROKEN)], ""),
        (
            [
                _met("a", 0.0, 0, round=1, **LATE),
                _met("a", 2.0, 0, round=9, **BROKEN),
                _met("b", 2.0, 1, round=9, **LATE),
            ],
            "S15",
        ),
        ([_met("a", 0.0, 0, round=1, **LATE), _met("b", 0.0, 1, round=1, **BROKEN)], "S14"),
        # An id that was refused, as somebody else's, was not made by who offered it.
        (
            [
                _act("a", "id", 0.0, key="dp", args={"minted": "x"}),
                _act("b", "id", 2.0, key="tp", args={"minted": "x"}, **REFUSED_ID),
                _act("b", "id", 4.0, key="dp", result={"id": "x"}),
            ],
            "",
        ),
        (
            [
                _act("a", "id", 0.0, key="dp", args={"minted": "x"}, **REFUSED_ID),
                _act("b", "id", 4.0, key="tp", args={"minted": "y"}),
                _act("b", "id", 4.0, key="dp", result={"id": "x"}),
            ],
            "S19: .* nobody minted",
        ),
        # The server was killed after it had handed the id to some, and before its minter heard of it.
        (
            [
                _act("a", "id", 0.0, key="dp", args={"minted": "x"}, **FAILED_ID),
                _act("b", "id", 0.5, key="dp", result={"id": "x"}),
            ],
            "",
        ),
        (
            [
                _act("a", "id", 0.0, key="dp", args={"minted": "x"}, **FAILED_ID),
                _act("b", "id", 0.5, key="tp", result={"id": "x"}),
            ],
            "S20: .* minted elsewhere",
        ),
        (
            [
                _act("a", "id", 0.0, key="dp", args={"minted": "x"}),
                _act("b", "id", 4.0, key="tp", result={"id": "x"}),
            ],
            "S20: .* minted elsewhere",
        ),
        # A server without its memory knows of no ids.
        (
            [
                _act("a", "id", float(at), key=key, epoch=epoch, args={"minted": "x"}, result={"id": "x"})
                for at, epoch, key in ((0, 1, "dp"), (4, 2, "tp"))
            ],
            "",
        ),
        (
            [
                _act("a", "id", 0.0, key="dp", args={"minted": "x"}),
                _act("b", "id", 4.0, key="dp", epoch=2, result={"id": "x"}),
            ],
            "S19: .* nobody minted",
        ),
    ],
)  # fmt: skip
def test_what_only_some_of_the_clients_do_is_judged(ops: list[Entry], rule: str) -> None:
    there = {op.client for op in ops if op.op in ("join", "attach")}
    joins = {op.client: _act(op.client, "join", -2.0, op.rank) for op in ops if op.rank is not None}
    before = [join for client, join in joins.items() if client not in there]
    found = "\n".join(str(one) for one in judge([*before, *ops]).violations)
    assert re.search(rule, found) if rule else not found, found


def test_histories_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = str(tmp_path / "history.jsonl")
    write(path, history(3))
    again = list(read(path))
    assert [op.row() for op in again] == [op.row() for op in history(3)]
    assert again[4].where == f"{path}:5"


def test_bare_values_are_understood() -> None:
    row = {"client": "c", "run": "r", "op": "add", "key": "k", "args": 2, "start_s": 0, "end_s": 1}
    made = entry({**row, "ok": True, "result": 5})
    assert made.args == {"delta": 2}
    assert made.result == {"value": 5}


def test_the_command_says_what_is_wrong_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = str(tmp_path / "good.jsonl"), str(tmp_path / "bad.jsonl")
    write(good, history(1))
    wrong = mutants.mutated("rank_given_twice", history(1), random.Random(1))
    assert wrong is not None
    write(bad, wrong)
    assert command.main([good]) == 0
    assert " 0 violations" in capsys.readouterr().out
    assert command.main([good, bad]) == 1
    shown = capsys.readouterr().out
    assert "S1: rank" in shown
    assert f"{bad}:" in shown
    assert '"op":"join"' in shown


def test_the_command_refuses_what_is_no_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text('{"op": "put"}\n')
    assert command.main([str(path)]) == 2
    assert f"{path}:1" in capsys.readouterr().err
    with pytest.raises(FormatError, match="no operation"):
        entry({"op": "sing"})


# --- the slow and certain way -----------------------------------------------------------------


def _op(kind: str, start_s: float, end_s: float, **args: object) -> Entry:
    result = args.pop("result", {})
    assert isinstance(result, dict)
    ok = None if end_s == math.inf else True
    return Entry("c", "r", kind, "k", args, start_s, end_s, ok, result)


def _anything(rng: random.Random) -> list[Entry]:
    """Up to five operations on one key, with answers that may or may not go together."""
    ops = []
    for _ in range(rng.randint(2, 5)):
        start = rng.randint(0, 4)
        end = math.inf if rng.random() < 0.2 else start + rng.choice((0.5, 1.5, 2.5))
        kind = rng.choice(("put", "get", "append", "cas", "delete"))
        args, result = _drawn(rng, kind)
        ops.append(_op(kind, float(start), end, **args, result=result if end < math.inf else {}))
    return ops


def _do_in_some_order(ops: list[Entry], rng: random.Random) -> None:
    """Give them the answers that they would have had."""
    order = sorted(ops, key=lambda op: rng.uniform(op.start_s, min(op.end_s, op.start_s + 3)))
    value, revision, told = None, 0, 0
    for op in order:
        happened = op.known or rng.random() < 0.5
        new, result = _answer(op, value, revision, told + 1)
        if happened and new is not op:
            value, revision, told = new, told + 1, told + 1
        if op.known:
            op.result = result
    if rng.random() < 0.5:
        wrong = rng.choice(ops)
        if wrong.known and "revision" in wrong.result:
            wrong.result["revision"] += 1


def _answer(op: Entry, value: str | None, revision: int, next_: int) -> tuple[Any, dict[str, Any]]:
    """The value after an operation (the operation itself: no change), and what is told."""
    match op.op:
        case "put":
            return op.args["value"], {"revision": next_}
        case "append":
            joined = (value or "") + op.args["value"]
            return joined, {"length": len(joined), "revision": next_}
        case "delete" if value is not None:
            return None, {"deleted": 1, "revision": next_}
        case "cas" if op.args["expected"] == value:
            return op.args["value"], {
                "swapped": True,
                "value": op.args["value"],
                "revision": next_,
            }
        case "delete":
            return op, {"deleted": 0}
        case kind:
            there = {"value": value} if value is None else {"value": value, "revision": revision}
            return op, there if kind == "get" else {"swapped": False, **there}


def _drawn(rng: random.Random, kind: str) -> tuple[dict[str, object], dict[str, object]]:
    value, other = rng.choice("ab"), rng.choice(("a", "b", "ab", None))
    match kind:
        case "put":
            return {"value": value}, {}
        case "get":
            return {}, {"value": other}
        case "append":
            return {"value": value}, {"length": rng.randint(1, 3)}
        case "delete":
            return {}, {"deleted": rng.randint(0, 1)}
        case _:
            swapped = rng.random() < 0.5
            result: dict[str, object] = {"swapped": swapped, "value": value if swapped else other}
            return {"expected": rng.choice(("a", "b", None)), "value": value}, result


def _some_order_fits(ops: list[Entry]) -> bool:
    known = [op for op in ops if op.known]
    maybe = [op for op in ops if not op.known]
    return any(
        _fits(order)
        for size in range(len(maybe) + 1)
        for chosen in itertools.combinations(maybe, size)
        for order in itertools.permutations([*known, *chosen])
    )


def _fits(order: tuple[Entry, ...]) -> bool:
    if any(b.end_s < a.start_s for a, b in itertools.combinations(order, 2)):
        return False
    state: State | None = NOT_THERE
    for op in order:
        state = step(state, op) if state is not None else None
    return state is not None
