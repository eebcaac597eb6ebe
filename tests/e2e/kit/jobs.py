"""Processes of a job without torchrun, each with a log of what it did."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.kit.processes import MARKER
from tests.e2e.kit.wait import until

SCRIPT = Path(__file__).parent / "dist_worker.py"


class Process:
    """One process.

    Args:
        folder: for its logs.
        marker: of the test.
        number: tells it from the others.
        words: arguments of `dist_worker.py`: a URL, then what to do.
        environment: on top of this process' own.
        script: instead of `dist_worker.py`.
    """

    def __init__(
        self, folder: Path, marker: str, number: int, *words: str,
        environment: dict[str, str] | None = None, script: Path = SCRIPT,
    ) -> None:  # fmt: skip
        self.said_path = folder / f"process-{number}.jsonl"
        self.log_path = folder / f"process-{number}.log"
        env = os.environ | {MARKER: marker, "OMP_NUM_THREADS": "1"} | (environment or {})
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script), str(self.said_path), *words],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def all(self, event: str) -> list[dict[str, Any]]:
        if not self.said_path.exists():
            return []
        lines = self.said_path.read_text().splitlines()
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        return [row for row in rows if row["event"] == event]

    def said(self, event: str, timeout_s: float = 60) -> dict[str, Any]:
        """Wait for a line; returns the newest of that kind."""

        def there() -> list[dict[str, Any]]:
            assert self.process.poll() in (None, 0) or self.all(event), self.log[-3000:]
            return self.all(event)

        return until(there, timeout_s, lambda: f"the process says {event}:\n{self.log[-2000:]}")[-1]

    def wait(self, timeout_s: float = 60) -> int:
        """Wait for its end; returns the exit code."""
        until(
            lambda: self.process.poll() is not None,
            timeout_s,
            lambda: f"it ends:\n{self.log[-2000:]}",
        )
        return self.process.wait()

    def end(self) -> None:
        """End it whatever it does; for the fixture."""
        self.process.kill()
        self.process.wait(10)
