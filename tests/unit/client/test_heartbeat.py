"""When heartbeats are due and when their answers are overdue."""

import random

from hypothesis import given
from hypothesis import strategies as st

from rdzv_client.heartbeat import Heartbeats
from tests.unit.proto.strategies import often


def started(lease_s: float = 15.0, seed: int = 1) -> Heartbeats:
    beats = Heartbeats()
    beats.start(100.0, lease_s, random.Random(seed))
    return beats


def test_nothing_is_due_without_a_connection() -> None:
    beats = Heartbeats()
    assert beats.due_at is None
    assert beats.overdue_at is None


def test_a_session_looks_again_when_a_beat_is_due_or_patience_is_over() -> None:
    beats = Heartbeats()
    seen = [(beats.next_at, beats.due_at, beats.overdue_at)]
    for step in (
        lambda: beats.start(100.0, 15.0, random.Random(1)),
        lambda: beats.sent(110.0, 7),
        lambda: beats.sent(115.0, 8),
        lambda: beats.answered(7),
        beats.stop,
    ):
        step()
        seen.append((beats.next_at, beats.due_at, beats.overdue_at))
    begin = started().due_at
    assert seen == [
        (None, None, None),
        (begin, begin, None),
        (115.0, 115.0, 117.5),
        (117.5, 120.0, 117.5),
        (120.0, 120.0, None),
        (None, None, None),
    ]


@often
@given(st.integers(), st.floats(0.01, 1000))
def test_the_first_beat_comes_between_a_sixth_and_a_third_of_the_lease(
    seed: int, lease_s: float
) -> None:
    due_at = started(lease_s, seed).due_at
    assert due_at is not None
    assert lease_s / 6 * 0.999 <= due_at - 100 <= lease_s / 3 * 1.001


def test_the_beats_of_two_nodes_do_not_come_together() -> None:
    assert started(seed=1).due_at != started(seed=2).due_at


def test_the_next_beat_is_due_a_third_of_the_lease_after_the_last() -> None:
    beats = started()
    beats.sent(110.0, 7)
    assert beats.due_at == 115.0


def test_an_answer_is_overdue_after_half_a_lease() -> None:
    beats = started()
    assert beats.overdue_at is None
    beats.sent(110.0, 7)
    assert beats.answer_s == 7.5
    assert beats.overdue_at == 117.5


def test_a_later_beat_does_not_put_off_the_end_of_patience() -> None:
    beats = started()
    beats.sent(110.0, 7)
    beats.sent(115.0, 8)
    assert beats.overdue_at == 117.5


def test_the_answer_that_is_waited_for_ends_the_waiting() -> None:
    beats = started()
    beats.sent(110.0, 7)
    assert beats.answered(7)
    assert beats.overdue_at is None
    assert not beats.answered(7)


def test_other_answers_are_not_taken() -> None:
    beats = started()
    assert not beats.answered(7)
    beats.sent(110.0, 7)
    beats.sent(115.0, 8)
    assert not beats.answered(8)
    assert beats.overdue_at == 117.5


def test_the_end_of_the_connection_ends_everything() -> None:
    beats = started()
    beats.sent(110.0, 7)
    beats.stop()
    assert beats.due_at is None
    assert beats.overdue_at is None
    assert not beats.answered(7)


def test_a_new_connection_forgets_the_beat_of_the_old_one() -> None:
    beats = started()
    beats.sent(110.0, 7)
    beats.start(120.0, 6.0, random.Random(1))
    assert beats.overdue_at is None
    assert beats.due_at is not None
    assert 121 <= beats.due_at <= 122
    assert beats.answer_s == 3
