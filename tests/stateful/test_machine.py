"""Any order of what clients, the network and time do: the core and the model say the same to everybody."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.machine import Clients

EXAMPLES = 400
"""40,000 steps in half a minute of one core; `tests/stateful/test_bugs.py` takes as long."""

SEARCHES_FULL, EXAMPLES_FULL = 14, 1550
"""`make stateful`: two million steps, half an hour of one core. A search remembers all that it tried: one of a million
steps needs 5 GB."""

STEPS = 100
"""Of one example: enough for a world to form, to be lost and to form again a few times."""


@pytest.mark.timeout(4 * 3600)  # of the full length, on a busy machine
def test_the_core_does_what_the_model_does(request: pytest.FixtureRequest) -> None:
    """The short form plays the same examples each time; the full one searches."""
    full = request.config.getoption("--full")
    profile = settings(
        max_examples=EXAMPLES_FULL if full else EXAMPLES,
        derandomize=not full,
        stateful_step_count=STEPS,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    for _ in range(SEARCHES_FULL if full else 1):
        run_state_machine_as_test(Clients, settings=profile)
