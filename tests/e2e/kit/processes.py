"""Processes by their marker: every process of a test, and its children, can be found and ended."""

import contextlib
import os
import signal

MARKER = "RDZV_TEST_MARKER"


def marked(value: str, variable: str = MARKER) -> list[int]:
    """Pids of all processes whose environment holds `variable=value`."""
    wanted = f"{variable}={value}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(entry))
    return found


def alive(pid: int) -> bool:
    """True while the process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal; a process that is gone is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_marked(value: str, variable: str = MARKER) -> int:
    """SIGKILL all marked processes until none is left; returns how many there were."""
    pids: set[int] = set()
    while True:
        found = [pid for pid in marked(value, variable) if alive(pid) and pid != os.getpid()]
        if not found:
            return len(pids)
        for pid in found:
            kill(pid)
        pids.update(found)
