"""The client's end of the wire by itself; with a session above it: test_session_versions.py."""

import pytest

from rdzv_client.wire import TLS_ALERT, Wire
from rdzv_proto import agreement, codec, limits
from rdzv_proto.codec import MalformedError
from rdzv_proto.framing import PREAMBLE, FrameTooLargeError
from rdzv_proto.messages import Alive, Heartbeat, KvGet, KvValue, Welcome
from tests.nextversion import BOTH, CODEC_2, ONLY_1

WELCOME = Welcome(server="s", instance="i", epoch=1)


def test_it_speaks_what_this_software_speaks_unless_told_otherwise() -> None:
    wire = Wire()
    assert wire.opened() == PREAMBLE
    assert wire.version == agreement.SPOKEN.oldest.version


def test_messages_come_out_as_they_are_complete_with_their_size() -> None:
    wire = Wire()
    frames = codec.encode(7, KvValue(value=b"v")) + codec.encode(8, Alive())
    wire.feed(frames[:-1])
    size = len(codec.encode(7, KvValue(value=b"v"))) - 4
    assert wire.pop() == (size, 7, KvValue(value=b"v"))
    assert wire.pop() is None
    wire.feed(frames[-1:])
    assert wire.pop() == (len(codec.encode(8, Alive())) - 4, 8, Alive())


def test_every_connection_begins_in_the_oldest_version_and_without_old_bytes() -> None:
    wire = Wire(BOTH)
    wire.feed(CODEC_2.encode(1, WELCOME) + b"\0\0")
    assert wire.pop() is not None
    assert wire.version == 2
    assert wire.encode(1, Heartbeat()) == CODEC_2.encode(1, Heartbeat())
    assert wire.opened() == b"RDZV\x01\0\0\0"
    assert wire.version == 1
    wire.feed(codec.encode(2, Alive()))
    assert wire.pop() == (len(codec.encode(2, Alive())) - 4, 2, Alive())


def test_a_length_that_no_server_sends_is_refused() -> None:
    wire = Wire()
    wire.feed((limits.FRAME_BYTES_MAX_CLIENT + 1).to_bytes(4, "big"))
    with pytest.raises(FrameTooLargeError):
        wire.pop()


def test_a_version_out_of_range_is_no_welcome() -> None:
    wire = Wire(ONLY_1)
    wire.feed(CODEC_2.encode(1, WELCOME))
    with pytest.raises(
        MalformedError, match="chose protocol version 2; this client speaks version 1"
    ):
        wire.pop()


def test_t21_behind_the_welcome_a_frame_of_another_version_is_refused() -> None:
    wire = Wire(BOTH)
    wire.opened()
    wire.feed(codec.encode(1, Alive()) + CODEC_2.encode(2, WELCOME) + CODEC_2.encode(3, Alive()))
    assert [wire.pop() is not None for _ in range(3)] == [True] * 3
    wire.feed(codec.encode(4, Alive()))
    with pytest.raises(MalformedError, match="version 1, where version 2 was agreed on"):
        wire.pop()


def test_what_both_versions_have_is_never_lacking() -> None:
    assert Wire(BOTH).lacking(KvGet(key="k"), "h:1") is None


def test_a_tls_alert_is_told_from_other_rubbish() -> None:
    wire, error = Wire(), MalformedError("rubbish")
    wire.feed(TLS_ALERT + b"\0")
    assert wire.strange("h:1", error) == "h:1 speaks TLS; this client was not told to (tls_ca)"
    other = "h:1 does not speak the rdzv protocol (rubbish)"
    wire.opened()
    for data in (codec.encode(8, Alive()), TLS_ALERT):  # only the first bytes say what it is
        wire.feed(data)
        assert wire.strange("h:1", error) == other
