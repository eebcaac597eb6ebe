"""Ids that were taken back, and who hears of it."""

import threading

import pytest

from rdzv_client.revocations import KEPT_MAX, Revocations, RevokedFlag, on_a_thread
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Fence, NcclRevoked

FENCE = Fence(7, 1)
KEY = (FENCE, "dp", 0)


def push(group: str = "dp", attempt: int = 0, message: str = "rank 1 failed") -> NcclRevoked:
    return NcclRevoked(
        fence=FENCE, group=group, attempt=attempt, code=ErrorCode.ID_FAILED, message=message
    )


def test_listeners_of_that_communicator_hear_of_it_once() -> None:
    revocations, heard, others = Revocations(), list[str](), list[str]()
    revocations.listen(KEY, heard.append)
    revocations.listen((FENCE, "dp", 1), others.append)
    revocations.take(push())
    revocations.take(push())
    assert heard == ["rank 1 failed"]
    assert others == []


def test_a_push_that_overtakes_the_caller_is_kept_for_it() -> None:
    revocations, heard = Revocations(), list[str]()
    revocations.take(push())
    revocations.listen(KEY, heard.append)
    assert heard == ["rank 1 failed"]


def test_what_nobody_asks_for_is_kept_within_a_bound() -> None:
    revocations, heard = Revocations(), list[str]()
    for attempt in range(KEPT_MAX + 1):
        revocations.take(push(attempt=attempt))
    revocations.listen(KEY, heard.append)
    revocations.listen((FENCE, "dp", KEPT_MAX), heard.append)
    assert heard == ["rank 1 failed"]


def test_one_who_forgot_hears_nothing() -> None:
    revocations, heard, other = Revocations(), list[str](), list[str]()
    first, second = heard.append, other.append
    revocations.listen(KEY, first)
    revocations.listen(KEY, second)
    revocations.forget(KEY, first)
    revocations.take(push())
    assert heard == []
    assert other == ["rank 1 failed"]


def test_the_first_reason_stays_and_late_listeners_get_it() -> None:
    flag, heard = RevokedFlag(lambda call: call()), list[str]()
    assert not flag
    flag.when_set(heard.append)
    flag.set("first")
    flag.set("second")
    flag.when_set(heard.append)
    assert flag
    assert heard == ["first", "first"]


def test_a_listener_that_raises_is_logged_and_harms_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flag, heard = RevokedFlag(lambda call: call()), list[str]()

    def broken(why: str) -> None:
        raise ValueError("my callback")

    flag.when_set(broken)
    flag.when_set(heard.append)
    flag.set("why")
    assert heard == ["why"]
    assert "my callback" in caplog.text


def test_a_listener_runs_on_a_thread_of_its_own() -> None:
    done, names = threading.Event(), list[str]()

    def listener(why: str) -> None:
        names.append(threading.current_thread().name)
        done.set()

    flag = RevokedFlag(on_a_thread)
    flag.when_set(listener)
    flag.set("why")
    assert done.wait(10)
    assert names == ["rdzv-revoked"]
