"""Looks for mutants, and prints what found them."""

import multiprocessing
import time
from collections.abc import Iterable
from dataclasses import dataclass

from tests.sim.campaign import Case, Outcome, play
from tests.sim.mutants import MUTANTS
from tests.sim.mutants.mutant import Mutant

SHOWN_CHARS = 100


@dataclass(frozen=True)
class Catch:
    """How one hunt ended."""

    name: str
    found: Outcome | None
    took_s: float


def seek(mutant: Mutant, seeds: Iterable[int]) -> Outcome | None:
    """The first of these seeds in which the mutant breaks a rule."""
    with mutant.applied():
        for seed in seeds:
            one = play(Case(seed, mutant.mode))
            if one.violation:
                return one
    return None


def report(names: list[str], seeds: int, jobs: int) -> int:
    """Look for mutants (all, if none is named) in that many seeds; returns the exit code."""
    todo = [(name, seeds) for name in names or MUTANTS]
    lost = 0
    print(f"{'mutant':32} {'rule':5} {'mode':9} {'seed':>5}  found as")
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for one in pool.imap(_hunt, todo):
            mutant, found = MUTANTS[one.name], one.found
            text = "NOT FOUND" if found is None else " ".join(found.violation.split())[:SHOWN_CHARS]
            seed = "-" if found is None else str(found.case.seed)
            print(
                f"{one.name:32} {mutant.rule:5} {mutant.mode.value:9} {seed:>5}  {text}", flush=True
            )
            lost += found is None
    print(f"{len(todo) - lost} of {len(todo)} mutants found, in up to {seeds} seeds each")
    return 1 if lost else 0


def _hunt(work: tuple[str, int]) -> Catch:
    name, seeds = work
    began = time.perf_counter()
    return Catch(name, seek(MUTANTS[name], range(seeds)), time.perf_counter() - began)
