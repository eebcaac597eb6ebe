"""L0, small state spaces of the model and all of its mutants; `make spin` looks at the large ones."""

import pytest

from tests.spin import __main__ as spin
from tests.spin.campaigns import FULL, MUTANTS, SHORT, Mutant, Scene
from tests.spin.checker import MODEL, SpinError, available, parse, verify

MISSING = available()
SPIN = pytest.mark.skipif(MISSING is not None, reason=f"the Promela model {MISSING}")


@SPIN
@pytest.mark.parametrize("scene", SHORT, ids=lambda scene: scene.name)
def test_l0_no_property_of_the_model_is_broken(scene: Scene) -> None:
    verdict = verify(scene.defines)
    assert verdict.errors == 0, verdict.broken
    assert verdict.states > 10_000


@SPIN
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_l0_a_model_without_one_of_its_rules_breaks_what_the_rule_is_for(mutant: Mutant) -> None:
    verdict = verify(mutant.defines)
    assert spin.found(mutant, verdict), verdict


def test_every_mutant_of_the_model_is_tried() -> None:
    rules = (
        MODEL.read_text().partition("Rules that a mutant lacks")[2].partition("#ifndef MUTANT")[0]
    )
    named = [line.split() for line in rules.splitlines() if line.startswith("#define")]
    assert [int(number) for _, _, number in named] == [mutant.number for mutant in MUTANTS]


def test_the_large_state_spaces_have_a_crash_with_and_without_state() -> None:
    assert {scene.durable for scene in FULL if scene.crashes} == {0, 1}


def test_a_search_that_was_cut_off_is_no_verdict() -> None:
    said = "error: max search depth too small\nState-vector 180 byte, depth reached 9, errors: 0\n  7 states, stored\n"
    with pytest.raises(SpinError):
        parse(said)


def test_the_verifier_names_what_is_broken() -> None:
    verdict = parse(
        "pan:1: assertion violated (a==b) (at depth 3)\n"
        "State-vector 180 byte, depth reached 9, errors: 1\n  1.5e+07 states, stored\n"
    )
    assert (verdict.errors, verdict.states, verdict.broken) == (1, 15_000_000, "(a==b)")
