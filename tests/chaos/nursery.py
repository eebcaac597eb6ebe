"""Imports the client library once and forks client processes: `python -m tests.chaos.nursery`, JSON lines.

`{"start": ORDERS, "log": PATH}` forks one, which is told of as `{"started": NAME, "pid": P}`, and as
`{"exited": NAME, "code": C}` when it ends (negative: signal). Ends with its stdin, and all of them with it.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos.client import Life, Orders
from tests.e2e.kit.processes import kill
from tests.e2e.kit.wait import until

REAP_S = 0.05
FORK_S = 20.0


def _child(order: dict[str, Any]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the harness, which ends all
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(number, target)
    return Life(Orders(**order["start"])).live()


def _say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _reap(children: dict[int, str]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        _say(exited=children.pop(pid), code=os.waitstatus_to_exitcode(status))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: dict[int, str] = {}
    text = b""
    _say(ready=os.getpid())
    while True:
        _reap(children)
        if not select.select([0], [], [], REAP_S)[0]:
            continue
        data = os.read(0, 65536)
        if not data:
            break
        *lines, text = (text + data).split(b"\n")
        for order in map(json.loads, lines):
            pid = os.fork()
            if not pid:
                code = 70
                try:
                    code = _child(order)
                finally:
                    os._exit(code)
            children[pid] = order["start"]["name"]
            _say(started=order["start"]["name"], pid=pid)
    for pid in children:
        kill(pid)


class Nursery:
    """The process, from the side of the harness.

    Args:
        folder: for its log and those of its children.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pids: dict[str, int] = {}
        self.codes: dict[str, int] = {}
        with open(folder / "nursery.log", "w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.nursery"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(60), (folder / "nursery.log").read_text()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "started" in said:
                self.pids[said["started"]] = said["pid"]
            elif "exited" in said:
                self.codes[said["exited"]] = said["code"]
            else:
                self._ready.set()

    def start(self, orders: Orders) -> int:
        """Fork a client; returns its pid."""
        order = {"start": asdict(orders), "log": str(self._folder / f"{orders.name}.log")}
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        until(lambda: orders.name in self.pids, FORK_S, f"client {orders.name} is forked")
        return self.pids[orders.name]

    def close(self) -> None:
        """End it and all of its children."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._reader.join(5)
        for name, pid in self.pids.items():
            if name not in self.codes:
                kill(pid)
        if self._process.stdout is not None:
            self._process.stdout.close()


if __name__ == "__main__":
    main()
