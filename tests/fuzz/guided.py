"""Coverage-guided, by atheris, in a process of its own: `python -m tests.fuzz.guided TARGET SLOW libFuzzer flags…`.

Instrumented code is slow, so its times say nothing; the slowest inputs are written down (folder SLOW), to be timed
without (`tests.fuzz.plain`). A failure ends the process; libFuzzer leaves its input where its flags say.
"""

import hashlib
import sys
from pathlib import Path

import atheris

SLOWEST_KEPT = 20

with atheris.instrument_imports(
    include=["rdzv_proto", "rdzv_server.core", "rdzv_server.shell.gate"]
):
    from tests.fuzz.targets import TARGETS
    from tests.fuzz.watch import Watch


def main() -> None:
    name, slow, *flags = sys.argv[1:]
    target, watch = TARGETS[name], Watch()
    slowest: list[tuple[float, str]] = []

    def one(data: bytes) -> None:
        watch.begin()
        target.run(data, watch)
        if len(slowest) < SLOWEST_KEPT or watch.largest_ms > slowest[0][0]:
            path = Path(slow) / f"{name}-{hashlib.sha256(data).hexdigest()[:16]}"
            path.write_bytes(data)
            slowest.append((watch.largest_ms, str(path)))
            slowest.sort()
            if len(slowest) > SLOWEST_KEPT:
                Path(slowest.pop(0)[1]).unlink(missing_ok=True)

    atheris.Setup([sys.argv[0], *flags], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
