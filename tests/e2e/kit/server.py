"""A real rdzv-server process."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rdzv_client.admin import Admin
from rdzv_client.calls import Calls
from rdzv_client.credentials import Credentials
from rdzv_client.errors import UnknownRun
from rdzv_proto.messages import GenerationStatus, MemberStatus, RunStatus, ShowGeneration
from tests.e2e.kit.processes import MARKER
from tests.e2e.kit.wait import until

READY_S = 15.0


class Server:
    """One server address; the process behind it can be killed and started again.

    Args:
        folder: for its log.
        marker: of the test.
        arguments: further flags.
        command: how to start it; the module by default, the installed script where that is the point.
        prefix: words before the command (`ip netns exec …`).
        credentials: with which the test looks at it.
    """

    def __init__(
        self,
        folder: Path,
        marker: str,
        *arguments: str,
        host: str = "127.0.0.1",
        port: int = 0,
        name: str = "server",
        command: Sequence[str] = (sys.executable, "-m", "rdzv_server"),
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        credentials: Credentials = Credentials(),  # noqa: B008 (frozen)
    ) -> None:
        self.host, self.port = host, port
        self.log_path = folder / f"{name}.log"
        self._marker = marker
        kept = {"--data-dir", "--state"} & set(arguments)
        self._arguments = arguments if kept else (*arguments, "--state", "memory")
        self._command = [*prefix, *command]
        self._environment = environment or {}
        self._credentials = credentials
        self.ready: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """Start the process and wait for its READY line."""
        with open(self.log_path, "a") as log:
            self.process = subprocess.Popen(
                [*self._command, "--host", self.host, "--port", str(self.port), *self._arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {MARKER: self._marker} | self._environment,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("READY "), f"no READY line but {line!r}; log:\n{self.log}"
        self.ready = dict(part.split("=", 1) for part in line.split()[1:])
        self.port = int(self.ready["port"])

    def become(self, module: str, *arguments: str) -> None:
        """The next start runs another program, as after an upgrade, with these words before all others."""
        self._command = [sys.executable, "-m", module, *arguments]

    @property
    def endpoint(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def log_lines(self, event: str) -> list[str]:
        """Lines of one event."""
        return [line for line in self.log.splitlines() if f"event={event} " in line]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def reload(self) -> None:
        """SIGHUP, and wait until files have been read again."""
        before = len(self.log_lines("reloaded"))
        self.signal(signal.SIGHUP)
        until(
            lambda: len(self.log_lines("reloaded")) > before, 5,
            lambda: f"the server has read it again: {self.log}",
        )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self.process is not None:
            self.process.kill()
            self._reap()

    def stop(self, timeout_s: float = 10.0) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(timeout_s)
        self._reap()
        return code

    def _reap(self) -> None:
        if self.process is not None:
            self.process.wait(10)
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None

    # --- looking ------------------------------------------------------------------------------

    def _ask(self, question: Callable[[Admin], object]) -> object:
        host = {"::": "::1", "0.0.0.0": "127.0.0.1"}.get(self.host, self.host)
        where = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        with contextlib.closing(Admin(where, timeout_s=5, credentials=self._credentials)) as admin:
            return question(admin)

    def runs(self) -> dict[str, RunStatus]:
        """All runs by id."""
        runs = self._ask(lambda admin: admin.runs())
        assert isinstance(runs, list)
        return {run.run: run for run in runs}

    def run(self, run: str) -> RunStatus | None:
        """One run, or None."""
        try:
            rows = self._ask(lambda admin: admin.runs(run))
        except UnknownRun:
            return None
        assert isinstance(rows, list)
        status: RunStatus = rows[0]
        return status

    def members(self, run: str) -> list[MemberStatus]:
        """Members of a run: participants by rank, then the others."""
        try:
            rows = self._ask(lambda admin: admin.members(run))
        except UnknownRun:
            return []
        assert isinstance(rows, list)
        return rows

    def inside(self, run: str) -> GenerationStatus:
        """Barriers and keys of a run."""
        ask = ShowGeneration(run=run)
        shown = self._ask(lambda admin: Calls(admin._engine).ask(ask, GenerationStatus, 5))
        assert isinstance(shown, GenerationStatus)
        return shown

    def arrived(self, run: str, barrier: str) -> int:
        """How many wait in the open round of a barrier; 0 if none is open."""
        return next((b.arrived for b in self.inside(run).barriers if b.name == barrier), 0)

    def rss_bytes(self) -> int:
        """Memory that it holds now."""
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def generation(self, run: str) -> int:
        """Number of the live generation, 0 if none is live."""
        status = self.run(run)
        if status is None or status.phase != "live" or status.fence is None:
            return 0
        return status.fence.generation

    def live(self, run: str, nodes: int, timeout_s: float, *, above: int = 0) -> RunStatus:
        """Wait until the run is live with that many participants (in a later generation)."""

        def formed() -> RunStatus | None:
            status = self.run(run)
            if status is None or status.phase != "live" or status.fence is None:
                return None
            good = status.participants == nodes and status.fence.generation > above
            return status if good else None

        return until(formed, timeout_s, f"run {run} live with {nodes} nodes: {self.run(run)}")
