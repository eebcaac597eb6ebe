"""The history recorder: what a checker can rely on."""

import json
from pathlib import Path

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Error, Fence, KvAdd, KvGet, KvNumber
from tests.sim.history import NAMES, Op, Recorder
from tests.sim.world import Mode, World

FENCE = Fence(3, 4)


def asked(recorder: Recorder) -> Op:
    op = recorder.asked("a/1", "run", KvAdd(fence=FENCE, key="k", delta=2), 1.0, 0, 2)
    assert op is not None
    return op


def test_an_answer_ends_an_operation() -> None:
    recorder = Recorder()
    recorder.answered(asked(recorder), KvNumber(value=2), 1.5)
    want = Op("a/1", "run", "add", "k", {"delta": 2}, 1.0, 1.5, True, 2, 3, 4, 0, 2)
    assert recorder.ops == [want]


def test_a_refusal_is_told_apart_from_an_end_that_nobody_knows() -> None:
    recorder = Recorder()
    refused, unknown = asked(recorder), asked(recorder)
    recorder.answered(refused, Error(code=ErrorCode.STALE_GENERATION, message=""), 2.0)
    recorder.answered(unknown, Error(code=ErrorCode.SESSION_LOST, message=""), 2.0)
    assert (refused.ok, refused.result, refused.end_s) == (False, "STALE_GENERATION", 2.0)
    assert (unknown.ok, unknown.result, unknown.end_s) == (None, None, None)


def test_a_key_that_is_not_there_is_read_as_nothing() -> None:
    recorder = Recorder()
    op = recorder.asked("a/1", "run", KvGet(fence=FENCE, key="k"), 1.0, 0, 2)
    assert op is not None
    recorder.answered(op, Error(code=ErrorCode.WAIT_TIMEOUT, message=""), 1.1)
    assert (op.ok, op.result) == (True, None)


def test_keys_of_a_run_are_left_out() -> None:
    assert Recorder().asked("a/1", "run", KvAdd(fence=None, key="k", delta=1), 1.0, 0, 2) is None


def test_a_seed_has_a_history_of_all_kinds_of_operations(tmp_path: Path) -> None:
    world = World(5, Mode.DURABLE)
    world.play()
    path = tmp_path / "history.jsonl"
    world.recorder.write(path)
    ops = [Op(**json.loads(line)) for line in path.read_text().splitlines()]
    assert {op.op for op in ops} == set(NAMES.values())
    assert all(op.end_s is None or op.end_s >= op.start_s for op in ops)
    assert [op.start_s for op in ops] == sorted(op.start_s for op in ops)
    assert any(op.ok for op in ops)
