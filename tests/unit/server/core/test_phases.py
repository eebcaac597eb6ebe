"""Phases as data: what is not in the table is a fault that tells its story."""

import pytest

from rdzv_server.core.model import Phase
from rdzv_server.core.phases import TRANSITIONS, Cause, InvalidTransitionError, move
from tests.lab import Lab, policy


def test_every_phase_can_be_reached_and_left() -> None:
    reached = set(TRANSITIONS.values())
    left = {phase for phase, _ in TRANSITIONS}
    assert reached == set(Phase)
    assert left == set(Phase)


def test_every_cause_is_used() -> None:
    assert {cause for _, cause in TRANSITIONS} == set(Cause)


def test_a_transition_that_is_not_in_the_table_names_state_event_and_story() -> None:
    lab = Lab()
    lab.world("a", "b", rules=policy(2))
    with pytest.raises(
        InvalidTransitionError, match=r"MIN_UNMET in phase LIVE[^$]*LAST_CALL -> LIVE"
    ):
        move(lab.core.tables, lab.run(), Cause.MIN_UNMET)
