"""`python -m tests.sim --seeds 0-199`, `--seed N --trace`."""

import argparse
import sys
import time

from tests.sim.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", default="0-199", metavar="A-B", help="play these seeds")
    parser.add_argument("--seed", type=int, help="play one seed")
    parser.add_argument("--trace", action="store_true", help="print every step")
    parser.add_argument("--crashes", action="store_true", help="let the server crash, too")
    parser.add_argument("--durable", action="store_true", help="and resume from what it stored")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    seeds = (
        [options.seed] if options.seed is not None else range(int(first), int(last or first) + 1)
    )
    began, steps, faults, generations, virtual_s = time.perf_counter(), 0, 0, 0, 0.0
    releases = failures = writes = reads = 0
    for seed in seeds:
        world = World(
            seed, keep_trace=options.trace, server_crashes=options.crashes, durable=options.durable
        )
        try:
            world.play()
        except AssertionError as error:
            print("\n".join(world.lines))
            print(f"seed {seed}: {type(error).__name__}: {error}", file=sys.stderr)
            return 1
        if options.trace:
            print("\n".join(world.lines))
        steps += world.clock.steps
        faults += world.faults
        generations += world.generations
        virtual_s += world.clock.now
        releases += world.ledger.releases
        failures += world.ledger.failures
        writes += world.ledger.acknowledged
        reads += world.ledger.reads
    wall_s = time.perf_counter() - began
    print(
        f"{len(seeds)} seeds, {steps} events, {faults} faults, {generations} generations, "
        f"{releases} releases and {failures} failures of barriers told, {writes} appends and "
        f"{reads} reads of them, "
        f"{virtual_s:.0f} virtual s in {wall_s:.1f} s; 0 violations"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
