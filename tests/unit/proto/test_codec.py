"""Messages to frames and back. msgpack, which shares no code with the codec, is the oracle."""

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdzv_proto import PROTOCOL_VERSION, codec
from rdzv_proto.codec import MalformedError
from rdzv_proto.messages import (
    Alive,
    Fence,
    Heartbeat,
    HelloAdmin,
    HelloNode,
    KvAdd,
    KvSet,
    KvValue,
    Message,
    Notice,
    Status,
)
from tests.unit.proto.strategies import (
    ALL,
    agrees,
    decode,
    often,
    plain,
    request_ids,
    structs,
)

KINDS = pytest.mark.parametrize("kind", ALL.values(), ids=ALL)


def body_of(frame: bytes) -> bytes:
    """The frame without its length, which must be right."""
    (length,) = struct.unpack(">I", frame[:4])
    assert length == len(frame) - 4
    return frame[4:]


def pack(request_id: object, op: object, payload: object, *more: object) -> bytes:
    """A body as another implementation would write it."""
    data: bytes = msgpack.packb([PROTOCOL_VERSION, request_id, op, payload, *more])
    return data


def unpack(body: bytes) -> list[Any]:
    data: list[Any] = msgpack.unpackb(body)
    return data


@KINDS
@settings(often, max_examples=100)  # of each of the 32 kinds
@given(data=st.data())
def test_every_message_survives_the_round_trip(kind: type[Message], data: st.DataObject) -> None:
    message, request_id = data.draw(structs(kind)), data.draw(request_ids(kind))
    body = body_of(codec.encode(request_id, message))
    assert decode(kind, body) == (request_id, message)

    version, there, op, payload = unpack(body)
    assert (version, there, op) == (PROTOCOL_VERSION, request_id, kind.op)
    assert agrees(message, payload), (message, payload)

    assert decode(kind, pack(request_id, op, plain(message))) == (request_id, message)


@KINDS
@settings(often, max_examples=20)
@given(data=st.data())
def test_one_tail_serves_many_request_ids(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(structs(kind))
    tail = codec.encode_tail(message)
    drawn = data.draw(st.integers(0, (1 << 64) - 1))
    for request_id in (0, 1, 127, 128, 255, 256, 65_535, 65_536, 1 << 32, drawn):
        assert codec.frame(request_id, tail) == codec.encode(request_id, message)


@pytest.mark.parametrize(
    ("message", "payload"),
    [
        (Status(), {}),
        (Heartbeat(acknowledged=300), {"acknowledged": 300}),
        (HelloAdmin(client="rdzv"), {"client": "rdzv"}),
        (
            KvSet(fence=Fence(7, 3), key="k\n\u00e4", value=b"\0\xff"),
            {"fence": [7, 3], "key": "k\n\u00e4", "value": b"\0\xff"},
        ),
        (KvAdd(fence=Fence(1, 1), key="n", delta=-5), {"fence": [1, 1], "key": "n", "delta": -5}),
        (KvValue(value=b""), {"value": b""}),
        (Notice(message="hear"), {"message": "hear"}),
    ],
)
def test_frames_are_what_msgpack_expects(message: Message, payload: dict[str, object]) -> None:
    request_id = 0 if isinstance(message, Notice) else 9
    body = body_of(codec.encode(request_id, message))
    assert unpack(body) == [PROTOCOL_VERSION, request_id, message.op, payload]
    assert decode(type(message), pack(request_id, message.op, payload)) == (request_id, message)


def test_a_body_of_any_length_has_it_before_it() -> None:
    lengths = set()
    for size in (*range(600), *range(65_200, 65_600)):
        message = KvValue(value=b"v" * size)
        body = body_of(codec.encode(7, message))
        assert codec.decode_answer(body) == (7, message)
        lengths.add(len(body))
    assert {255, 256, 257, 65_535, 65_536} <= lengths


def test_fields_that_were_not_given_are_not_sent() -> None:
    hello = HelloNode(run="llama", node_id="a", name="a", incarnation=bytes(16))
    sent = unpack(body_of(codec.encode(1, hello)))[3]
    assert set(sent) == {"run", "node_id", "name", "incarnation"}


def test_fields_of_a_newer_version_are_ignored() -> None:
    new = {"acknowledged": 3, "mood": {"deep": [1, 2.5, None, b"x"]}, "": 1}
    assert codec.decode_request(pack(5, "heartbeat", new)) == (5, Heartbeat(acknowledged=3))
    assert codec.decode_answer(pack(5, "alive", new)) == (5, Alive())


def test_elements_behind_the_envelope_and_in_arrays_are_ignored() -> None:
    assert codec.decode_request(pack(5, "status", {}, "signature", 2)) == (5, Status())
    longer = {"fence": [1, 2, "more"], "key": "k", "delta": 1}
    assert codec.decode_request(pack(5, "kv_add", longer)) == (
        5,
        KvAdd(fence=Fence(1, 2), key="k", delta=1),
    )


OTHER_VERSIONS = [0, 2, 250, -1, 1 << 40]


@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_the_version_in_a_frame_does_not_matter_before_one_is_agreed_on(version: int) -> None:
    assert codec.decode_request(msgpack.packb([version, 5, "status", {}])) == (5, Status())
    assert codec.decode_answer(msgpack.packb([version, 5, "alive", {}])) == (5, Alive())


@pytest.mark.parametrize("version", OTHER_VERSIONS)
@pytest.mark.parametrize("payload", [{}, {"acknowledged": "in another version a text"}])
def test_t21_a_frame_of_another_version_than_the_agreed_one_is_refused_whatever_is_in_it(
    version: int, payload: dict[str, object]
) -> None:
    text = f"version {version}, where version {PROTOCOL_VERSION} was agreed on"
    with pytest.raises(MalformedError, match=text) as caught:
        codec.decode_request(msgpack.packb([version, 5, "heartbeat", payload]), agreed=True)
    assert (caught.value.request_id, caught.value.op_known) == (5, True)
    with pytest.raises(MalformedError, match=text) as caught:
        codec.decode_answer(msgpack.packb([version, 5, "alive", payload]), agreed=True)
    assert (caught.value.request_id, caught.value.op_known) == (5, True)


@pytest.mark.parametrize("number", [b"\x01", b"\xcc\x01", b"\xd3" + bytes(7) + b"\x01"])
def test_the_agreed_version_may_be_written_as_msgpack_allows(number: bytes) -> None:
    rest = msgpack.packb([5, "heartbeat", {}])[1:]
    assert codec.decode_request(b"\x94" + number + rest, agreed=True) == (5, Heartbeat())


def test_an_unknown_operation_keeps_its_request_id() -> None:
    for decode_side in (codec.decode_request, codec.decode_answer):
        with pytest.raises(MalformedError) as caught:
            decode_side(pack(77, "barrier\n" + "x" * 100, {"anything": 1}))
        assert caught.value.request_id == 77
        assert not caught.value.op_known
        assert repr("barrier\n")[:-1] in str(caught.value)
        assert "x" * 40 not in str(caught.value)
        assert str(PROTOCOL_VERSION) in str(caught.value)


def test_replies_are_unknown_operations_to_a_server_and_requests_to_a_client() -> None:
    with pytest.raises(MalformedError) as caught:
        codec.decode_request(pack(5, "alive", {}))
    assert not caught.value.op_known
    with pytest.raises(MalformedError) as caught:
        codec.decode_answer(pack(5, "heartbeat", {}))
    assert not caught.value.op_known


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"fence": [1], "key": "k", "delta": 1},
        {"fence": [1, -1], "key": "k", "delta": 1},
        {"fence": [1, 1 << 63], "key": "k", "delta": 1},
        {"fence": {"epoch": 1, "generation": 1}, "key": "k", "delta": 1},
        {"fence": [1, 1], "key": "", "delta": 1},
        {"fence": [1, 1], "key": "k" * 1025, "delta": 1},
        {"fence": [1, 1], "key": b"k", "delta": 1},
        {"fence": [1, 1], "key": "k", "delta": "1"},
        {"fence": [1, 1], "key": "k", "delta": True},
        [[1, 1], "k", 1],
        None,
        "kv_add",
    ],
)
def test_a_bad_payload_keeps_its_request_id(payload: object) -> None:
    with pytest.raises(MalformedError) as caught:
        codec.decode_request(pack(77, "kv_add", payload))
    assert caught.value.request_id == 77
    assert caught.value.op_known
    assert str(caught.value).startswith("bad kv_add: ")


