"""Bytes to frames, and what the first bytes of a connection are."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_proto import PROTOCOL_VERSION
from rdzv_proto.framing import (
    PREAMBLE,
    PREAMBLE_BYTES,
    FrameBuffer,
    FrameTooLargeError,
    Opening,
    sniff,
)
from tests.unit.proto.strategies import often

OPENINGS = {
    Opening.RDZV: PREAMBLE,
    Opening.TLS: bytes.fromhex("16030100c8010000c40303"),
    Opening.TCPSTORE: bytes.fromhex("00cef7853c" + "01000000"),
    Opening.SSH: b"SSH-2.0-OpenSSH_9.6\r\n",
    Opening.UNKNOWN: b"\xffnonsense",
}
HTTP = (b"GET / HTTP/1.1\r\n", b"HEAD / HTTP/1.1\r\n", b"POST /api HTTP/1.1\r\n")
CASES = [*OPENINGS.items(), *((Opening.HTTP, text) for text in HTTP)]


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(body)) + body for body in bodies)


def drain(buffer: FrameBuffer) -> list[bytes]:
    bodies = []
    while (body := buffer.pop()) is not None:
        bodies.append(body)
    return bodies


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in pieces."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


BODIES = [b"", b"a", b"bc" * 40, b"\0" * 300]


def test_frames_fed_as_one_piece_come_out_in_order() -> None:
    buffer = FrameBuffer(1000)
    buffer.feed(framed(*BODIES))
    assert drain(buffer) == BODIES
    assert len(buffer) == 0


def test_frames_fed_byte_by_byte_come_out_as_soon_as_they_are_complete() -> None:
    buffer = FrameBuffer(1000)
    for body in BODIES:
        *head, last = framed(body)
        for byte in head:
            buffer.feed(bytes([byte]))
            assert buffer.pop() is None
        buffer.feed(bytes([last]))
        assert buffer.pop() == body
        assert buffer.pop() is None


@often
@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(0, 1000), max_size=12))
def test_frames_do_not_depend_on_how_the_stream_was_cut(
    bodies: list[bytes], places: list[int]
) -> None:
    buffer = FrameBuffer(50)
    got = []
    for piece in cut(framed(*bodies), places):
        buffer.feed(piece)
        got += drain(buffer)
    assert got == bodies
    assert len(buffer) == 0


def test_length_counts_what_was_not_handed_out() -> None:
    buffer = FrameBuffer(1000)
    buffer.feed(framed(b"abc") + framed(b"defg")[:5])
    assert len(buffer) == 7 + 5
    assert buffer.pop() == b"abc"
    assert len(buffer) == 5


def test_a_body_of_exactly_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    buffer = FrameBuffer(10)
    buffer.feed(framed(b"x" * 10))
    assert buffer.pop() == b"x" * 10
    buffer.feed(framed(b"x" * 11))
    with pytest.raises(FrameTooLargeError) as caught:
        buffer.pop()
    assert (caught.value.frame_bytes, caught.value.frame_bytes_max) == (11, 10)
    assert "11 bytes" in str(caught.value)
    assert "10 bytes" in str(caught.value)


def test_a_length_that_is_too_large_is_refused_before_any_of_its_body_came() -> None:
    buffer = FrameBuffer(4096)
    buffer.feed(framed(b"good") + struct.pack(">I", 0x80000000))
    assert buffer.pop() == b"good"
    with pytest.raises(FrameTooLargeError) as caught:
        buffer.pop()
    assert caught.value.frame_bytes == 0x80000000


def test_a_refused_length_stays_refused() -> None:
    buffer = FrameBuffer(10)
    buffer.feed(struct.pack(">I", 11) + framed(b"abc"))
    for _ in range(3):
        with pytest.raises(FrameTooLargeError):
            buffer.pop()


def test_the_limit_may_be_raised_between_frames() -> None:
    buffer = FrameBuffer(4)
    buffer.feed(framed(b"abcd", b"x" * 100))
    assert buffer.pop() == b"abcd"
    buffer.frame_bytes_max = 100
    assert buffer.pop() == b"x" * 100


def test_bodies_are_copies_that_later_input_does_not_change() -> None:
    buffer = FrameBuffer(100)
    buffer.feed(framed(b"first"))
    first = buffer.pop()
    buffer.feed(framed(b"other"))
    assert buffer.pop() == b"other"
    assert first == b"first"


def test_the_preamble_is_eight_bytes_with_the_protocol_version() -> None:
    assert bytes((*b"RDZV", PROTOCOL_VERSION, 0, 0, 0)) == PREAMBLE
    assert len(PREAMBLE) == PREAMBLE_BYTES == 8


@pytest.mark.parametrize(("kind", "data"), CASES)
def test_the_opening_of_each_protocol_is_recognised(kind: Opening, data: bytes) -> None:
    assert sniff(data) is kind


@pytest.mark.parametrize(("kind", "data"), CASES)
def test_every_prefix_of_an_opening_is_undecided_or_right(kind: Opening, data: bytes) -> None:
    kinds = [sniff(data[:length]) for length in range(len(data) + 1)]
    assert kinds[0] is Opening.INCOMPLETE
    assert set(kinds) <= {Opening.INCOMPLETE, kind}
    assert kinds == sorted(kinds, key=lambda found: found is kind), "decided, then undecided again"


@often
@given(
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from([data for _, data in CASES]).flatmap(
            lambda data: st.builds(
                lambda keep, rest: data[:keep] + rest, st.integers(0, 9), st.binary(max_size=8)
            )
        ),
    )
)
def test_once_decided_more_bytes_never_change_the_answer(data: bytes) -> None:
    decided: Opening | None = None
    for length in range(len(data) + 1):
        found = sniff(data[:length])
        if decided is not None:
            assert found is decided
        elif found is not Opening.INCOMPLETE:
            decided = found


def test_the_preamble_counts_only_when_it_is_whole() -> None:
    for length in range(PREAMBLE_BYTES):
        assert sniff(PREAMBLE[:length]) is Opening.INCOMPLETE
    assert sniff(PREAMBLE + b"more") is Opening.RDZV


def test_another_protocol_version_is_still_rdzv() -> None:
    """So that the server can say which version it wants."""
    assert sniff(b"RDZV\x63\0\0\0") is Opening.RDZV


def test_rubbish_is_unknown_at_its_first_byte() -> None:
    assert sniff(b"\xff") is Opening.UNKNOWN


@given(
    bodies=st.lists(st.binary(max_size=40), max_size=8),
    cuts=st.lists(st.integers(1, 50), max_size=12),
)
def test_split_gives_what_feed_and_pop_give(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    buffer, at = FrameBuffer(40), 0
    got: list[bytes] = []
    for cut in [*cuts, len(stream)]:
        got += buffer.split(stream[at : at + cut])
        at += cut
    assert got == bodies
    assert len(buffer) == 0


def test_split_sees_the_limit_before_each_body_and_refuses_a_longer_one() -> None:
    buffer = FrameBuffer(4)
    bodies = buffer.split(b"\0\0\0\4abcd" + b"\0\0\0\x05abcde" + b"\0\0\0\x06")
    assert next(bodies) == b"abcd"
    buffer.frame_bytes_max = 5
    assert next(bodies) == b"abcde"
    with pytest.raises(FrameTooLargeError):
        next(bodies)


def test_single_gives_the_body_of_exactly_one_frame_and_takes_nothing_else() -> None:
    buffer = FrameBuffer(10)
    assert buffer.single(framed(b"0123456789")) == b"0123456789"
    assert buffer.single(framed(b"")) == b""
    for data in (
        b"",
        b"\0\0",
        framed(b"12") + framed(b"34"),
        framed(b"12")[:-1],
        framed(b"1") + b"\0",
    ):
        assert buffer.single(data) is None
    assert buffer.single(framed(b"01234567890")) is None, "too long: `split` refuses it"
    assert len(buffer) == 0


def test_single_leaves_input_to_split_while_something_is_left_over() -> None:
    buffer = FrameBuffer(10)
    frame = framed(b"1234")
    assert list(buffer.split(frame + frame[:3])) == [b"1234"]
    assert buffer.single(frame) is None
