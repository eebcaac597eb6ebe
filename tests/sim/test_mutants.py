"""The simulator finds faults: each mutant in a seed that is known to find it, and the same seed is clean without it."""

import pytest

from tests.sim.campaign import Case, play
from tests.sim.mutants import MUTANTS
from tests.sim.mutants.hunt import seek
from tests.sim.mutants.known import KNOWN
from tests.sim.mutants.mutant import Patch
from tests.sim.net import Clock


def test_every_mutant_has_a_seed() -> None:
    assert KNOWN.keys() == MUTANTS.keys()
    assert len(MUTANTS) >= 20


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_breaks_a_rule(name: str) -> None:
    assert seek(MUTANTS[name], [KNOWN[name]]) is not None


@pytest.mark.parametrize(
    "case",
    sorted({(KNOWN.get(name, 0), one.mode) for name, one in MUTANTS.items()}, key=str),
    ids=lambda case: f"{case[1].value}-{case[0]}",
)
def test_its_seed_is_clean_without_it(case: tuple[int, object]) -> None:
    seed, mode = case
    assert not play(Case(seed, mode)).violation  # type: ignore[arg-type]


def test_what_was_patched_is_as_before() -> None:
    before, patch = vars(Clock)["at"], Patch()
    patch(Clock, "at", None)
    patch(Clock, "at", 1)
    assert vars(Clock)["at"] == 1
    patch.undo()
    assert vars(Clock)["at"] is before
