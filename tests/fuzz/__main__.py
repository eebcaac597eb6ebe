"""`python -m tests.fuzz [--seconds S] [--inputs N] [--target T]… [--live]`: inputs that nobody would send.

Prints for each target how many inputs there were, failures (their inputs are kept in tests/fuzz/crashes), the longest
that the product took for one in processor time, and how memory grew; the last line holds the sums. With `--live` the
inputs go to a real server instead, and a run that beats beside them is watched. Exits 1 if anything failed.
"""

import argparse
import sys
import time

from tests.fuzz import campaign, live
from tests.fuzz.targets import TARGETS

SHARES = {"dispatch": 3.0, "store": 2.0}
"""Of the time, for what is slow and can go wrong in more ways; 1 for each other target."""


def offline(names: list[str], seed: int, inputs: int, seconds: float) -> int:
    missing = campaign.guided_available()
    if missing is not None:
        print(f"coverage-guided: skipped, {missing}")
    whole = sum(SHARES.get(name, 1.0) for name in names)
    results = []
    began = last = time.monotonic()
    for name in names:
        share_s = seconds * SHARES.get(name, 1.0) / whole
        results.append(campaign.run(name, seed=seed, inputs=inputs, seconds=share_s))
        now = time.monotonic()
        print(results[-1].line(now - last), flush=True)
        for crash in results[-1].crashes[:5]:
            print(crash, file=sys.stderr)
        last = now
    bad = sum(result.bad for result in results)
    print(
        f"{sum(result.inputs for result in results):,} inputs, {sum(len(r.crashes) for r in results)} crashes, "
        f"largest {max(result.largest_ms for result in results):.2f} ms, {time.monotonic() - began:.0f} s, seed {seed}"
    )
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of all targets together")
    parser.add_argument("--inputs", type=int, default=10**9, help="of each target at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS))
    parser.add_argument("--live", action="store_true", help="against a real server")
    options = parser.parse_args()
    if options.live:
        return live.main(options.seconds, options.seed)
    return offline(options.target or list(TARGETS), options.seed, options.inputs, options.seconds)


if __name__ == "__main__":
    sys.exit(main())
