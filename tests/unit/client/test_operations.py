"""Requests and how to read their replies, without any waiting."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_client import operations
from rdzv_client.errors import Fenced, InternalServerError, RunClosed
from rdzv_client.operations import Data, expect
from rdzv_client.session import Session
from rdzv_proto import codec
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Done,
    Error,
    Fence,
    HelloAdmin,
    KvAdd,
    KvGet,
    KvMultiGet,
    KvMultiSet,
    KvSet,
    KvValue,
    KvWait,
)
from tests.unit.client.driver import Driver
from tests.unit.proto.strategies import often

FENCE = Fence(7, 1)


def test_the_reply_that_was_expected_is_returned() -> None:
    assert expect(KvValue(value=b"v"), KvValue) == KvValue(value=b"v")


def test_an_error_reply_is_raised() -> None:
    with pytest.raises(Fenced, match="a newer process"):
        expect(Error(code=ErrorCode.FENCED, message="a newer process"), Done)


def test_a_reply_of_another_kind_is_a_fault_of_the_server() -> None:
    with pytest.raises(InternalServerError, match="answered with done instead of kv_value"):
        expect(Done(), KvValue)


def test_an_error_can_say_which_server_told_it() -> None:
    driver = Driver()
    driver.welcome()
    error = operations.located(RunClosed("it is closed", "Use another."), driver.session)
    assert type(error) is RunClosed
    assert error.message == "it is closed (server host:29500, instance i1)"
    assert error.action == "Use another."


def test_before_any_contact_only_the_address_is_known() -> None:
    session = Session(HelloAdmin(), random.Random(1), 0.0, where="host:1")
    assert operations.located(RunClosed("x"), session).message == "x (server host:1)"


@pytest.mark.parametrize(
    ("value", "stored"), [("\u00e4", b"\xc3\xa4"), (b"\0\xff", b"\0\xff"), (bytearray(b"x"), b"x")]
)
def test_text_is_stored_as_utf8_and_bytes_as_they_are(value: Data, stored: bytes) -> None:
    assert operations.to_bytes(value) == stored
    assert type(operations.to_bytes(value)) is bytes


def test_requests_carry_the_fence_and_milliseconds() -> None:
    assert operations.kv_set(FENCE, "k", "v") == KvSet(fence=FENCE, key="k", value=b"v")
    assert operations.kv_get(FENCE, "k", 1.5) == KvGet(fence=FENCE, key="k", timeout_ms=1500)
    assert operations.kv_add(FENCE, "k", -2) == KvAdd(fence=FENCE, key="k", delta=-2)
    keys = iter(["a", "b"])
    assert operations.kv_wait(FENCE, keys, 2) == KvWait(
        fence=FENCE, keys=["a", "b"], timeout_ms=2000
    )
    assert operations.kv_multi_get(FENCE, ("a", "b"), 0) == KvMultiGet(fence=FENCE, keys=["a", "b"])
    values = ("x", b"y")
    assert operations.kv_multi_set(FENCE, ["a", "b"], values) == KvMultiSet(
        fence=FENCE, keys=["a", "b"], values=[b"x", b"y"]
    )


def test_a_negative_patience_is_none() -> None:
    assert operations.kv_get(FENCE, "k", -1).timeout_ms == 0


@often
@given(st.text(max_size=600), st.none() | st.integers(-(1 << 63), (1 << 63) - 1))
def test_whatever_a_leave_says_the_server_can_read(detail: str, exit_code: int | None) -> None:
    leave = operations.leave("failed", detail, exit_code)
    assert codec.decode_request(codec.encode(1, leave)[4:]) == (1, leave)


def test_the_detail_of_a_leave_is_one_printable_line() -> None:
    leave = operations.leave("failed", "Traceback:\n\tboom\udc80 \x1b[31m" + "x" * 1000, 7)
    assert leave.detail.startswith("Traceback:  boom   [31mxxx")
    assert len(leave.detail) == 512
    assert (leave.kind, leave.exit_code) == ("failed", 7)


def test_the_client_waits_longer_than_the_server() -> None:
    """Otherwise its own timeout would hide which keys are missing."""
    assert operations.SLACK_S > 0
    assert operations.OPERATION_S > operations.SLACK_S
