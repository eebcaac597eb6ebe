"""The machine can fail: every fault that is put into the core is found."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.bugs import BUGS, Bug
from tests.stateful.machine import Clients

EXAMPLES_MAX = 600
"""The rarest of them (two keys waited for, one deleted meanwhile) needs about a hundred."""


@pytest.mark.timeout(
    900
)  # of nine seconds of work for the rarest, on a busy machine and while coverage is measured
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_fault_of_the_core_is_found(bug: Bug) -> None:
    search = settings(
        max_examples=EXAMPLES_MAX,
        stateful_step_count=40,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(
            Phase.generate,
        ),  # to find it is enough; a shorter story would cost most of the time
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    with bug(), pytest.raises(AssertionError):
        run_state_machine_as_test(Clients, settings=search)
