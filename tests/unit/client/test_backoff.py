"""Pauses before another attempt."""

import random

from hypothesis import given
from hypothesis import strategies as st

from rdzv_client import backoff
from tests.unit.proto.strategies import often


@often
@given(st.integers(1, 10_000), st.integers())
def test_l6_a_pause_is_between_zero_and_a_bound_that_doubles_up_to_the_cap(
    attempt: int, seed: int
) -> None:
    bound = min(backoff.CAP_S, backoff.BASE_S * 2 ** min(attempt, 60))
    assert 0 <= backoff.delay_s(attempt, random.Random(seed)) <= bound


def test_l6_the_whole_range_is_used() -> None:
    """Full jitter: a thousand clients of a restarted server must not come in one wave."""
    rng = random.Random(1)
    pauses = [backoff.delay_s(20, rng) for _ in range(1000)]
    assert min(pauses) < 0.02 * backoff.CAP_S
    assert max(pauses) > 0.98 * backoff.CAP_S
    tenths = [sum(int(p / backoff.CAP_S * 10) == i for p in pauses) for i in range(10)]
    assert min(tenths) > 50


def test_the_random_source_is_the_one_given() -> None:
    pauses = [[backoff.delay_s(5, random.Random(seed)) for _ in range(2)] for seed in (1, 1, 2)]
    assert pauses[0] == pauses[1] != pauses[2]


def test_the_quick_attempts_lie_within_the_servers_grace() -> None:
    grace_s = 1.0
    assert backoff.QUICK_S == (0.0, 0.1, 0.3, 0.6)
    assert backoff.QUICK_S[-1] + backoff.QUICK_CONNECT_S < grace_s


def test_the_bounds_go_together() -> None:
    assert 0 < backoff.BASE_S < backoff.CAP_S
    assert backoff.QUICK_CONNECT_S < 1.0 < backoff.CONNECT_S
