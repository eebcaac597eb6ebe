"""The TCPStore wire: every op, in pieces of any size, and every limit."""

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_proto import limits, tcpstore
from rdzv_proto.tcpstore import (
    HELLO,
    Add,
    AnyRequest,
    Append,
    BadRequestError,
    Barrier,
    CancelWait,
    Check,
    CompareSet,
    DeleteKey,
    Get,
    GetNumKeys,
    ListKeys,
    MultiGet,
    MultiSet,
    Parser,
    Ping,
    QueueLen,
    QueuePop,
    QueuePush,
    Set,
    Wait,
)
from tests.unit.proto import tcpstore_bytes as raw

EXAMPLES: dict[str, tuple[bytes, AnyRequest]] = {
    "set": (raw.set_(b"/a", b"1"), Set(b"/a", b"1")),
    "set nothing": (raw.set_(b"", b""), Set(b"", b"")),
    "compare_set": (raw.cas(b"/a", b"1", b"2"), CompareSet(b"/a", b"1", b"2")),
    "get": (raw.get(b"/a"), Get(b"/a")),
    "add": (raw.add(b"/n", -5), Add(b"/n", -5)),
    "add the least number": (raw.add(b"/n", -(1 << 63)), Add(b"/n", -(1 << 63))),
    "check": (raw.check(b"/a", b"/b"), Check((b"/a", b"/b"))),
    "wait": (raw.wait(b"/a"), Wait((b"/a",))),
    "wait for nothing": (raw.wait(), Wait(())),
    "num_keys": (raw.NUM_KEYS, GetNumKeys()),
    "delete": (raw.delete(b"/a"), DeleteKey(b"/a")),
    "append": (raw.append(b"/a", b"x"), Append(b"/a", b"x")),
    "multi_get": (raw.multi_get(b"/a", b"/a"), MultiGet((b"/a", b"/a"))),
    "multi_set": (
        raw.multi_set((b"/a", b"1"), (b"/b", b"")),
        MultiSet((b"/a", b"/b"), (b"1", b"")),
    ),
    "multi_set of nothing": (raw.multi_set(), MultiSet((), ())),
    "cancel": (raw.CANCEL, CancelWait()),
    "ping": (raw.ping(0xFFFFFFFF), Ping(0xFFFFFFFF)),
    "push": (raw.push(b"/q", b"v"), QueuePush(b"/q", b"v")),
    "pop": (raw.pop(b"/q"), QueuePop(b"/q")),
    "length": (raw.length(b"/q"), QueueLen(b"/q")),
    "list_keys": (raw.LIST_KEYS, ListKeys()),
    "barrier": (raw.barrier(b"/b", 4), Barrier(b"/b", 4)),
}
ALL = b"".join(data for data, _ in EXAMPLES.values())
REQUESTS = [request for _, request in EXAMPLES.values()]


def read(*pieces: bytes, hello: bool = True) -> list[AnyRequest]:
    parser, found = Parser(), []
    if hello:
        parser.feed(HELLO)
    for piece in pieces:
        parser.feed(piece)
        while (request := parser.next()) is not None:
            found.append(request)
    return found


@pytest.mark.parametrize(("data", "request_"), EXAMPLES.values(), ids=EXAMPLES)
def test_each_op_is_read(data: bytes, request_: AnyRequest) -> None:
    assert read(data) == [request_]
    assert read(*(bytes((byte,)) for byte in data)) == [request_]


def test_every_op_of_the_wire_has_an_example() -> None:
    assert {request.op for request in REQUESTS} == set(range(1, 19))


def test_requests_behind_each_other_are_all_read() -> None:
    assert read(ALL) == REQUESTS


@given(st.lists(st.integers(0, len(ALL)), max_size=12))
def test_it_does_not_matter_how_the_bytes_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(ALL)]
    assert read(*(ALL[a:b] for a, b in itertools.pairwise(edges))) == REQUESTS


KEYS, VALUES = st.binary(max_size=40), st.binary(max_size=300)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    st.one_of(
        st.tuples(KEYS, VALUES).map(lambda t: (raw.set_(*t), Set(*t))),
        st.tuples(KEYS, VALUES, VALUES).map(lambda t: (raw.cas(*t), CompareSet(*t))),
        st.tuples(KEYS, INT64).map(lambda t: (raw.add(*t), Add(*t))),
        st.lists(KEYS, max_size=6).map(lambda k: (raw.wait(*k), Wait(tuple(k)))),
        st.lists(st.tuples(KEYS, VALUES), max_size=6).map(
            lambda p: (
                raw.multi_set(*p),
                MultiSet(tuple(k for k, _ in p), tuple(v for _, v in p)),
            )
        ),
    ),
    st.integers(1, 64),
)
def test_what_was_written_is_read(example: tuple[bytes, AnyRequest], step: int) -> None:
    data, request = example
    assert read(*(data[i : i + step] for i in range(0, len(data), step))) == [request]


@given(st.binary(max_size=200))
def test_rubbish_is_refused_or_waits_for_more(data: bytes) -> None:
    try:
        found = read(data)
    except BadRequestError:
        return
    assert all(1 <= request.op <= 18 for request in found)


