"""S31, S32: running time."""

import pytest

from rdzv_server.core.clock import STALL_S, TICK_S, RunClock


def test_time_runs_as_the_monotonic_clock_does() -> None:
    clock = RunClock()
    assert clock.advance(50.0) == (50.0, 0.0)
    assert clock.advance(50.15) == (50.15, 0.0)


def test_a_gap_of_two_ticks_is_no_stall() -> None:
    clock = RunClock()
    clock.advance(0.0)
    assert clock.advance(STALL_S) == (STALL_S, 0.0)
    assert clock.stalls == 0


def test_s32_the_excess_of_a_longer_gap_is_taken_out_of_time() -> None:
    clock = RunClock()
    clock.advance(0.0)
    t, stall = clock.advance(8.0)
    assert t == pytest.approx(TICK_S)
    assert stall == 8.0 - TICK_S
    assert (clock.stalls, clock.stalled_s) == (1, stall)
    assert clock.advance(8.1)[0] == 8.1 - stall


def test_s32_deadlines_move_by_as_much_as_the_server_stood_still() -> None:
    clock = RunClock()
    t, _ = clock.advance(100.0)
    due = t + 5.0
    clock.advance(103.0)
    assert clock.monotonic(due) == 105.0 + (3.0 - TICK_S)


def test_an_earlier_reading_does_not_turn_time_back() -> None:
    clock = RunClock()
    clock.advance(10.0)
    assert clock.advance(9.9995)[0] == 10.0
