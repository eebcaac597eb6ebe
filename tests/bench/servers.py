"""Servers as processes of their own: ours, torch's TCPStore, and a C reference where there is one."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REFERENCE_ENV = "RDZV_BENCH_SHARED"
"""Folder with `cserver.c`: an epoll loop in C that echoes and releases, the least a server can do."""

_TCPSTORE = """
import os, sys
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=True)
print(store.port, flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    name: str
    pid: int
    port: int
    epoch: int = 0
    """Of ours."""

    def cpu_paths(self) -> list[str]:
        """What the kernel says each of its threads has used."""
        return [str(task / "schedstat") for task in Path(f"/proc/{self.pid}/task").iterdir()]

    def cpu_s(self) -> float:
        """CPU time of all its threads so far."""
        return sum(int(Path(path).read_text().split()[0]) for path in self.cpu_paths()) * 1e-9

    def memory_bytes(self) -> int:
        """Its share of memory (PSS)."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        return next(int(x.split()[1]) for x in text.splitlines() if x.startswith("Pss:")) * 1024

    def settle(self, patience_s: float = 10.0) -> None:
        """Wait until it has dealt with the end of the connections before."""
        deadline = time.monotonic() + patience_s
        used = self.cpu_s()
        while time.monotonic() < deadline:
            time.sleep(0.05)
            before, used = used, self.cpu_s()
            if used - before < 0.001:
                return


@contextlib.contextmanager
def rdzv(cpu: int | None = None) -> Iterator[Server]:
    """Our server as users start it."""
    command = [sys.executable, "-m", "rdzv_server", "--port", "0", "--log-level", "error"]
    with _process(command, cpu) as (pid, line):
        ready = dict(part.split("=") for part in line.split()[1:])
        yield Server("rdzv", pid, int(ready["port"]), int(ready["epoch"]))


@contextlib.contextmanager
def tcpstore(cpu: int | None = None) -> Iterator[Server]:
    """torch's TCPStore with its default back end, in a process that does nothing else.

    It looks up the name of each client as it accepts it, on its event loop: a name server that does
    not answer costs five seconds a time. That is no part of what is measured, so names come from
    files only where the kernel lets us arrange that (a mount namespace).
    """
    command = [sys.executable, "-c", _TCPSTORE]
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as names:
        names.write("hosts: files\n")
        names.flush()
        shell = f"mount --bind {names.name} /etc/nsswitch.conf && exec "
        private = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        tried = subprocess.run(
            [*private, "sh", "-c", f"{shell} true"], check=False, capture_output=True
        )
        if tried.returncode == 0:
            command = [*private, "sh", "-c", f'{shell} "$@"', "sh", *command]
        with _process(command, cpu) as (pid, line):
            yield Server("TCPStore", pid, int(line))


@contextlib.contextmanager
def reference(program: Path, cpu: int | None = None) -> Iterator[Server]:
    """The C reference."""
    with _process([str(program)], cpu) as (pid, line):
        yield Server("C", pid, int(line))


def reference_source() -> Path | None:
    """Where the source of the C reference is, if it is anywhere."""
    here = Path(os.environ.get(REFERENCE_ENV, "../shared/bench"))
    return here / "cserver.c" if (here / "cserver.c").exists() else None


def pinned(command: list[str], cpu: int | None) -> list[str]:
    """The command, kept to one core."""
    return command if cpu is None else ["taskset", "-c", str(cpu), *command]


@contextlib.contextmanager
def _process(command: list[str], cpu: int | None) -> Iterator[tuple[int, str]]:
    """A pinned process and its first line of output; ended at the end."""
    process = subprocess.Popen(
        pinned(command, cpu),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR"},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{command[0]} ended before it said its port")
        yield process.pid, line
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
