"""`python -m tests.chaos --minutes M [--seed N]`: a server, clients and torchrun agents under real faults.

All of it runs in namespaces of its own (root). Every operation of every client is recorded and judged at the
end (`tests.sim.check`). `--stalls N` is another campaign: the server is stopped N times, and nobody may expire.

Exits 0 if nothing is wrong, 1 if something is (the histories are kept), 2 where it cannot run.
"""

import argparse
import os
import sys
from pathlib import Path

from tests.chaos import rig, stalls
from tests.chaos.campaign import Campaign, Options

LEASE_S = 2.0
"""Long enough for processes that share two cores with others; short enough for 500 faults in half an hour."""

NO_LIMIT = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--stalls", type=int, default=0, metavar="N", help="the stall sweep instead"
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--seed", type=int, default=None, help="of all faults; a random one if left out"
    )
    parser.add_argument("--faults", type=int, default=NO_LIMIT, help="end after so many")
    parser.add_argument("--clients", type=int, default=32, help="processes, 4 or more")
    parser.add_argument("--lease", type=float, default=LEASE_S, metavar="S")
    parser.add_argument("--no-agents", action="store_true", help="no torchrun agents")
    parser.add_argument("--any-speed", action="store_true", help="times are told, not judged")
    parser.add_argument("--folder", type=Path, help="for histories and logs, which are then kept")
    options = parser.parse_args()
    seed = int.from_bytes(os.urandom(3), "big") if options.seed is None else options.seed
    if options.stalls:
        return stalls.sweep(options.stalls, seed)
    missing = rig.missing() if rig.INSIDE not in os.environ else None
    if missing is not None:
        print(f"chaos: {missing}", file=sys.stderr)
        return 2
    arguments = sys.argv[1:] if options.seed is not None else [*sys.argv[1:], "--seed", str(seed)]
    rig.enter("tests.chaos", arguments)
    return Campaign(
        Options(
            minutes=options.minutes, seed=seed, clients=options.clients, lease_s=options.lease,
            faults_max=options.faults, agents=not options.no_agents,
            judge_speed=not options.any_speed, folder=options.folder,
        )
    ).play()  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
