"""The frozen frames of protocol version 1, and the program that freezes them."""

import json
import struct
from pathlib import Path

import msgpack
import pytest

from rdzv_proto import codec
from rdzv_proto.messages import PUSHES
from tests.unit.proto import golden
from tests.unit.proto.golden import Example
from tests.unit.proto.strategies import ALL, decode

EXAMPLES = golden.load()
EACH = pytest.mark.parametrize("example", EXAMPLES, ids=[e["name"] for e in EXAMPLES])


@EACH
def test_the_message_still_encodes_to_the_frozen_bytes(example: Example) -> None:
    frame = codec.encode(example["request_id"], golden.rebuild(example))
    assert frame.hex() == example["hex"]


@EACH
def test_the_frozen_bytes_still_decode_to_the_message(example: Example) -> None:
    body = bytes.fromhex(example["hex"])[4:]
    got = decode(ALL[example["op"]], body)
    assert got == (example["request_id"], golden.rebuild(example))


@EACH
def test_msgpack_reads_the_same_from_the_frozen_bytes(example: Example) -> None:
    frame = bytes.fromhex(example["hex"])
    assert struct.unpack(">I", frame[:4]) == (len(frame) - 4,)
    envelope = msgpack.unpackb(frame[4:])
    payload = golden.from_json(example["payload"])
    assert envelope == [1, example["request_id"], example["op"], payload]


@pytest.mark.parametrize("op", ALL)
def test_every_operation_is_frozen_with_all_and_with_only_the_required_fields(op: str) -> None:
    payloads = [golden.from_json(e["payload"]) for e in EXAMPLES if e["op"] == op]
    assert any(golden.has(ALL[op], payload, full=True) for payload in payloads)
    assert any(golden.has(ALL[op], payload, full=False) for payload in payloads)


def test_the_frozen_operations_are_those_of_the_table() -> None:
    assert {e["op"] for e in EXAMPLES} == set(ALL), "an operation of version 1 is gone"
    assert len({e["name"] for e in EXAMPLES}) == len(EXAMPLES)


def test_pushes_and_only_they_have_request_id_zero() -> None:
    assert all((e["request_id"] == 0) == (e["op"] in PUSHES) for e in EXAMPLES)


# --- the program ------------------------------------------------------------------------------


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    """A file of today's messages, made by the program."""
    file = tmp_path / "golden.json"
    assert golden.main(file) == 0
    return file


def write(file: Path, examples: list[Example]) -> str:
    file.write_text(json.dumps(examples), encoding="utf-8")
    return file.read_text(encoding="utf-8")


def test_the_generator_makes_the_same_file_every_time(complete: Path, tmp_path: Path) -> None:
    assert golden.main(tmp_path / "again.json") == 0
    assert (tmp_path / "again.json").read_bytes() == complete.read_bytes()


def test_the_generator_leaves_a_complete_file_as_it_is(complete: Path) -> None:
    before = complete.read_bytes()
    assert golden.main(complete) == 0
    assert complete.read_bytes() == before


def test_the_generator_only_adds(complete: Path) -> None:
    kept = [e for e in golden.load(complete) if e["op"] != "join"]
    write(complete, kept)
    assert golden.main(complete) == 0
    after = golden.load(complete)
    assert after[: len(kept)] == kept
    assert [e["name"] for e in after[len(kept) :]] == ["join/all", "join/required"]


def test_a_field_that_is_new_gets_an_example_beside_the_old_one(complete: Path) -> None:
    """As if `Progress` had only got its `standby` now."""
    examples = {e["name"]: e for e in golden.load(complete)}
    full = examples.pop("progress/all")
    payload = {key: value for key, value in full["payload"].items() if key != "standby"}
    old = Example(name="progress/all", op="progress", request_id=0, hex="", payload=payload)
    old["hex"] = codec.encode(0, golden.rebuild(old)).hex()
    write(complete, [*examples.values(), old])
    assert golden.main(complete) == 0
    before, after = golden.load(complete)[-2:]
    assert before == old
    assert (after["name"], after["payload"]) == ("progress/all-2", full["payload"])


@pytest.mark.parametrize("fault", ["hex", "op", "payload"])
def test_the_generator_refuses_to_touch_a_file_whose_frames_have_changed(
    complete: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, *others = golden.load(complete)
    match fault:
        case "hex":
            broken["hex"] = broken["hex"][:-2] + "7f"
        case "op":
            broken["op"] = "retired"
        case _:
            broken["payload"] = {}
    before = write(complete, [broken, *others[4:]])
    assert golden.main(complete) == 1
    assert complete.read_text(encoding="utf-8") == before
    assert broken["name"] in capsys.readouterr().err
