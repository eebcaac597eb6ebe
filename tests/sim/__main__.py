"""Simulated histories: `--seeds A-B` plays many, `--seed N --trace` one, `--mutants` looks for faults put in on purpose."""

import argparse
import datetime
import subprocess
import sys
from pathlib import Path

from tests.sim.campaign import Case, Totals, cases, jobs_default, outcome, play_all
from tests.sim.check.entries import write
from tests.sim.mutants import hunt
from tests.sim.world import Mode, World


def main() -> int:
    options = _options()
    modes = list(Mode) if options.all else [Mode(options.mode)]
    if options.mutants is not None:
        return hunt.report(options.mutants, options.seeds[1] + 1, options.jobs)
    if options.seed is not None:
        return _one(Case(options.seed, modes[0]), options.trace, options.history)
    totals = Totals()
    first, last = options.seeds
    for one in play_all(cases(first, last, modes), options.jobs):
        totals.add(one)
        if options.hashes:
            print(f"{one.case.mode.value} {one.case.seed} {one.hash}")
        if one.violation:
            print(f"{one.case.command}: {one.violation}", file=sys.stderr)
    print(totals.text())
    if options.ledger:
        print(_row(totals, options.seeds, modes))
    return 1 if totals.violations else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument(
        "--seeds", type=_range, default=(0, 199), metavar="A-B", help="play these seeds"
    )
    parser.add_argument("--seed", type=int, help="play one seed")
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], default="steady")
    for mode in (Mode.CRASHES, Mode.DURABLE, Mode.LIVENESS):
        parser.add_argument(f"--{mode.value}", dest="mode", action="store_const", const=mode.value)
    parser.add_argument("--all", action="store_true", help="in every mode")
    parser.add_argument(
        "--jobs", type=int, default=jobs_default(), help="processes; the result is the same"
    )
    parser.add_argument("--trace", action="store_true", help="print every step of the seed")
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="write the operations of the seed, as JSON lines",
    )
    parser.add_argument("--hashes", action="store_true", help="print a hash of each history")
    parser.add_argument("--ledger", action="store_true", help="print a row for LEDGER.md")
    parser.add_argument(
        "--mutants", nargs="*", metavar="NAME", help="look for all mutants, or for these"
    )
    return parser.parse_args()


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _one(case: Case, trace: bool, history: Path | None) -> int:
    """Play one seed, with everything that can be seen of it."""
    totals, world = Totals(), World(case.seed, case.mode)
    violation = ""
    try:
        world.play()
    except AssertionError as error:
        violation = f"{type(error).__name__}: {error}"
    finally:  # also when it breaks down
        print("\n".join(world.lines) if trace else world.hash)
        if history is not None:
            write(str(history), world.recorder.history())
    totals.add(outcome(case, world, violation))
    print(violation or totals.text())
    return 1 if violation else 0


def _row(totals: Totals, seeds: tuple[int, int], modes: list[Mode]) -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )  # fmt: skip
    commit = found.stdout.strip() or "?"
    day = datetime.datetime.now(tz=datetime.timezone.utc).date()
    names = ", ".join(mode.value for mode in modes)
    return (
        f"| {day} | {commit} | {seeds[0]}-{seeds[1]} | {names} | {totals.events:,} | {totals.faults:,} | "
        f"{totals.virtual_s / 86400:.2f} d | {len(totals.violations)} |"
    )


if __name__ == "__main__":
    sys.exit(main())
