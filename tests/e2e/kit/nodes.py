"""Raw nodes: many, quick to start, each a process that can be killed, stopped and asked."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.e2e.kit.processes import MARKER, kill
from tests.e2e.kit.wait import until

Line = dict[str, Any]


class Node:
    """One raw node process.

    Args:
        folder: for its log.
        marker: of the test.
        server: endpoint.
        run: run id.
        options: of `rdzv_client.Client`, and `rejoin`.
    """

    module = "tests.e2e.kit.rawnode"
    """What the process runs."""

    def __init__(self, folder: Path, marker: str, server: str, run: str, **options: Any) -> None:
        self.name = str(options.get("name", options.get("node_id", "node")))
        settings = {"server": server, "run": run, **options}
        self.log_path = folder / f"raw-{self.name}-{os.urandom(3).hex()}.log"
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {MARKER: marker},
            )
        self.lines: list[Line] = []
        self._tags = itertools.count(1)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    # --- what it said -------------------------------------------------------------------------

    def all(self, event: str) -> list[Line]:
        """Everything it said of a kind."""
        return [line for line in self.lines if line["event"] == event]

    def last(self, event: str) -> Line | None:
        said = self.all(event)
        return said[-1] if said else None

    def wait_for(self, event: str, timeout_s: float, count: int = 1) -> Line:
        """Wait until it said something of a kind (so many times)."""

        def said() -> Line | None:
            rows = self.all(event)
            return rows[count - 1] if len(rows) >= count else None

        return until(said, timeout_s, f"{self.name} says {event}: {self.lines[-3:]}")

    def joined(self, world: int, timeout_s: float, *, above: int = 0) -> Line:
        """Wait until it is in a world of that size (in a later generation)."""

        def there() -> Line | None:
            line = self.last("joined")
            good = line is not None and line["world"] == world and line["number"] > above
            return line if good else None

        return until(there, timeout_s, f"{self.name} in a world of {world}: {self.lines[-3:]}")

    @property
    def log(self) -> str:
        """What the client logged."""
        return self.log_path.read_text()

    @property
    def rank(self) -> int:
        line = self.last("joined")
        assert line is not None
        return int(line["rank"])

    @property
    def number(self) -> int:
        """Of the last generation it was in; 0 before the first."""
        line = self.last("joined")
        return 0 if line is None else int(line["number"])

    @property
    def node_id(self) -> str:
        return str(self.wait_for("started", 10)["node_id"])

    # --- what is done to it -------------------------------------------------------------------

    def do(self, action: str, **arguments: Any) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": action, **arguments}) + "\n")
        self.process.stdin.flush()

    def ask(self, action: str, timeout_s: float = 5, **arguments: Any) -> Line:
        """Send a command and wait for its outcome."""
        before = len(self.all("done")) + len(self.all("failed"))
        self.do(action, **arguments)

        def outcome() -> Line | None:
            rows = [line for line in self.lines if line["event"] in ("done", "failed")]
            return rows[before] if len(rows) > before else None

        return until(outcome, timeout_s, f"{self.name} has done {action}")

    def start(self, action: str, **arguments: Any) -> str:
        """Send a command that may wait; returns the tag under which its outcome is told."""
        tag = f"{action}-{next(self._tags)}"
        self.do(action, tag=tag, **arguments)
        return tag

    def outcome(self, tag: str, timeout_s: float) -> Line:
        """Wait for the outcome of a command that was started."""
        what = f"{self.name} ends {tag}: {self.lines[-3:]}"
        return until(lambda: self.ended(tag), timeout_s, what)

    def ended(self, tag: str) -> Line | None:
        """The outcome of a command that was started, if it is there."""
        return next((line for line in self.all("outcome") if line["tag"] == tag), None)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        kill(self.process.pid)
        self.process.wait(10)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        """End it whatever it does; for the fixture."""
        if self.process.poll() is None:
            kill(self.process.pid)
        self.process.wait(10)
        self._reader.join(5)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class NcclNode(Node):
    """A raw node that takes part in NCCL communicators."""

    module = "tests.e2e.kit.ncclrank"


class NextNode(Node):
    """A raw node that speaks the next version of the protocol as well."""

    module = "tests.e2e.kit.nextnode"
