"""A version of the protocol as a table, and what a version may not be."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgpack
import pytest

from rdzv_proto import PROTOCOL_VERSION, codec
from rdzv_proto.codec import Codec, MalformedError
from rdzv_proto.messages import (
    PUSHES,
    REPLIES,
    REQUESTS,
    Barrier,
    Done,
    Heartbeat,
    KvSet,
    Message,
    Progress,
    Released,
    Welcome,
)
from rdzv_proto.versions import NEWEST, OPENING, V1, Form, Version
from tests.nextversion import CODEC_2, V2, WITHIN_MS, Barrier2, Nudge, Ping, Pong
from tests.unit.proto import golden
from tests.unit.proto.golden import Example

OTHERS = [e for e in golden.load() if e["op"] not in {k.op for k in V2.forms}]


def payload(frame: bytes) -> Any:
    return msgpack.unpackb(frame[4:])[3]


def body(version: int, op: str, fields: dict[str, Any], request_id: int = 5) -> bytes:
    data: bytes = msgpack.packb([version, request_id, op, fields])
    return data


def test_the_newest_version_is_the_table_of_messages_as_it_is() -> None:
    assert NEWEST.number == PROTOCOL_VERSION == codec.CURRENT.version
    assert NEWEST.messages == {**REQUESTS, **REPLIES, **PUSHES}
    assert not NEWEST.forms
    assert all(NEWEST.wire(kind) is kind for kind in NEWEST.messages.values())


# --- a message that a version does not have -------------------------------------------------------


@pytest.mark.parametrize("message", [Ping(text="x"), Pong(text="x"), Nudge(by="a")])
def test_a_message_that_only_one_version_has_is_unknown_in_the_other(message: Message) -> None:
    request = isinstance(message, Ping)
    frame = CODEC_2.encode(0 if isinstance(message, Nudge) else 5, message)
    back = CODEC_2.decode_request(frame[4:]) if request else CODEC_2.decode_answer(frame[4:])
    assert back[1] == message
    assert CODEC_2.has(type(message))
    assert not codec.CURRENT.has(type(message))
    with pytest.raises(MalformedError, match=r"\(protocol version 1\)") as caught:
        (codec.decode_request if request else codec.decode_answer)(frame[4:])
    assert not caught.value.op_known


# --- fields that a version has or lacks -----------------------------------------------------------


def test_a_field_that_is_gone_is_not_sent_and_its_successor_is_read() -> None:
    barrier = Barrier(name="b", timeout_ms=7_000, payload=b"p")
    assert payload(CODEC_2.encode(5, barrier)) == {
        "name": "b", "payload": b"p", "within_ms": 7_000,
    }  # fmt: skip
    assert payload(codec.encode(5, barrier)) == {
        "name": "b", "payload": b"p", "timeout_ms": 7_000,
    }  # fmt: skip
    assert CODEC_2.decode_request(CODEC_2.encode(5, barrier)[4:]) == (5, barrier)


def test_a_field_with_a_default_may_be_left_out_and_one_of_another_version_is_ignored() -> None:
    left_out = Barrier(name="b", timeout_ms=WITHIN_MS)
    assert CODEC_2.decode_request(body(2, "barrier", {"name": "b"})) == (5, left_out)
    with pytest.raises(MalformedError, match="bad barrier"):
        codec.decode_request(body(1, "barrier", {"name": "b"}))
    ignored = {"name": "b", "timeout_ms": 1}
    assert CODEC_2.decode_request(body(2, "barrier", ignored)) == (5, left_out)
    noted = {"key": "k", "value": b"v", "note": "why"}
    assert CODEC_2.decode_request(body(2, "kv_set", noted)) == (5, KvSet(key="k", value=b"v"))


def test_a_reply_loses_what_its_version_does_not_have_in_a_frame_and_in_a_tail() -> None:
    released = Released(round=3, committed=False, against=[1])
    less: dict[str, Any] = {"round": 3, "committed": False}
    assert payload(CODEC_2.encode(5, released)) == less
    tail = CODEC_2.encode_tail(released)
    assert CODEC_2.frame(5, tail) == CODEC_2.encode(5, released)
    assert CODEC_2.decode_tail(tail) == Released(**less)
    assert payload(codec.encode(5, released)) == {**less, "against": [1]}


def test_bounds_of_a_version_hold_as_the_tables_do() -> None:
    wrongs: list[dict[str, Any]] = [
        {"name": ""}, {"name": "b", "within_ms": -1}, {"name": "b", "payload": 7},
    ]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(MalformedError, match="bad barrier") as caught:
            CODEC_2.decode_request(body(2, "barrier", wrong))
        assert caught.value.request_id == 5


@pytest.mark.parametrize("example", OTHERS, ids=[e["name"] for e in OTHERS])
def test_s34_what_a_version_does_not_change_is_as_frozen_but_for_its_number(
    example: Example,
) -> None:
    frame = CODEC_2.encode(example["request_id"], golden.rebuild(example))
    frozen = bytes.fromhex(example["hex"])
    assert frame[:5] + b"\x01" + frame[6:] == frozen
    assert codec.version_of(frame[4:]) == 2
    assert codec.version_of(frozen[4:]) == 1


@pytest.mark.parametrize("rubbish", [b"", b"\xc1", b"\x94\x01", msgpack.packb(["1", 1, "op", {}])])
def test_only_a_frame_says_a_version(rubbish: bytes) -> None:
    with pytest.raises(MalformedError):
        codec.version_of(rubbish)


# --- what no version may be -----------------------------------------------------------------------


def without(
    messages: Mapping[str, type[Message]], *kinds: type[Message]
) -> dict[str, type[Message]]:
    return {op: kind for op, kind in messages.items() if kind not in kinds}


@pytest.mark.parametrize("kind", OPENING, ids=[kind.op for kind in OPENING])
def test_what_opens_a_connection_is_the_same_in_every_version(kind: type[Message]) -> None:
    with pytest.raises(ValueError, match=f"version 9: {kind.op} must be as in all versions"):
        Version(9, without(V1.requests, kind), without(V1.replies, kind), without(V1.pushes, kind))
    other = Form(Barrier2, up=lambda m: m, down=lambda m: m)
    with pytest.raises(ValueError, match=f"{kind.op} must be as in all versions"):
        dataclasses.replace(V1, number=9, forms={kind: other})


def test_a_request_comes_with_its_answer() -> None:
    with pytest.raises(ValueError, match="version 9 has finished and not its answer done"):
        Version(9, V1.requests, without(V1.replies, Done), V1.pushes)
    nothing_to_ask = without(V1.requests, *(k for k in REQUESTS.values() if k.answer == "done"))
    smaller = Version(9, nothing_to_ask, without(V1.replies, Done), V1.pushes)
    assert not Codec(smaller).has(Done)


def test_a_form_is_one_of_a_message_that_is_there_under_the_same_operation() -> None:
    form = Form(Barrier2, up=lambda m: m, down=lambda m: m)
    with pytest.raises(ValueError, match="heartbeat has a form and is not there"):
        dataclasses.replace(V1, number=9, forms={Heartbeat: form})
    fewer = without(V1.pushes, Progress)
    with pytest.raises(ValueError, match="progress has a form and is not there"):
        Version(9, V1.requests, V1.replies, fewer, forms={Progress: form})


def test_the_opening_is_what_either_side_says_before_the_welcome_is_read() -> None:
    asked = {kind for kind in REQUESTS.values() if kind.answer == Welcome.op}
    assert {kind for kind in OPENING if kind.op in REQUESTS} == asked
    assert {kind.op for kind in OPENING if kind.op not in REQUESTS} == {
        "welcome", "error", "goodbye",
    }  # fmt: skip
