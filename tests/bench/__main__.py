"""`python -m tests.bench rendezvous`, `python -m tests.bench sync`, `python -m tests.bench herd`."""

import sys

from tests.bench import herd, rendezvous, sync

BENCHES = {"herd": herd.main, "rendezvous": rendezvous.main, "sync": sync.main}


def main() -> int:
    name, *arguments = sys.argv[1:] or [""]
    bench = BENCHES.get(name)
    if bench is None:
        print(f"usage: python -m tests.bench {{{','.join(BENCHES)}}} [options]", file=sys.stderr)
        return 2
    return bench(arguments)


if __name__ == "__main__":
    sys.exit(main())
