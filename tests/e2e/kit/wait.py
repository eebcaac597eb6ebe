"""Waiting for conditions, with deadlines."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
POLL_S = 0.02


def until(condition: Callable[[], T | None], timeout_s: float, what: str | Callable[[], str]) -> T:
    """Wait until a condition gives something true, and return that.

    Args:
        condition: asked again and again.
        timeout_s: patience.
        what: is waited for; a function is asked at the end, so that it can show a log as it is then.

    Raises:
        AssertionError: not within the time; says for what.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {timeout_s:g} s: {told} (last: {value!r})")
        time.sleep(POLL_S)


def stays(condition: Callable[[], object], duration_s: float, what: str) -> None:
    """Watch that a condition holds for a while.

    Raises:
        AssertionError: as soon as it does not.
    """
    deadline = time.monotonic() + duration_s
    while time.monotonic() < deadline:
        value = condition()
        assert value, f"did not stay so for {duration_s:g} s: {what} (last: {value!r})"
        time.sleep(POLL_S)