@pytest.mark.parametrize("request_id", [0, -1, -(1 << 63)])
def test_a_request_needs_an_id_above_zero(request_id: int) -> None:
    with pytest.raises(MalformedError) as caught:
        codec.decode_request(pack(request_id, "status", {}))
    assert caught.value.request_id <= 0, "an answer would have no addressee"
    assert str(request_id) in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc0",
        b"\xc1",
        msgpack.packb([]),
        msgpack.packb([1, 5, "status"]),
        msgpack.packb({"version": 1, "request_id": 5, "op": "status", "payload": {}}),
        msgpack.packb(["1", 5, "status", {}]),
        msgpack.packb([1, "5", "status", {}]),
        msgpack.packb([1, 5.5, "status", {}]),
        msgpack.packb([1, None, "status", {}]),
        msgpack.packb([1, 5, b"status", {}]),
        msgpack.packb([1, 5, 7, {}]),
        pack(5, "status", {}) + b"\0",
        pack(5, "status", {})[:-1],
    ],
)
def test_a_broken_envelope_has_no_addressee(body: bytes) -> None:
    for decode_side in (codec.decode_request, codec.decode_answer):
        with pytest.raises(MalformedError) as caught:
            decode_side(body)
        assert caught.value.request_id == 0
        assert caught.value.op_known


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("run", ""),
        ("run", "a" * 129),
        ("run", "a\nb"),
        ("run", "\x1b[31mred"),
        ("run", "a\x7f"),
        ("run", "a\x85b"),
        ("run", "a\u2028b"),
        ("node_id", "a\0"),
        ("name", "tab\tbed"),
        ("client", "c" * 129),
        ("client", "c\r"),
    ],
)
def test_names_that_would_spoil_a_terminal_or_a_table_are_refused(field: str, text: str) -> None:
    fields = {"run": "r", "node_id": "n", "name": "n", "incarnation": bytes(16)} | {field: text}
    with pytest.raises(MalformedError) as caught:
        codec.decode_request(pack(3, "hello_node", fields))
    assert caught.value.request_id == 3
    assert field in str(caught.value)
    assert text not in str(caught.value) or not text, "the text itself is not repeated"


def test_a_name_that_ends_in_a_newline_is_refused() -> None:
    fields = {"run": "llama\n", "node_id": "n", "name": "n", "incarnation": bytes(16)}
    with pytest.raises(MalformedError):
        codec.decode_request(pack(3, "hello_node", fields))


def test_names_may_hold_every_other_character_up_to_their_limit() -> None:
    name = "pod-\u00e4\u6f22\U0001f600 " + "x" * 120
    assert len(name) == 128
    fields = {"run": name, "node_id": name, "name": name, "incarnation": bytes(16)}
    _, hello = codec.decode_request(pack(3, "hello_node", fields))
    assert isinstance(hello, HelloNode)
    assert hello.name == name
