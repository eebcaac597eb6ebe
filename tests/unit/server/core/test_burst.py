import pytest

from rdzv_server.core.burst import NEXT_S, TOGETHER_MIN, TOGETHER_S, Burst


def broken(*times: float) -> Burst:
    burst = Burst()
    for number, at in enumerate(times):
        burst.broke(number, at)
    return burst


@pytest.mark.parametrize(
    ("times", "members", "network"),
    [
        ((0, 0.01, 0.02), 5, True),
        ((0, 0.01, 0.02), 6, False),
        ((0, 0.01), 2, False),
        ((0, TOGETHER_S * 0.9, TOGETHER_S), 5, True),
        ((0, TOGETHER_S + 0.01, 2 * TOGETHER_S + 0.02), 3, False),
    ],
)
def test_b32_more_than_half_in_one_moment_are_the_network(
    times: tuple[float, ...], members: int, network: bool
) -> None:
    assert broken(*times).is_network(members) is network


def test_ends_that_the_server_reads_one_by_one_belong_together_however_many() -> None:
    times = [n * NEXT_S * 0.9 for n in range(1000)]
    assert broken(*times).is_network(1999)


def test_a_pause_begins_a_new_moment() -> None:
    burst = broken(0, 0.01, 0.02)
    burst.broke(9, 0.02 + TOGETHER_S + 0.01)
    assert burst.away == [9]
    assert not burst.is_network(1)


def test_those_who_are_back_do_not_count() -> None:
    burst = broken(*[0.0] * TOGETHER_MIN)
    burst.back(0)
    burst.back(77)
    assert not burst.is_network(TOGETHER_MIN)
    burst.broke(0, 0.05)
    assert burst.is_network(TOGETHER_MIN)
