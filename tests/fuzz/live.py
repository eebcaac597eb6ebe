"""Grammar against a real server, with a run that beats beside it."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Cluster
from tests.e2e.kit import leaks
from tests.e2e.kit.agents import Launcher
from tests.e2e.kit.gauges import rss_mib
from tests.e2e.kit.processes import MARKER
from tests.e2e.kit.pulse import live_run
from tests.e2e.kit.server import Server

ERRORS_SHOWN = 5


@dataclass(frozen=True)
class Live:
    """What one campaign saw."""

    told: dict[str, Any]
    """By the sender."""
    before_mib: float
    after_mib: float
    errors: list[str]
    """Lines of the server's log that say it had a fault of its own."""

    @property
    def line(self) -> str:
        told = self.told
        return (
            f"{told['sent']:,} inputs on {told['opened']:,} connections in {told['seconds']:.0f} s, "
            f"{told['answered']:,} answers; {len(self.errors)} server errors; "
            f"{self.before_mib:.1f} MiB before, {self.after_mib:.1f} MiB after\n{told['codes']}"
        )


def faults(server: Server) -> list[str]:
    """Lines of the log that no client may cause."""
    marks = ("Traceback", "internal error", "level=error", "level=critical")
    return [line for line in server.log.splitlines() if any(mark in line for mark in marks)]


def fuzz(cluster: Cluster, *, seconds: float, inputs: int, seed: int) -> Live:
    """Send for so long, or so many.

    Raises:
        AssertionError: the run beside it was harmed.
    """
    server = cluster.server("--tcpstore")
    options = {
        "host": server.host,
        "port": server.port,
        "seconds": seconds,
        "inputs": inputs,
        "seed": seed,
    }
    with live_run(cluster, server):
        before_mib = rss_mib(server)
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.sender", json.dumps(options)],
            stdout=subprocess.PIPE, text=True, timeout=seconds + 120, check=True,
            env=os.environ | {MARKER: cluster.marker},
        )  # fmt: skip
        after_mib = rss_mib(server)
    return Live(json.loads(done.stdout), before_mib, after_mib, faults(server))


def main(seconds: float, seed: int) -> int:
    os.environ.setdefault("RDZV_HTTP_PORT", "off")

    def no_torch() -> Launcher:
        raise AssertionError("no agent is started here")

    with tempfile.TemporaryDirectory(prefix="rdzv-fuzz-") as folder:
        noted = Path(folder) / "noted"
        noted.touch()
        os.environ[leaks.VARIABLE] = str(noted)
        cluster = Cluster(Path(folder), no_torch, full=True)
        try:
            seen = fuzz(cluster, seconds=seconds, inputs=10**9, seed=seed)
        finally:
            cluster.end()
    print(f"{seen.line}\nseed {seed}")
    for line in seen.errors[:ERRORS_SHOWN]:
        print(line, file=sys.stderr)
    return 1 if seen.errors else 0
