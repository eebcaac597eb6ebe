"""Whatever the bytes are, decoding gives a message or `MalformedError`, and nothing else."""

import contextlib
import random
import struct

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_proto import codec, limits
from rdzv_proto.codec import MalformedError
from rdzv_proto.messages import Message
from tests.unit.proto import golden
from tests.unit.proto.strategies import often

BODIES = [bytes.fromhex(example["hex"])[4:] for example in golden.load()]
DEEP = b"\x91" * 5000 + b"\xc0"
LIARS = [
    head + struct.pack(">I", claim)
    for head in (b"\xdb", b"\xc6", b"\xdd", b"\xdf", b"\xc9")  # str, bin, array, map, ext
    for claim in (1 << 31, (1 << 32) - 1)
]


def verdict(body: bytes) -> Message | MalformedError:
    """What both sides make of a body; any other exception is a failure."""
    result: Message | MalformedError
    with contextlib.suppress(MalformedError):
        codec.decode_answer(body)
    try:
        _, result = codec.decode_request(body)
    except MalformedError as error:
        result = error
    else:
        codec.encode(1, result)  # what was understood can be passed on
    return result


def in_field(raw: bytes, field: bytes = b"key") -> bytes:
    """A `kv_add` request with raw bytes as one field's value."""
    fields = {b"fence": b"\x92\x01\x01", b"key": b"\xa1k", b"delta": b"\x01"} | {field: raw}
    pairs = b"".join(bytes([0xA0 + len(k)]) + k + v for k, v in fields.items())
    return b"\x94\x01\x05\xa6kv_add" + bytes([0x80 + len(fields)]) + pairs


@often
@given(st.binary(max_size=200))
def test_random_bytes(body: bytes) -> None:
    verdict(body)


@often
@given(st.binary(max_size=60))
def test_random_bytes_as_payload_keep_the_request_id(payload: bytes) -> None:
    result = verdict(b"\x94\x01\x05\xa6kv_add" + payload)
    if isinstance(result, MalformedError):
        assert result.request_id in (0, 5)


@often
@given(st.sampled_from(BODIES), st.integers(0, 1 << 32))
def test_mutated_frames(body: bytes, seed: int) -> None:
    rng = random.Random(seed)
    mutated = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(mutated) + 1)
        match rng.randrange(4):
            case 0:
                mutated[place : place + rng.randint(1, 5)] = b""
            case 1:
                mutated[place:place] = rng.randbytes(rng.randint(1, 5))
            case 2:
                mutated[place : place + 1] = rng.randbytes(1)
            case _:
                donor = rng.choice(BODIES)
                start = rng.randrange(len(donor))
                mutated[place : place + 8] = donor[start : start + 8]
    verdict(bytes(mutated))


@often
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats()
        | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
        max_leaves=20,
    ),
    st.sampled_from(["kv_add", "join", "hello_node", "welcome", "runs", "error", "view"]),
)  # fmt: skip
def test_well_formed_data_of_the_wrong_shape(payload: object, op: str) -> None:
    verdict(msgpack.packb([1, 5, op, payload]))


@pytest.mark.parametrize(
    "body",
    [
        DEEP,
        b"\x94\x01\x05\xa6status" + DEEP,
        in_field(DEEP),
        in_field(DEEP, b"fence"),
        b"\x81\xa1k" * 5000 + b"\xc0",
    ],
)
def test_nesting_5000_deep_is_malformed(body: bytes) -> None:
    assert isinstance(verdict(body), MalformedError)


ARRAY, MAP = b"\x91", b"\x81\xa1k"


