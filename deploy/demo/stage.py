"""The processes of the demo: what they print arrives as events, and all of them can be ended.

Every process carries the marker in its environment and hands it down to its children. That is how the
workers of a killed agent are found: torchrun gives each a session of its own, so neither a process
group nor the parent leads to them.
"""

import contextlib
import os
import queue
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MARKER = "RDZV_DEMO"
TAIL_LINES = 25
END_S = 10.0
"""Patience for killed processes to be gone."""


@dataclass(frozen=True)
class Line:
    """A process printed a line."""

    at: float
    who: str
    text: str


@dataclass(frozen=True)
class Exited:
    """A process ended; a negative code is a signal."""

    at: float
    who: str
    code: int


@dataclass(frozen=True)
class Signalled:
    """The demo itself got a signal."""

    number: int


Event = Line | Exited | Signalled


class Stage:
    """Starts processes and ends them.

    Args:
        events: where everything that happens is put.

    Attributes:
        folder: for whatever the processes write; goes with them.
    """

    def __init__(self, events: "queue.SimpleQueue[Event]") -> None:
        self._events = events
        self._token = secrets.token_hex(8)
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._tails: dict[str, deque[str]] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="rdzv-demo-"))

    def next_event(self, timeout_s: float) -> Event | None:
        """Wait for something to happen."""
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=max(timeout_s, 0.0))
        return None

    def environment(self, who: str) -> dict[str, str]:
        """For a process of this demo: ours, without what would lead it elsewhere."""
        strange = ("RDZV_", "PET_", "TORCHELASTIC_", "MASTER_")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(strange)}
        return clean | {MARKER: f"{self._token}:{who}", "TMPDIR": str(self.folder)}

    def start(self, who: str, argv: Sequence[str], **variables: str) -> None:
        """Start a process.

        Args:
            who: its name; for a node it stands for the agent and its workers.
            argv: command line.
            variables: more of its environment.
        """
        self._tails[who] = deque(maxlen=TAIL_LINES)
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            cwd=self.folder,
            env=self.environment(who) | variables,
            start_new_session=True,  # Ctrl-C is for the demo alone, which then ends the others
        )
        self._running[who] = process
        reader = threading.Thread(target=self._read, args=(who, process), daemon=True)
        reader.start()
        threading.Thread(target=self._reap, args=(who, process, reader), daemon=True).start()

    def _read(self, who: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                text = line.rstrip()
                self._tails[who].append(text)
                self._events.put(Line(time.monotonic(), who, text))

    def _reap(self, who: str, process: subprocess.Popen[str], reader: threading.Thread) -> None:
        code = process.wait()
        at = time.monotonic()
        reader.join(1.0)  # its last words come first; orphans may hold the pipe open for longer
        self._events.put(Exited(at, who, code))

    def pid(self, who: str) -> int:
        """Of the process itself."""
        return self._running[who].pid

    def tail(self, who: str) -> list[str]:
        """The last lines that a process printed."""
        return list(self._tails.get(who, ()))

    def terminate(self, who: str) -> None:
        """SIGTERM to one process."""
        self._running[who].terminate()

    def pids(self, who: str = "") -> list[int]:
        """Living processes of one name, children included, or of all."""
        start = f"{MARKER}={self._token}:{who}".encode()
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                    words = file.read().split(b"\0")
                    if any(word == start or (not who and word.startswith(start)) for word in words):
                        found.append(int(entry))
        return sorted(found)

    def kill(self, who: str = "") -> list[int]:
        """SIGKILL all processes of one name, or all, until none is left; returns their pids."""
        killed: dict[int, None] = {}
        deadline = time.monotonic() + END_S
        while found := self.pids(who):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= dict.fromkeys(found)
            if time.monotonic() > deadline:
                break
            time.sleep(0.002)  # they are on their way out, or have just forked
        return list(killed)

    def clear(self) -> list[str]:
        """End everything and leave nothing on the disk; returns what withstood."""
        self.kill()
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        shutil.rmtree(self.folder, ignore_errors=True)
        left = [f"process {pid}" for pid in self.pids()]
        return left + [str(self.folder)] * self.folder.exists()
