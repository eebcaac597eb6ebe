"""When to try, when to complain, when to give up."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_client import backoff
from rdzv_client.reconnect import COMPLAIN_S, Reconnect
from tests.unit.proto.strategies import often

START = 1000.0


def new(seed: int = 1) -> Reconnect:
    return Reconnect(START, random.Random(seed), connect_timeout_s=60.0, reconnect_timeout_s=30.0)


def met(seed: int = 1) -> Reconnect:
    reconnect = new(seed)
    reconnect.attempt_at = None
    reconnect.met()
    return reconnect


def due(reconnect: Reconnect) -> float:
    assert reconnect.attempt_at is not None
    return reconnect.attempt_at


def test_the_first_attempt_is_due_at_once_and_patient() -> None:
    reconnect = new()
    assert reconnect.attempt_at == START
    assert reconnect.attempt_s == backoff.CONNECT_S


def test_one_that_is_used_late_has_all_of_its_patience() -> None:
    reconnect = new()
    reconnect.begin(START + 500)
    assert reconnect.attempt_at == START + 500
    assert reconnect.give_up_at == START + 560
    assert reconnect.complain_at == START + 500 + COMPLAIN_S


def test_after_a_break_the_quick_attempts_start_at_0_01_03_and_06_seconds() -> None:
    reconnect = met()
    reconnect.broke(START)
    starts = []
    for _ in range(4):
        starts.append(round(due(reconnect) - START, 6))
        assert reconnect.attempt_s == backoff.QUICK_CONNECT_S
        reconnect.failed(due(reconnect))
    assert starts == [0.0, 0.1, 0.3, 0.6]
    assert reconnect.attempt_s == backoff.CONNECT_S, "then it is no lost packet any more"


def test_a_quick_attempt_that_took_its_whole_time_does_not_go_back_in_time() -> None:
    reconnect = met()
    reconnect.broke(START)
    reconnect.failed(START + 0.29)
    assert due(reconnect) == START + 0.29
    reconnect.failed(START + 0.59)
    assert due(reconnect) == START + 0.59


@often
@given(st.integers(), st.integers(1, 40))
def test_l6_before_the_first_contact_every_pause_is_jittered_within_the_bound(
    seed: int, failures: int
) -> None:
    reconnect = new(seed)
    now = START
    for attempt in range(1, failures + 1):
        reconnect.failed(now)
        bound = min(backoff.CAP_S, backoff.BASE_S * 2.0**attempt)
        assert now <= due(reconnect) <= now + bound
        assert reconnect.attempt_s == backoff.CONNECT_S
        now = due(reconnect)


@often
@given(st.integers(), st.integers(0, 30))
def test_after_the_quick_attempts_the_pauses_are_jittered_within_the_cap(
    seed: int, more: int
) -> None:
    reconnect = met(seed)
    reconnect.broke(START)
    now = START
    for _ in range(4 + more):
        now = due(reconnect)
        reconnect.failed(now)
    assert now <= due(reconnect) <= now + backoff.CAP_S


@often
@given(st.integers(), st.integers(0, 30))
def test_s33_after_a_hello_that_may_have_been_read_the_next_attempt_is_within_the_grace(
    seed: int, more: int
) -> None:
    grace_s = 1.0
    reconnect = met(seed)
    reconnect.broke(START)
    for _ in range(4 + more):
        reconnect.failed(START)
    reconnect.failed(START, unanswered=True)
    assert START <= due(reconnect) <= START + backoff.BACK_CAP_S < START + grace_s


def test_l6_before_the_first_contact_there_is_nothing_to_lose_and_the_pause_is_as_long_as_ever() -> (
    None
):
    one, other = new(), new()
    for _ in range(10):
        one.failed(START)
        other.failed(START, unanswered=True)
    assert due(one) == due(other)


def test_two_clients_do_not_come_back_together() -> None:
    one, two = new(1), new(2)
    for reconnect in (one, two):
        for _ in range(5):
            reconnect.failed(START)
    assert due(one) != due(two)


def test_a_new_contact_makes_the_next_break_quick_again() -> None:
    reconnect = met()
    reconnect.broke(START)
    for _ in range(10):
        reconnect.failed(START + 5)
    reconnect.met()
    reconnect.broke(START + 60)
    assert due(reconnect) == START + 60
    assert reconnect.attempt_s == backoff.QUICK_CONNECT_S


def test_patience_is_that_for_connecting_until_the_first_contact() -> None:
    reconnect = new()
    assert (reconnect.patience_s, reconnect.give_up_at) == (60.0, START + 60)
    reconnect.failed(START + 50)
    assert reconnect.give_up_at == START + 60


def test_patience_is_that_for_reconnecting_after_it_counted_from_the_break() -> None:
    reconnect = met()
    reconnect.broke(START + 500)
    assert (reconnect.patience_s, reconnect.give_up_at) == (30.0, START + 530)
    reconnect.failed(START + 510)
    assert reconnect.give_up_at == START + 530


def test_the_first_complaint_is_due_five_seconds_after_the_break() -> None:
    assert new().complain_at == START + COMPLAIN_S == START + 5
    reconnect = met()
    reconnect.broke(START + 100)
    assert reconnect.complain_at == START + 105


def test_the_next_complaint_is_due_five_seconds_after_the_last() -> None:
    reconnect = new()
    reconnect.failed(START + 5)
    assert reconnect.complain_at == START + 5, "failures do not put it off"
    reconnect.complained(START + 5.5)
    assert reconnect.complain_at == START + 10.5


@often
@given(st.integers(), st.floats(0.001, 60))
def test_l6_a_pause_the_server_asked_for_is_kept_with_half_of_it_as_jitter(
    seed: int, pause_s: float
) -> None:
    reconnect = met(seed)
    reconnect.broke(START)
    reconnect.hold_off(START, pause_s)
    assert START + pause_s <= due(reconnect) <= START + 1.5 * pause_s


def test_a_pause_never_brings_an_attempt_forward() -> None:
    reconnect = met()
    reconnect.broke(START)
    reconnect.attempt_at = START + 50
    reconnect.hold_off(START, 1.0)
    assert due(reconnect) == START + 50


def test_a_pause_plans_no_attempt_where_there_is_none() -> None:
    reconnect = met()
    assert reconnect.attempt_at is None
    reconnect.hold_off(START, 1.0)
    assert reconnect.attempt_at is None


@pytest.mark.parametrize("failures", [0, 3, 100, 5000])
def test_the_next_attempt_is_always_planned(failures: int) -> None:
    reconnect = met()
    reconnect.broke(START)
    for _ in range(failures):
        reconnect.failed(START)
    assert due(reconnect) >= START