@pytest.mark.parametrize("nest", [ARRAY, MAP], ids=["arrays", "maps"])
def test_nesting_in_an_unknown_field_is_ignored_or_malformed_but_never_fatal(nest: bytes) -> None:
    """How deep it is skipped is the interpreter's own limit, which Python 3.13 raised."""
    shallow = in_field(nest * 50 + b"\xc0", b"unknown")
    assert isinstance(verdict(shallow), Message)
    verdict(in_field(nest * 5000 + b"\xc0", b"unknown"))
    fills_a_frame = in_field(nest * (limits.FRAME_BYTES_MAX // len(nest)) + b"\xc0", b"unknown")
    assert isinstance(verdict(fills_a_frame), MalformedError)


@pytest.mark.parametrize("liar", LIARS)
def test_a_length_of_gigabytes_is_malformed_wherever_it_stands(liar: bytes) -> None:
    bodies = [liar, b"\x94\x01\x05" + liar, b"\x94\x01\x05\xa6status" + liar]
    bodies += [in_field(liar, field) for field in (b"key", b"fence", b"delta", b"unknown")]
    for body in bodies:
        assert isinstance(verdict(body), MalformedError)


def test_bad_utf8_is_malformed_in_a_value_an_operation_and_a_field_name() -> None:
    for bad in (b"\xa2\xff\xfe", b"\xa2\xc3\x28", b"\xa3\xed\xa0\x80", b"\xa1\x80"):
        assert isinstance(verdict(in_field(bad)), MalformedError)
        assert isinstance(verdict(b"\x94\x01\x05" + bad + b"\x80"), MalformedError)
        verdict(b"\x94\x01\x05\xa6status\x81" + bad + b"\x01")


@pytest.mark.parametrize(
    "extension",
    [
        msgpack.packb(msgpack.ExtType(1, b"xyz")),
        b"\xd6\xff\0\0\0\x01",
        msgpack.packb(msgpack.Timestamp(1, 5)),
        b"\xd7\xff" + b"\xff" * 8,
        b"\xc7\x0c\xff" + b"\xff" * 12,
    ],
)
def test_extension_types_are_no_values_of_this_protocol(extension: bytes) -> None:
    for field in (b"key", b"fence", b"delta"):
        assert isinstance(verdict(in_field(extension, field)), MalformedError)
    assert isinstance(verdict(b"\x94\x01" + extension + b"\xa6status\x80"), MalformedError)
    assert isinstance(verdict(b"\x94\x01\x05\xa6status" + extension), MalformedError)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1.5, -0.5, 1e300])
def test_floats_are_malformed_where_numbers_are(number: float) -> None:
    as_field = {
        "kv_add": {"fence": [1, 1], "key": "k", "delta": number},
        "kv_get": {"fence": [1, 1], "key": "k", "timeout_ms": number},
        "heartbeat": {"acknowledged": number},
        "kv_wait": {"fence": [1, number], "keys": ["k"]},
    }
    for op, payload in as_field.items():
        assert isinstance(verdict(msgpack.packb([1, 5, op, payload])), MalformedError)
    assert isinstance(verdict(msgpack.packb([1, number, "status", {}])), MalformedError)


def test_durations_and_counts_out_of_range_are_malformed() -> None:
    for timeout_ms in (-1, 1 << 63, (1 << 64) - 1, 10 * 365 * 24 * 3600 * 1000 + 1):
        payload = {"fence": [1, 1], "key": "k", "timeout_ms": timeout_ms}
        assert isinstance(verdict(msgpack.packb([1, 5, "kv_get", payload])), MalformedError)


def test_integers_of_more_than_64_bits_cannot_even_be_written() -> None:
    with pytest.raises(OverflowError):
        codec.encode(1 << 64, golden.rebuild(golden.load()[0]))


def test_errors_never_carry_control_characters_into_a_log() -> None:
    evil = "\x1b[2J\n\r\x85"
    for op, payload in (
        (evil, {}),
        ("leave", {"kind": evil}),
        ("kv_add", {"fence": [1, 1], "key": "k", "delta": evil}),
        ("hello_node", {evil: 1, "run": evil}),
    ):
        result = verdict(msgpack.packb([1, 5, op, payload]))
        assert isinstance(result, MalformedError)
        assert str(result).isprintable(), repr(str(result))
