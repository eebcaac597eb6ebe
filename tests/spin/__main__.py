"""`python -m tests.spin [--short]`: every state of the model, and the mutants that must be found.

Prints for each scene how many states there are and how many errors, then for each mutant what was
found to be broken; the last line holds the sums. Exits 1 if there is an error or a mutant was not found.
"""

import argparse
import sys
from collections.abc import Sequence

from tests.spin.campaigns import FULL, MUTANTS, SHORT, Mutant, Scene
from tests.spin.checker import SpinError, Verdict, available, verify


def scene_line(scene: Scene, verdict: Verdict) -> str:
    state = "durable" if scene.durable else "memory"
    return (
        f"{scene.name:<48} {state:<8} {verdict.states:>11,} states  {verdict.errors} errors  "
        f"depth {verdict.depth:>3}  {verdict.seconds:6.1f} s"
    )


def found(mutant: Mutant, verdict: Verdict) -> bool:
    """By the property that it breaks, not by any other."""
    return verdict.errors > 0 and mutant.broken in verdict.broken


def mutant_line(mutant: Mutant, verdict: Verdict) -> str:
    what = f"found after {verdict.states:,} states" if found(mutant, verdict) else "NOT FOUND"
    return f"{mutant.number:>2} {mutant.name:<48} {what:<32} {verdict.broken[:60]}"


def check(scenes: Sequence[Scene]) -> tuple[int, int]:
    """States and errors of all scenes."""
    states = errors = 0
    for scene in scenes:
        verdict = verify(scene.defines, large=scene in FULL)
        print(scene_line(scene, verdict), verdict.broken, flush=True)
        states += verdict.states
        errors += verdict.errors
    return states, errors


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spin", description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer faults in each scene")
    options = parser.parse_args()
    missing = available()
    if missing is not None:
        print(f"tests.spin {missing}", file=sys.stderr)
        return 2
    try:
        states, errors = check(SHORT if options.short else FULL)
        caught = 0
        for mutant in MUTANTS:
            verdict = verify(mutant.defines)
            print(mutant_line(mutant, verdict), flush=True)
            caught += found(mutant, verdict)
    except SpinError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{states:,} states, {errors} errors, {caught} of {len(MUTANTS)} mutants found")
    return 1 if errors or caught < len(MUTANTS) else 0


if __name__ == "__main__":
    sys.exit(main())
