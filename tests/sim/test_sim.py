"""The simulator as a test: seeds in every mode, and its own guarantees."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import AnyReply, Error, Fence, Released
from tests.sim.campaign import Case, Totals, cases, play, play_all
from tests.sim.meeting import Ledger, MeetingError
from tests.sim.rules import ViolationError
from tests.sim.world import Mode, World

SLICE = 20
"""Seeds of one test: small enough that two workers get the same share."""

SEEDS = dict.fromkeys(Mode, 500)
"""Together 2,000: three minutes of two cores. `make sim` plays as many in each mode."""

ROOT = Path(__file__).parents[2]
KEPT = sorted((Path(__file__).parent / "seeds").glob("*.json"))


@pytest.mark.parametrize(
    ("mode", "first"),
    [(mode, first) for mode, count in SEEDS.items() for first in range(0, count, SLICE)],
    ids=lambda value: value.value if isinstance(value, Mode) else str(value),
)
def test_no_seed_breaks_a_rule(mode: Mode, first: int) -> None:
    totals = Totals()
    for case in cases(first, first + SLICE - 1, [mode]):
        one = play(case)
        assert not one.violation, f"{case.command}: {one.violation}"
        totals.add(one)
    assert totals.faults > 10 * SLICE  # or the world was too quiet to show anything
    assert totals.generations > SLICE
    assert totals.releases > SLICE
    assert totals.reads > 10 * SLICE
    assert totals.ids > SLICE


def test_s34_in_some_histories_two_versions_of_the_protocol_meet() -> None:
    outcomes = [play(case) for case in cases(0, 9, [Mode.CRASHES])]
    assert sum(one.later for one in outcomes) > 10
    assert any(one.later == 0 for one in outcomes)


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_a_seed_that_found_something_once_stays_clean(path: Path) -> None:
    kept = json.loads(path.read_text())
    case = Case(kept["seed"], Mode(kept["mode"]))
    assert not play(case).violation, f"{case.command}, which found: {kept['found']}"


@pytest.mark.parametrize("mode", Mode, ids=lambda mode: mode.value)
def test_one_seed_is_one_history(mode: Mode) -> None:
    assert play(Case(7, mode)).hash == play(Case(7, mode)).hash


def test_a_history_does_not_depend_on_the_hash_seed_of_the_interpreter() -> None:
    told = []
    for hash_seed in ("1", "2"):
        environment = {
            **os.environ, "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("server", "client", "proto", ".")),
        }  # fmt: skip
        command = [
            sys.executable,
            "-m",
            "tests.sim",
            "--all",
            "--seeds",
            "40-42",
            "--hashes",
            "--jobs",
            "1",
        ]
        done = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        told.append([line for line in done.stdout.splitlines() if len(line.split()[-1]) == 64])
    assert len(told[0]) == 3 * len(Mode)
    assert told[0] == told[1]


def test_the_result_is_the_same_however_many_processes_play() -> None:
    todo = cases(0, 4, list(Mode))
    assert list(play_all(todo, 2)) == [play(case) for case in todo]


def test_a_healthy_node_declared_lost_is_a_violation() -> None:
    world = World(3)
    world.clock.run_until(10)
    agent = next(a for a in world.agents if a.alive)
    agent.client.impaired_until = 0.0
    with pytest.raises(ViolationError, match=r"S33: .* is well"):
        world.rules.lost(agent.incarnation, unread=False)


def test_a_node_that_the_kernel_had_heard_and_that_is_declared_lost_is_a_violation() -> None:
    world = World(3)
    world.clock.run_until(10)
    agent = next(a for a in world.agents if a.alive)
    agent.client.impaired(100)
    world.rules.lost(agent.incarnation, unread=False)
    with pytest.raises(ViolationError, match=r"S33: .* heard by the kernel"):
        world.rules.lost(agent.incarnation, unread=True)


def test_two_holders_of_one_rank_are_a_violation() -> None:
    world = World(3)
    world.clock.run_until(10)
    joined = [a for a in world.agents if a.joined is not None]
    assert joined
    other = next(a for a in world.agents if a is not joined[0])
    other.run = joined[0].run
    told = joined[0].joined
    assert told is not None
    with pytest.raises(ViolationError, match="S1"):
        world.rules.told(other, told)


PLACE = ("run", Fence(1, 1), "b")
BOTH = Released(round=1, payloads=[b"a", b"b"])
SECOND = Released(round=2, payloads=[b"a", b"b"])
LATE = Error(code=ErrorCode.BARRIER_TIMEOUT, message="barrier 'b' of run 'run', round 1: 1 of 2")


@pytest.mark.parametrize(
    ("told", "rule"),
    [
        ([(0, Released(round=1, payloads=[b"a"]))], "S13: 1 payloads"),
        ([(0, Released(round=1, payloads=[b"a", b"?"]))], "S13: rank 1 never came"),
        ([(0, Released(round=1, payloads=[b"b", b"a"]))], "S13: rank 0 never came"),
        ([(0, BOTH), (1, SECOND)], "S13: .* counted twice"),
        ([(0, BOTH), (1, LATE)], "S14"),
        ([(0, BOTH), (0, BOTH)], "S15"),
        ([(0, LATE), (0, Released(round=3, payloads=[b"a", b"b"]))], "S15"),
    ],
)
def test_a_round_that_is_not_right_is_a_violation(
    told: list[tuple[int, AnyReply]], rule: str
) -> None:
    ledger = Ledger(lambda run: (1, False))
    ledger.arrives(PLACE, 0, b"a")
    ledger.arrives(PLACE, 1, b"b")
    *good, (rank, last) = told
    for member, reply in good:
        ledger.decided(PLACE, member, [0, 1], reply)
    with pytest.raises(MeetingError, match=rule):
        ledger.decided(PLACE, rank, [0, 1], last)
