"""`python -m tests.bench rendezvous` and `python -m tests.bench sync`."""

import sys

from tests.bench import rendezvous, sync

BENCHES = {"rendezvous": rendezvous.main, "sync": sync.main}


def main() -> int:
    name, *arguments = sys.argv[1:] or [""]
    bench = BENCHES.get(name)
    if bench is None:
        print(f"usage: python -m tests.bench {{{','.join(BENCHES)}}} [options]", file=sys.stderr)
        return 2
    return bench(arguments)


if __name__ == "__main__":
    sys.exit(main())
