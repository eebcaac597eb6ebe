"""The checkers are good for something: good histories pass, and wrong ones are all found."""

import itertools
import math
import random
from pathlib import Path

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
