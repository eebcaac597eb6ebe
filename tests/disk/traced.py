"""The small writer under strace: what it did, killed or lied to at a chosen system call."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

TIMEOUT_S = 60.0
"""A writer needs a tenth of a second."""

_CALL = re.compile(r"^(?:\d+ +)?(\w+)\((\d+)?(?:<([^>]*)>)?")

_KEPT = re.compile(r"/rdzv\.db(-wal|-acked)?$")

_CHANGING = {"pwrite64", "write", "fsync", "fdatasync", "ftruncate"}


def available() -> str | None:
    """Why not, or None."""
    if shutil.which("strace") is None:
        return "needs strace"
    done = subprocess.run(
        ["strace", "-o", os.devnull, "-e", "trace=fsync", "true"], capture_output=True, check=False
    )
    return None if done.returncode == 0 else "strace may not trace here"


@dataclass
class Ran:
    """What a writer did.

    Args:
        returncode: negative if it was killed.
        lines: what it said.
        trace: its system calls.
    """

    returncode: int
    lines: list[str]
    trace: list[str]

    @property
    def acked(self) -> int:
        """The last commit that it was promised."""
        numbers = [int(line.split()[1]) for line in self.lines if line.startswith("acked ")]
        return max(numbers, default=0)

    @property
    def failed(self) -> list[int]:
        """The commits that failed, one entry for each time; 0: it could not start."""
        return [int(line.split()[1]) for line in self.lines if line.startswith("failed ")]

    @property
    def begun(self) -> int:
        """The last commit that it tried."""
        return max([self.acked, *self.failed]) + (self.returncode < 0)

    def counts(self) -> Counter[str]:
        """How often each system call was made."""
        return Counter(m[1] for line in self.trace if (m := _CALL.match(line)))

    def went_on_after_fault(self) -> str | None:
        """A line in which a file was changed through a descriptor on which a fault had been told. A
        database in the making does not count: it is thrown away."""
        faulty: set[str] = set()
        for line in self.trace:
            match = _CALL.match(line)
            if match is None or match[2] is None:
                continue
            call, fd = match[1], match[2]
            if call == "close":
                faulty.discard(fd)
            elif fd in faulty and call in _CHANGING:
                return line
            elif "(INJECTED)" in line and call in _CHANGING and _KEPT.search(match[3] or ""):
                faulty.add(fd)
        return None


def run(arguments: list[str], calls: str, inject: str | None = None) -> Ran:
    """Run a writer.

    Args:
        arguments: its own.
        calls: names of system calls to see, with commas.
        inject: what to do at one of them, as strace takes it.
    """
    with tempfile.TemporaryDirectory(prefix="rdzv-trace-") as name:
        trace = Path(name) / "trace"
        command = ["strace", "-f", "-qq", "-y", "-s", "0", "-o", str(trace)]
        if "signal=" not in (inject or ""):
            command.append(
                "--seccomp-bpf"
            )  # quicker; with it strace 6.1 injects no signal, and says nothing
        command += ["-e", f"trace={calls}", "-e", "signal=none"]
        if inject is not None:
            command += ["-e", f"inject={inject}"]
        command += [sys.executable, "-m", "tests.disk.writer", *arguments]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line]
        return Ran(done.returncode, lines, trace.read_text(errors="replace").splitlines())


def environment() -> dict[str, str]:
    """Byte code that is written would be system calls of their own."""
    path = os.pathsep.join(str(ROOT / part) for part in ("server", "client", "proto", "."))
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
