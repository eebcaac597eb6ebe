"""T8 and T9: frames and messages that are bombs."""

import struct
from collections.abc import Callable

import pytest

from rdzv_proto import codec, limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.framing import PREAMBLE
from rdzv_proto.messages import Alive, Error, Goodbye, Heartbeat, KvSet, Leave
from tests.e2e.conftest import Cluster
from tests.e2e.kit.gauges import log_grows_slowly, rss_mib
from tests.e2e.kit.hostile import Raw, many
from tests.e2e.kit.pulse import live_run
from tests.e2e.kit.server import Server

C = ErrorCode


def length(claimed: int) -> bytes:
    return struct.pack(">I", claimed)


def _opened(server: Server) -> Raw:
    raw = Raw(server)
    raw.send(PREAMBLE)
    return raw


def _welcome(server: Server) -> Raw:
    return Raw(server).node("attack", "n")


@pytest.mark.parametrize(
    ("opening", "claimed", "limit"),
    [
        (_opened, 2**32 - 1, limits.FRAME_BYTES_MAX_HELLO),
        (_opened, limits.FRAME_BYTES_MAX_HELLO + 1, limits.FRAME_BYTES_MAX_HELLO),
        (_welcome, 2**32 - 1, limits.FRAME_BYTES_MAX),
        (_welcome, limits.FRAME_BYTES_MAX + 1, limits.FRAME_BYTES_MAX),
    ],
    ids=["4 GiB first", "a hello too long", "4 GiB after the hello", "a value too long"],
)
def test_a_frame_is_refused_by_its_length_before_any_of_it_is_read(
    cluster: Cluster, opening: Callable[[Server], Raw], claimed: int, limit: int
) -> None:
    """T8"""
    server = cluster.server()
    with opening(server) as raw:
        raw.send(length(claimed))  # and nothing of the body: the answer comes all the same
        goodbye = raw.goodbye()
    assert goodbye is not None
    assert goodbye.code == ErrorCode.FRAME_TOO_LARGE
    assert str(claimed) in goodbye.message
    assert str(limit) in goodbye.message
    assert server.log_lines("frame_too_large")


def test_large_frames_are_for_values_only(cluster: Cluster) -> None:
    """T8"""
    server = cluster.server()
    with Raw(server).node("attack", "n") as raw:
        padding = codec.encode(7, Leave(kind="failed"))[4:]
        # A leave with an unknown field of 128 KiB in it: a request without values, over 64 KiB.
        body = padding.replace(b"\x81\xa4kind", b"\x82\xa1x\xc6" + length(1 << 17) + b"x" * (1 << 17)
                               + b"\xa4kind")  # fmt: skip
        assert len(body) > limits.FRAME_BYTES_MAX_CONTROL
        raw.send(length(len(body)) + body)
        refused = raw.answer(7)
        assert isinstance(refused, Error)
        assert refused.code == ErrorCode.FRAME_TOO_LARGE
        assert str(limits.FRAME_BYTES_MAX_CONTROL) in refused.message
        raw.good(Heartbeat(), Alive)  # the connection is none the worse
        raw.refused(KvSet(key="k", value=b"x" * (limits.VALUE_BYTES_MAX + 1)))


def test_frame_bombs_hold_no_memory_and_delay_nobody(cluster: Cluster) -> None:
    """T8: a hundred connections that claim 4 GiB, and a hundred that send most of a large frame."""
    server = cluster.server()
    with live_run(cluster, server), log_grows_slowly(server, "frame_too_large"):
        before = rss_mib(server)
        for _ in range(100):
            with _opened(server) as raw:
                raw.send(length(2**32 - 1) + b"x" * 65536)
                raw.goodbye()  # or none: a reset may take the last words along
        with many(lambda: _opened(server), 100) as held:
            part = b"x" * (limits.FRAME_BYTES_MAX_HELLO - 1)
            for raw in held:
                raw.send(length(limits.FRAME_BYTES_MAX_HELLO) + part)
            grown = rss_mib(server) - before
        print(f"{grown:.1f} MiB more")
        assert grown < 3, (
            "one small frame for each that is open, and nothing of those that are closed"
        )


# --- T9 -------------------------------------------------------------------------------------------

HELLO_HEAD = b"\x94\x01\x01\xaahello_node"
"""Version 1, request 1, the operation: what follows is the payload."""

SET_HEAD = b"\x94\x01\x05\xa6kv_set"

ARRAY32, MAP32 = b"\xdd", b"\xdf"
NEST_MAX = 1000


def _in_unknown_field(content: bytes) -> bytes:
    """A payload with the content in a field that nobody knows: it is skipped, not built."""
    return b"\x81\xa1?" + content


