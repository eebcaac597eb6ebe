"""`python -m tests.sim.check HISTORY…`: judge recorded histories, each by itself.

Prints for each how many operations were checked, what could not be decided, and each violation with the
lines that show it. Exits 1 for a violation, 3 if a key was undecided, 2 for a file that is no history.
"""

import argparse
import sys
import time

from tests.sim.check.entries import FormatError, read
from tests.sim.check.judge import PATIENCE_S, judge

SHOWN_MAX = 20


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.check", description=__doc__)
    parser.add_argument("histories", nargs="+", metavar="HISTORY")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_S, metavar="S", help="for one key; %(default)s"
    )
    options = parser.parse_args(arguments)
    code = 0
    for path in options.histories:
        began = time.perf_counter()
        try:
            verdict = judge(read(path), options.patience)
        except (OSError, FormatError) as error:
            print(error, file=sys.stderr)
            return 2
        for violation in verdict.violations[:SHOWN_MAX]:
            print(violation)
        for name in verdict.undecided[:SHOWN_MAX]:
            print(f"undecided: {name}")
        print(f"{path}: {verdict.summary()} in {time.perf_counter() - began:.1f} s")
        code = 1 if verdict.violations else code or (3 if verdict.undecided else 0)
    return code


if __name__ == "__main__":
    sys.exit(main())
