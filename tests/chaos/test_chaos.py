"""Short forms of `make chaos` and `make chaos-stall`, and the parts whose faults would hide those of others."""

import json
import random
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.chaos import rig
from tests.chaos.board import NOWHERE, Board, Place
from tests.chaos.crew import Crew, Member
from tests.chaos.gate import Gate
from tests.chaos.meter import Meter, percentile
from tests.chaos.recorder import Recorder, merged

ROOT = Path(__file__).parents[2]

RUN_S = 110.0
"""For about 45 s of faults and what is before and after them."""


def _run(*arguments: str) -> str:
    """The campaign's output; it must be good."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *arguments], cwd=ROOT, capture_output=True, text=True,
        timeout=RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.root
def test_thirty_faults_and_what_clients_saw_is_still_right() -> None:
    missing = rig.missing()
    if missing is not None:
        pytest.skip(missing)
    told = _run(
        "--faults", "30", "--minutes", "0.75", "--clients", "16", "--no-agents", "--any-speed"
    )
    assert "0 keys undecided, 0 violations, 0 stuck, 0 troubles" in told
    counted = re.search(r"(\d+) faults in .* (\d+) operations", told)
    assert counted is not None
    assert int(counted[1]) > 5
    assert int(counted[2]) > 100


def test_s32_nobody_expires_because_the_server_was_stopped() -> None:
    told = _run("--stalls", "24")
    assert "24 stalls, 0 false expiries" in told


# --- recording --------------------------------------------------------------------------------


def test_what_was_begun_and_not_ended_has_an_unknown_outcome(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "c.ops", "c", "r")
    first = recorder.begin("put", "k", {"value": "a"}, epoch=1)
    recorder.end(first, True, {"revision": 4})
    second = recorder.begin("id", "dp", {}, epoch=1, generation=2, rank=0, world=3)
    recorder.note(second, {"minted": "f"})
    done, cut = merged([tmp_path / "c.ops"])
    assert (done["ok"], done["result"], done["epoch"]) == (True, {"revision": 4}, 1)
    assert done["end_s"] >= done["start_s"]
    assert (cut["ok"], cut["end_s"], cut["args"]) == (None, None, {"minted": "f"})


def test_a_line_that_was_cut_off_is_as_if_it_had_not_been_written(tmp_path: Path) -> None:
    path = tmp_path / "c.ops"
    recorder = Recorder(path, "c", "r")
    recorder.end(recorder.begin("get", "k", {}, epoch=1), True, {"value": None})
    path.write_bytes(path.read_bytes()[:-7])
    (only,) = merged([path])
    assert only["end_s"] is None


def test_s29_what_was_asked_without_a_connection_may_have_met_a_later_server(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path / "c.ops", "c", "r")
    recorder.begin("put", "k", {"value": "a"}, epoch=1, connected=False)
    recorder.begin("put", "k", {"value": "b"}, epoch=1, connected=True)
    recorder.end(recorder.begin("get", "k", {}, epoch=2), True, {"value": "a"})
    rows = list(merged([tmp_path / "c.ops"]))
    assert [(row["args"].get("value"), row["epoch"]) for row in rows] == [
        ("a", 1), ("a", 2), ("b", 1), (None, 2),
    ]  # fmt: skip
    assert all("connected" not in json.dumps(row) for row in rows)


def test_a_place_is_read_as_it_was_written_and_not_while_it_is(tmp_path: Path) -> None:
    board = Board(tmp_path / "board", 3)
    there = Place(7, 2, 1, 4, 10.5, 11.5)
    Board(tmp_path / "board").post(1, there)
    assert [board.look(slot) for slot in range(3)] == [NOWHERE, there, NOWHERE]
    with open(tmp_path / "board", "r+b") as file:  # as a process that is killed in the middle
        file.seek(64)
        file.write(bytes([3]))
    assert board.look(1) == NOWHERE


# --- measuring --------------------------------------------------------------------------------


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    """Four members, none of which is a process."""
    path = tmp_path / "board"
    made = Crew(
        run="r", number=1, size=4, min_nodes=2, lease_s=2.0, first_slot=0, rng=random.Random(1),
        folder=tmp_path, board=Board(path, 8), board_path=path, nursery=None,  # type: ignore[arg-type]
        server_pid=lambda: 0, remembers=True,
    )  # fmt: skip
    made.members = [Member(f"m{n}", n, n, f"127.1.1.{n + 1}", f"m{n}") for n in range(4)]
    return made


def test_a_run_is_together_when_all_sound_members_have_passed_a_barrier_of_one_generation(
    crew: Crew,
) -> None:
    for slot in range(4):
        crew.board.post(slot, Place(1, 5, slot, 4, 10.0 + slot / 10, 12.0 + slot))
    assert crew.together(9.0) == 15.0
    assert crew.together(10.2) is None, "two of them came to it before"
    crew.board.post(0, Place(1, 6, 0, 3, 20.0, 21.0))
    assert crew.together(9.0) is None, "one is elsewhere"
    crew.members[0].sound = False
    assert crew.together(9.0) == 15.0
    for member in crew.members[:3]:
        member.sound = False
    assert crew.together(9.0) is None, "fewer than the minimum"


def test_times_are_taken_unless_another_fault_came_meanwhile(crew: Crew) -> None:
    meter = Meter(threading.Event(), 10)
    for slot in range(4):
        crew.board.post(slot, Place(1, 5, slot, 4, 10.0, 12.5))
    meter.measure([crew], 10.0, "loss", "a test")
    assert meter.times["loss"] == [2.5]
    assert meter.net_times["loss"] == [2.5]
    assert meter.slowest["loss"] == [(2.5, "a test of r (0.00 s held up)")]
    assert percentile(meter.times["loss"], 99) == 2.5
    assert percentile(meter.times["return"], 99) == 0.0
    with meter.on_top():
        meter.measure([crew], 10.0, "loss", "another")
    assert (meter.times["loss"], meter.untimed) == ([2.5], 1)


def test_a_fault_to_all_waits_until_no_run_has_one_of_its_own() -> None:
    gate = Gate(threading.Event())
    done = threading.Event()

    def alone() -> None:
        with gate.alone():
            done.set()

    with gate.shared():
        thread = threading.Thread(target=alone)
        thread.start()
        assert not done.wait(0.2)
    assert done.wait(10)
    thread.join(10)