# --- hello ----------------------------------------------------------------------------------------


def test_a_hello_may_come_in_pieces() -> None:
    assert HELLO == raw.HELLO
    pieces = [bytes((byte,)) for byte in HELLO + raw.ping(7)]
    assert read(*pieces, hello=False) == [Ping(7)]


@pytest.mark.parametrize(
    "first", [b"\x0d", b"\x01", b"\x00\xde", b"\x00\xce\xf7\x85\x3d", b"GET / HTTP/1.1\r\n"]
)
def test_anything_but_a_hello_is_refused_at_the_first_wrong_byte(first: bytes) -> None:
    with pytest.raises(BadRequestError, match="hello"):
        read(first, hello=False)


def test_a_second_hello_is_refused() -> None:
    with pytest.raises(BadRequestError, match="second hello"):
        read(HELLO)


@pytest.mark.parametrize("op", [19, 20, 77, 255])
def test_an_unknown_op_is_refused(op: int) -> None:
    with pytest.raises(BadRequestError, match=f"op {op}"):
        read(bytes((op,)))


# --- limits ---------------------------------------------------------------------------------------


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


BEYOND = {
    "key": b"\x03" + u64(limits.STORE_KEY_BYTES_MAX + 1),
    "key in a list": b"\x05" + u64(1) + u64(limits.STORE_KEY_BYTES_MAX + 1),
    "key in pairs": b"\x0b" + u64(1) + u64(limits.STORE_KEY_BYTES_MAX + 1),
    "value": b"\x01" + raw.blob(b"/v") + u64(limits.STORE_VALUE_BYTES_MAX + 1),
    "value in pairs": b"\x0b" + u64(1) + raw.blob(b"/v") + u64(limits.STORE_VALUE_BYTES_MAX + 1),
    "expected value": b"\x02" + raw.blob(b"/v") + u64(limits.STORE_VALUE_BYTES_MAX + 1),
    "queued value": b"\x0e" + raw.blob(b"/v") + u64(limits.STORE_VALUE_BYTES_MAX + 1),
    "keys": b"\x06" + u64(limits.STORE_KEYS_PER_REQUEST_MAX + 1),
    "pairs": b"\x0b" + u64(limits.STORE_KEYS_PER_REQUEST_MAX + 1),
    "keys, as a negative number": b"\x0a" + u64((1 << 64) - 1),
    "key, as a negative number": b"\x08" + u64((1 << 64) - 1),
}


@pytest.mark.parametrize("data", BEYOND.values(), ids=BEYOND)
def test_a_limit_is_checked_as_soon_as_the_number_is_there(data: bytes) -> None:
    with pytest.raises(BadRequestError, match="limit"):
        read(*(bytes((byte,)) for byte in data))


AT_THE_LIMIT = {
    "key": raw.get(b"k" * limits.STORE_KEY_BYTES_MAX),
    "value": raw.set_(b"/v", b"v" * limits.STORE_VALUE_BYTES_MAX),
    "keys": raw.check(*[b""] * limits.STORE_KEYS_PER_REQUEST_MAX),
}


@pytest.mark.parametrize("data", AT_THE_LIMIT.values(), ids=AT_THE_LIMIT)
def test_a_request_at_its_limit_is_read(data: bytes) -> None:
    assert len(read(data)) == 1


def test_one_request_cannot_hold_more_than_a_run_may() -> None:
    value = raw.blob(b"v" * limits.STORE_VALUE_BYTES_MAX)
    parser = Parser()
    parser.feed(HELLO + b"\x0b" + u64(100))
    for _ in range(limits.STORE_REQUEST_BYTES_MAX // limits.STORE_VALUE_BYTES_MAX - 1):
        parser.feed(raw.blob(b"/v") + value)
        assert parser.next() is None
    parser.feed(raw.blob(b"/v") + value)
    with pytest.raises(BadRequestError, match="one request"):
        parser.next()


def test_it_knows_how_much_it_holds() -> None:
    parser = Parser()
    parser.feed(HELLO)
    assert parser.next() is None
    assert len(parser) == 0
    data = raw.multi_set((b"/a", b"1" * 500), (b"/b", b"2" * 500))
    parser.feed(data[:-1])
    assert parser.next() is None
    assert len(parser) >= len(data) - 10
    parser.feed(data[-1:])
    assert parser.next() is not None
    assert parser.next() is None
    assert len(parser) == 0


def test_values_are_in_no_text() -> None:
    for _, request in EXAMPLES.values():
        assert repr(request) == type(request).__name__
    secret = Set(b"/default_pg/0//cuda//0", b"s3cr3t" * 20)
    assert "s3cr3t" not in repr([secret]) + str(secret) + f"{secret!r}"


# --- answers --------------------------------------------------------------------------------------


def test_answers_are_little_endian() -> None:
    assert tcpstore.blob(b"1") == bytes.fromhex("010000000000000031")
    assert tcpstore.number(-1) == b"\xff" * 8
    assert tcpstore.nonce(0x5A83) == bytes.fromhex("835a0000")
    assert (tcpstore.YES, tcpstore.NO) == (b"\x00", b"\x01")
