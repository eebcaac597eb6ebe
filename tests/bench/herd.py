"""The herd: all connections of one large world break at the same moment, and all nodes come back.

    python -m tests.bench herd [--clients 3000] [--kinds plain,token,mtls] [--rounds 2] [--lease 15] [--kill]

Each node is the production client session with its own back-off; several processes share them. Printed: the time
until all are back, how long a node was away, connection attempts, the server's CPU time, and how many nodes
were given up (there must be none: the world is the same as before).
"""

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rdzv_client.admin import Admin
from rdzv_client.credentials import Credentials
from rdzv_proto.auth import EVERYTHING, Token

PROCESSES = 4
PATIENCE_S = 120.0
RUN = "herd"


class Files:
    """Token and certificates of one bench."""

    def __init__(self, folder: Path) -> None:
        import trustme

        self.token = Token(EVERYTHING, os.urandom(32)).text()
        self.token_file = folder / "token"
        self.token_file.write_text(self.token)
        ca = trustme.CA()
        self.ca, self.server, self.client = (
            folder / f"{n}.pem" for n in ("ca", "server", "client")
        )
        ca.cert_pem.write_to_path(str(self.ca))
        ca.issue_cert("server").private_key_and_cert_chain_pem.write_to_path(str(self.server))
        ca.issue_cert("bench").private_key_and_cert_chain_pem.write_to_path(str(self.client))
        for path in (self.token_file, self.server, self.client):
            path.chmod(0o600)


class Herd:
    """The server and the processes with the clients."""

    def __init__(self, kind: str, files: Files, clients: int, lease_s: float, log: Path) -> None:
        flags: list[str] = []
        self.told: dict[str, Any] = {
            "world": clients, "lease_ms": round(lease_s * 1000), "token": "", "tls_ca": "",
        }  # fmt: skip
        named: dict[str, str] = {}
        if kind != "plain":
            flags += ["--token-file", str(files.token_file)]
            self.told["token"] = files.token
            named["token_file"] = str(files.token_file)
        if kind == "mtls":
            flags += ["--tls-cert", str(files.server), "--tls-client-ca", str(files.ca)]
            tls = {"tls_ca": str(files.ca), "tls_cert": str(files.client), "tls_key": ""}
            self.told |= tls
            named |= tls | {"tls_server_name": "server"}
        self._credentials = Credentials(**named)
        self._log = open(log, "w")  # noqa: SIM115  (closed in `end`)
        self._flags = [*flags, "--http-port", "off", "--data-dir", str(log.parent / "state")]
        self.port = 0
        self._start()
        self.told["port"] = self.port
        self._heard: queue.Queue[dict[str, Any]] = queue.Queue()
        each = [clients // PROCESSES + (n < clients % PROCESSES) for n in range(PROCESSES)]
        self._crowds = [self._crowd(sum(each[:n]), each[n]) for n in range(PROCESSES)]

    def _start(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-m", "rdzv_server", "--port", str(self.port), *self._flags],
            stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        assert self.server.stdout is not None
        ready = dict(part.split("=", 1) for part in self.server.stdout.readline().split()[1:])
        self.port = int(ready["port"])

    def kill(self) -> None:
        """Kill the server, and start it again on what it stored."""
        self.server.kill()
        self.server.wait(10)
        assert self.server.stdout is not None
        self.server.stdout.close()
        self._start()

    def _crowd(self, first: int, count: int) -> "subprocess.Popen[str]":
        told = json.dumps(self.told | {"first": first, "count": count})
        crowd = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.herd_clients", told],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        threading.Thread(target=self._listen, args=(crowd,), daemon=True).start()
        return crowd

    def _listen(self, crowd: "subprocess.Popen[str]") -> None:
        assert crowd.stdout is not None
        for line in crowd.stdout:
            self._heard.put(json.loads(line))

    def all(self, event: str) -> list[dict[str, Any]]:
        """Wait until every process has said it."""
        rows: list[dict[str, Any]] = []
        until = time.monotonic() + PATIENCE_S
        while len(rows) < PROCESSES:
            row = self._heard.get(timeout=max(0.0, until - time.monotonic()))
            if row["event"] == event:
                rows.append(row)
            elif row["event"] != "dropped":
                raise RuntimeError(f"while waiting for {event!r}: {row}")
        return rows

    def drop(self) -> None:
        """Break all connections."""
        for crowd in self._crowds:
            assert crowd.stdin is not None
            crowd.stdin.write("drop\n")
            crowd.stdin.flush()

    @property
    def cpu_s(self) -> float:
        """CPU time of the server so far."""
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def world(self) -> tuple[str, int]:
        """Fence and participants of the live generation."""
        where = f"127.0.0.1:{self.port}"
        with contextlib.closing(Admin(where, timeout_s=30, credentials=self._credentials)) as admin:
            (run,) = admin.runs(RUN)
        return str(run.fence), run.participants

    def end(self) -> None:
        for process in (*self._crowds, self.server):
            process.terminate()
        for process in (*self._crowds, self.server):
            process.wait(10)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._log.close()


@contextlib.contextmanager
def herd(kind: str, clients: int, lease_s: float) -> Iterator[Herd]:
    """A world of so many nodes."""
    with tempfile.TemporaryDirectory(prefix="rdzv-herd-") as name:
        folder = Path(name)
        made = Herd(kind, Files(folder), clients, lease_s, folder / "log")
        try:
            yield made
        except Exception:
            print("\n".join((folder / "log").read_text().splitlines()[-20:]), file=sys.stderr)
            raise
        finally:
            made.end()


def measure(kind: str, clients: int, rounds: int, lease_s: float, *, kill: bool) -> bool:
    """Print one kind; whether nobody was given up."""
    good = True
    with herd(kind, clients, lease_s) as made:
        began = time.monotonic()
        made.all("joined")
        print(f"{kind:6} {clients} nodes: first world after {time.monotonic() - began:.1f} s")
        before = made.world()
        for _ in range(rounds):
            cpu_s, began = made.cpu_s, time.monotonic()
            if kill:
                cpu_s = 0.0
                made.kill()
            else:
                made.drop()
            rows = made.all("back")
            took_s = time.monotonic() - began
            away = sorted(s for row in rows for s in row["away_s"])
            connects = sum(row["connects"] for row in rows)
            same = made.world() == before
            good &= same
            print(
                f"{kind:6} all back after {took_s:5.1f} s; away p50 {away[len(away) // 2]:.1f} s, "
                f"p99 {away[len(away) * 99 // 100]:.1f} s; {connects} attempts; server CPU "
                f"{made.cpu_s - cpu_s:.1f} s; {'nobody was given up' if same else 'NODES WERE LOST'}"
            )
    return good


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench herd")
    parser.add_argument("--clients", type=int, default=3000)
    parser.add_argument("--kinds", default="plain,token,mtls")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--lease", type=float, default=15.0)
    parser.add_argument("--kill", action="store_true", help="kill the server instead")
    told = parser.parse_args(arguments)
    good = True
    for kind in told.kinds.split(","):
        good &= measure(kind, told.clients, told.rounds, told.lease, kill=told.kill)
    return 0 if good else 1