SMALL_BOMBS: dict[str, bytes] = {
    "an array of 4 billion": ARRAY32 + b"\xff" * 4,
    "an array of 100 million": HELLO_HEAD + ARRAY32 + struct.pack(">I", 100_000_000),
    "a map of 4 billion": HELLO_HEAD + MAP32 + b"\xff" * 4,
    "800 nested arrays of 16384": (ARRAY32 + struct.pack(">I", 16_384)) * 800,
    "the same as a payload": HELLO_HEAD + (ARRAY32 + struct.pack(">I", 16_384)) * 800,
    "the same in an unknown field": HELLO_HEAD
    + _in_unknown_field((ARRAY32 + struct.pack(">I", 16_384)) * 800),
    "nested 1100 deep": HELLO_HEAD + b"\x91" * 1100 + b"\xc0",
    "nested 3000 deep in an unknown field": HELLO_HEAD
    + _in_unknown_field(b"\x91" * 3000 + b"\xc0"),
    "nested 1000 deep in an unknown field": HELLO_HEAD
    + _in_unknown_field(b"\x91" * 1000 + b"\xc0"),
    "a frame of empty arrays": HELLO_HEAD + b"\xdc\x0f\x00" + b"\x90" * 0xF00,
    "a map with integer keys": HELLO_HEAD + b"\x82\x01\x02\x03\x04",
    "a map with array keys": HELLO_HEAD + b"\x81\x91\x01\x02",
    "bad UTF-8": HELLO_HEAD + b"\x81\xa3run\xa2\xff\xfe",
    "an extension": HELLO_HEAD + b"\xd4\x01\x00",
    "an extension as a field": HELLO_HEAD + b"\x81\xa3run\xc7\x04\x05abcd",
    "a bad timestamp": HELLO_HEAD + b"\x81\xa3run\xc7\x0c\xff" + b"\xff" * 12,
    "NaN as a duration": HELLO_HEAD + b"\x81\xa8lease_ms\xcb\x7f\xf8" + b"\0" * 6,
    "a string of 4 GiB": HELLO_HEAD + b"\x81\xa3run\xdb\xff\xff\xff\xff",
    "bytes of 4 GiB": HELLO_HEAD + b"\x81\xabincarnation\xc6\xff\xff\xff\xff",
    "an operation of 4 GiB": b"\x94\x01\x01\xdb\xff\xff\xff\xff",
    "a number beyond 64 bits": b"\x94\x01\xcf" + b"\xff" * 8 + b"\xaahello_node\x80",
    "a negative request id": b"\x94\x01\xff\xaahello_node\x80",
    "nothing at all": b"",
    "trailing bytes": codec.encode(1, Heartbeat())[4:] + b"\x00" * 100,
    "only nils": b"\xc0" * 4000,
}
"""Bodies that fit before the hello. SEMANTICS 3.3, where what other decoders make of them is measured."""

LARGE_BOMBS: dict[str, bytes] = {
    "a megabyte of empty arrays": SET_HEAD
    + ARRAY32
    + struct.pack(">I", 1 << 20)
    + b"\x90" * (1 << 20),
    "the same in an unknown field": SET_HEAD
    + _in_unknown_field(ARRAY32 + struct.pack(">I", 1 << 20) + b"\x90" * (1 << 20)),
    "a map of 150,000 keys": SET_HEAD
    + MAP32
    + struct.pack(">I", 150_000)
    + b"".join(b"\xa5%05x\xc0" % i for i in range(150_000)),
    "a list of a million keys": b"\x94\x01\x05\xa7kv_wait\x81\xa4keys"
    + ARRAY32
    + struct.pack(">I", 1_000_000)
    + b"\xa0" * 1_000_000,
    "nested a million deep": SET_HEAD + b"\x91" * 1_000_000,
    "nested a million deep in an unknown field": SET_HEAD + _in_unknown_field(b"\x91" * 1_000_000),
}
"""Bodies that fit after the hello only."""


def _bomb(raw: Raw, body: bytes) -> None:
    """Send it: the connection is closed, or the error has an address, and then it goes on."""
    raw.send(length(len(body)) + body)
    frame = raw.next()
    message = None if frame is None else frame[1]
    if message is not None:
        assert isinstance(message, Goodbye | Error), message
        assert message.code in (C.MALFORMED, C.UNSUPPORTED, C.FRAME_TOO_LARGE, C.NOT_A_MEMBER)


def test_bombs_before_the_hello_are_refused_and_hold_nothing(cluster: Cluster) -> None:
    """T9"""
    server = cluster.server()
    with live_run(cluster, server), log_grows_slowly(server, "malformed_request"):
        before = rss_mib(server)
        for name, body in SMALL_BOMBS.items():
            assert len(body) <= limits.FRAME_BYTES_MAX_HELLO, name
            for _ in range(4):
                with _opened(server) as raw:
                    _bomb(raw, body)
        with many(lambda: _opened(server), 20) as held:
            for raw in held:
                raw.send(length(4096) + SMALL_BOMBS["800 nested arrays of 16384"][:250])
            grown = rss_mib(server) - before
        print(f"{grown:.1f} MiB more")
        assert grown <= 4
        assert server.runs().keys() == {"live"}


def test_bombs_after_the_hello_are_refused_and_hold_nothing(cluster: Cluster) -> None:
    """T9"""
    server = cluster.server()
    with live_run(cluster, server):
        for name, body in LARGE_BOMBS.items():
            assert len(body) <= limits.FRAME_BYTES_MAX, name
            with Raw(server).node("attack", name) as raw:
                _bomb(raw, body)
        before = rss_mib(server)  # its buffers have their size now
        for body in LARGE_BOMBS.values():
            with Raw(server).node("attack", "again") as raw:
                for _ in range(3):
                    _bomb(raw, body)
        grown = rss_mib(server) - before
        print(f"{grown:.1f} MiB more")
        assert grown <= 4


def test_a_field_that_comes_twice_and_a_field_that_nobody_knows_do_no_harm(
    cluster: Cluster,
) -> None:
    """T9: the last one counts, and what is unknown is skipped (S34)."""
    server = cluster.server()
    with Raw(server).node("twice", "n") as raw:
        body = SET_HEAD + b"\x84\xa3key\xa1a\xa3key\xa1b\xa1?\xc0\xa5value\xc4\x01v"
        raw.send(length(len(body)) + body)
        raw.answer(5)
        assert server.inside("twice").run_keys == 1
