"""torchrun agents: forked from one process that has imported torch, or the real script."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.kit.processes import MARKER, alive, kill, kill_marked, marked
from tests.e2e.kit.wait import until

ROOT = Path(__file__).parents[3]

WORKER = Path(__file__).parent / "worker.py"
AGENT_MARKER = "RDZV_TEST_AGENT"

PROFILE = {
    "join_timeout": "30",
    "last_call_timeout": "2",
    "keep_alive_interval": "1",
    "keep_alive_max_attempt": "5",
}
"""The timing profile of the cases: heartbeat 1 s, lease 5 s, last call 2 s, join timeout 30 s."""

LEASE_S = 5.0

SHORT_LEASE: dict[str, str | None] = {"keep_alive_interval": "0.5", "keep_alive_max_attempt": "4"}
"""A lease of 2 s, for tests that watch how long nothing happens."""

QUIET_S = 3 * 2.0
"""Three short leases: what is watched in `make test`; the whole time of the case with --full."""


class Launcher:
    """The process that forks agents; one per test session."""

    def __init__(self, folder: Path) -> None:
        self.log_path = folder / "launcher.log"
        with open(self.log_path, "w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.kit.launcher"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self._numbers = itertools.count(1)
        self.pids: dict[int, int] = {}
        self.codes: dict[int, int] = {}
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(120), self.log_path.read_text()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "ready" in said:
                self._ready.set()
            elif "started" in said:
                self.pids[said["started"]] = said["pid"]
            else:
                self.codes[said["exited"]] = said["code"]

    def start(self, argv: Sequence[str], env: dict[str, str], log: Path, **more: object) -> int:
        """Fork an agent; returns its number."""
        number = next(self._numbers)
        order = {"start": number, "argv": list(argv), "env": env, "log": str(log), **more}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        until(lambda: number in self.pids, 20, "the launcher forks an agent")
        return number

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._reader.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()


class Agent:
    """One torchrun agent with its workers.

    Args:
        folder: for its log and its workers'.
        marker: of the test.
        endpoint: --rdzv-endpoint, or None to leave it out.
        run: --rdzv-id, or None to leave it out.
        nnodes: `2:4`.
        work: arguments of `worker.py`.
        launcher: forks it; None starts the real script `torchrun`.
        conf: over the timing profile; a None value takes a key out.
        more: further torchrun flags.
        prefix: words before the real script (`ip netns exec …`).
        script: instead of `worker.py`.
        backend: --rdzv-backend; with another one than ours the timing profile is its own.
        stop_after_rendezvous: the agent stops itself (SIGSTOP) between its rendezvous and the rank
            exchange.
    """

    def __init__(
        self,
        folder: Path,
        marker: str,
        endpoint: str | None,
        run: str | None,
        nnodes: str,
        *work: str,
        launcher: Launcher | None,
        name: str = "",
        nproc: int = 1,
        restarts: int = 0,
        conf: dict[str, str | None] | None = None,
        more: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        script: str | None = None,
        stop_after_rendezvous: bool = False,
        backend: str = "rdzv",
    ) -> None:
        self.identity = os.urandom(6).hex()
        self.name = name or self.identity
        self.log_path = folder / f"agent-{self.name}-{self.identity}.log"
        self.worker_log_path = folder / f"workers-{self.name}-{self.identity}.jsonl"
        settings = {**(PROFILE if backend == "rdzv" else {}), **(conf or {})}
        conf_text = ",".join(f"{k}={v}" for k, v in settings.items() if v is not None)
        argv = ["--nnodes", nnodes, "--nproc-per-node", str(nproc), "--max-restarts", str(restarts)]
        argv += ["--rdzv-backend", backend]
        argv += ["--rdzv-conf", conf_text] if conf_text else []
        argv += ["--rdzv-endpoint", endpoint] if endpoint is not None else []
        argv += ["--rdzv-id", run] if run is not None else []
        argv += [*more, script or str(WORKER), str(self.worker_log_path), *work]
        env = {MARKER: marker, AGENT_MARKER: self.identity, "OMP_NUM_THREADS": "1"}
        env["TMPDIR"] = str(folder)  # killed agents leave torch's log folders behind
        here = [str(ROOT), os.environ.get("PYTHONPATH", "")]  # worker scripts use this kit
        env["PYTHONPATH"] = os.pathsep.join(filter(None, here))
        env |= environment or {}
        self._launcher = launcher
        self._process: subprocess.Popen[bytes] | None = None
        if launcher is not None:
            self._number = launcher.start(
                argv, env, self.log_path, stop_after_rendezvous=stop_after_rendezvous
            )
            self.pid = launcher.pids[self._number]
        else:
            torchrun = str(Path(sys.executable).parent / "torchrun")
            with open(self.log_path, "w") as log:
                self._process = subprocess.Popen(
                    [*prefix, torchrun, *argv], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                    env=os.environ | env,
                )  # fmt: skip
            self.pid = self._process.pid

    # --- what it did --------------------------------------------------------------------------

    @property
    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    @property
    def code(self) -> int | None:
        """Exit code, or None while it runs (negative: signal)."""
        if self._launcher is not None:
            return self._launcher.codes.get(self._number)
        assert self._process is not None
        return self._process.poll()

    def wait(self, timeout_s: float) -> int:
        """Wait for the end; returns the exit code."""
        until(
            lambda: self.code is not None,
            timeout_s,
            lambda: f"agent {self.name} ends:\n{self.log[-2000:]}",
        )
        assert self.code is not None
        return self.code

    def lines(self, event: str = "start") -> list[dict[str, Any]]:
        """What its workers said."""
        if not self.worker_log_path.exists():
            return []
        rows = [
            json.loads(line)
            for line in self.worker_log_path.read_text().splitlines()
            if line.endswith("}")
        ]
        return [row for row in rows if row["event"] == event]

    @property
    def starts(self) -> int:
        """How often its workers were started."""
        return len(self.lines())

    def in_world(
        self, world: int, timeout_s: float, *, event: str = "start", above: int = 0
    ) -> dict[str, Any]:
        """Wait until the newest line of its workers is of a world of that size.

        Args:
            world: WORLD_SIZE.
            timeout_s: patience.
            event: `start`, or `all_reduce` for a working process group.
            above: only lines behind this many.
        """

        def there() -> dict[str, Any] | None:
            rows = self.lines(event)
            good = len(rows) > above and rows[-1]["WORLD_SIZE"] == str(world)
            return rows[-1] if good else None

        def what() -> str:
            rows = self.lines(event)[-1:]
            return f"workers of {self.name} in a world of {world}: {rows}\n{self.log[-1500:]}"

        return until(there, timeout_s, what)

    def worker_pids(self) -> list[int]:
        """Living workers."""
        return [
            pid for pid in marked(self.identity, AGENT_MARKER) if pid != self.pid and alive(pid)
        ]

    # --- what is done to it -------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> None:
        """To the agent alone."""
        kill(self.pid, number)

    def kill_group(self) -> None:
        """SIGKILL of agent and workers together, as when the host dies.

        A forked agent's own environment in /proc is its parent's: it is ended by pid.
        """
        if self.code is None:
            kill(self.pid)
        kill_marked(self.identity, AGENT_MARKER)
        until(lambda: self.code is not None, 10, "the killed agent is reaped")

    def end(self) -> None:
        """End it whatever it does; for the fixture."""
        self.kill_group()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
