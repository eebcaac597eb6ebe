"""`python -m tests.bench rendezvous`."""

import sys

from tests.bench import rendezvous

BENCHES = {"rendezvous": rendezvous.main}


def main() -> int:
    name, *arguments = sys.argv[1:] or [""]
    bench = BENCHES.get(name)
    if bench is None:
        print(f"usage: python -m tests.bench {{{','.join(BENCHES)}}} [options]", file=sys.stderr)
        return 2
    return bench(arguments)


if __name__ == "__main__":
    sys.exit(main())
