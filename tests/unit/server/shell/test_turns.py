import pytest

from rdzv_server.shell.turns import (
    ALONE_S,
    BURST,
    PER_RUN_S_MIN,
    PER_TURN_S,
    RATE_PER_S,
    Budget,
    Turns,
)


def test_one_run_alone_has_more_of_a_turn() -> None:
    turns = Turns()
    share = turns.share("a")
    assert turns.left_s(share) == ALONE_S > PER_TURN_S


def test_two_runs_have_a_share_each_that_is_full_again_in_the_next_turn() -> None:
    turns = Turns()
    a, b = turns.share("a"), turns.share("b")
    assert turns.left_s(a) == turns.left_s(b) == PER_TURN_S
    a.left_s -= 0.004
    assert turns.left_s(a) == PER_TURN_S - 0.004
    turns.next()
    assert turns.left_s(a) == PER_TURN_S


def test_l10_runs_that_want_more_than_a_turn_share_the_next_one() -> None:
    turns = Turns()
    shares = [turns.share(str(n)) for n in range(4)]
    for share in shares * 2:
        turns.exhausted(share)
    turns.next()
    assert [turns.left_s(share) for share in shares] == [PER_TURN_S / 4] * 4
    turns.next()
    assert turns.left_s(shares[0]) == PER_TURN_S


def test_l10_every_run_gets_on_however_many_there_are() -> None:
    turns = Turns()
    shares = [turns.share(str(n)) for n in range(1000)]
    for share in shares:
        turns.exhausted(share)
    turns.next()
    assert {turns.left_s(share) for share in shares} == {PER_RUN_S_MIN}


def test_a_share_ends_with_its_last_connection() -> None:
    turns = Turns()
    a, b = turns.share("a"), turns.share("b")
    assert turns.share("a") is a
    assert turns.left_s(a) == PER_TURN_S
    del b
    turns.next()
    assert turns.left_s(a) == ALONE_S


def test_t14_a_session_is_held_back_for_what_it_is_ahead() -> None:
    budget = Budget(100.0)
    budget.left -= BURST + RATE_PER_S / 10
    assert budget.refill(100.0) == pytest.approx(0.1)
    assert budget.refill(100.1) == pytest.approx(0.0, abs=1e-6)


def test_t14_a_session_below_its_rate_is_never_held_back() -> None:
    budget, now = Budget(100.0), 100.0
    for _ in range(1000):
        now += 0.01
        budget.left -= RATE_PER_S / 100
        assert budget.left >= 0 or budget.refill(now) == 0


def test_t14_a_pause_gives_back_no_more_than_a_burst() -> None:
    budget = Budget(100.0)
    budget.left -= BURST + 1
    budget.refill(10_000.0)
    assert budget.left == BURST
