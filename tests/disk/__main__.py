"""`python -m tests.disk [--quick]`: what becomes of the store under crashes and faults of the disk.

Prints for each campaign how many points were tried, and how many lost an acknowledged commit without a
word or were wrong in another way; the last line holds the sums. Exits 1 if any did.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator

from tests.disk import full, images, kills, migration, traced
from tests.disk.tally import Tally

QUICK_BYTES = 401
"""Between two places in a file, in the short form; odd, so that all places in a page have their turn."""

QUICK_CALLS = 9
"""Every so many system calls, in the short form."""

FULL_POINTS = 64


def campaigns(*, quick: bool, processes: int) -> Iterator[Tally | str]:
    """What can be done here; for the rest a line that says why not."""
    yield from full.short(4 if quick else FULL_POINTS)
    missing = full.available()
    if missing is None:
        yield from full.campaign(4 if quick else FULL_POINTS)
    else:
        yield f"a full disk: skipped, {missing}"
    missing = traced.available()
    if missing is None:
        yield from kills.campaign(QUICK_CALLS if quick else 1, processes)
        yield migration.killed(QUICK_CALLS if quick else 1, processes)
    else:
        yield f"system calls: skipped, {missing}"
    yield from images.campaign(QUICK_BYTES if quick else 1, processes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.disk", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a sample of the points")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    total = Tally("all")
    began = last = time.perf_counter()
    for tally in campaigns(quick=options.quick, processes=options.processes):
        now = time.perf_counter()
        if isinstance(tally, str):
            print(tally)
        else:
            print(tally.line(now - last), flush=True)
            for example in tally.examples[:10]:
                print(f"    {example}", file=sys.stderr)
            total.add(tally)
        last = now
    print(total.line(time.perf_counter() - began))
    return 1 if total.bad else 0


if __name__ == "__main__":
    sys.exit(main())
