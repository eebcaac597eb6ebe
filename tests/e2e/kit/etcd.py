"""Real etcd processes on loopback, one or three of them."""

import contextlib
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from tests.e2e.kit.processes import MARKER
from tests.e2e.kit.wait import until
from tests.ports import free_ports

READY_S = 30.0


def installed() -> bool:
    """Debian's package etcd-server is there."""
    return shutil.which("etcd") is not None


class Member:
    """One process of a cluster."""

    def __init__(
        self, folder: Path, marker: str, number: int, ports: tuple[int, int], flags: Iterable[str]
    ) -> None:
        self.name = f"etcd{number}"
        self.client_port, self.peer_port = ports
        self._folder, self._marker = folder, marker
        self._flags = list(flags)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def peer(self) -> str:
        return f"{self.name}=http://127.0.0.1:{self.peer_port}"

    def start(self, cluster: str, scheme: str = "http") -> None:
        client, peer = f"{scheme}://127.0.0.1:{self.client_port}", self.peer.split("=")[1]
        with open(self._folder / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    "etcd", "--name", self.name, "--data-dir", str(self._folder / self.name),
                    "--listen-client-urls", client, "--advertise-client-urls", client,
                    "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", cluster, "--unsafe-no-fsync", *self._flags,
                ],
                stdout=log, stderr=log, env=os.environ | {MARKER: self._marker},
            )  # fmt: skip

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    @property
    def is_leader(self) -> bool:
        """Of etcd's own, as its metrics say."""
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{self.client_port}/metrics"
            with urllib.request.urlopen(url, timeout=1) as answer:
                return b"\netcd_server_is_leader 1\n" in answer.read()
        return False


class Etcd:
    """A cluster of etcd.

    Args:
        folder: for its data and logs.
        marker: of the test.
        members: how many.
        flags: for all of them.
        scheme: of its client port.
    """

    def __init__(
        self, folder: Path, marker: str, members: int = 1, *flags: str, scheme: str = "http"
    ) -> None:
        low, _ = free_ports(2 * members)
        self.members = [
            Member(folder, marker, n, (low + 2 * n, low + 2 * n + 1), flags) for n in range(members)
        ]
        self._folder, self._scheme = folder, scheme
        for member in self.members:
            self.start(member)
        if scheme == "http":
            until(lambda: self.leader is not None, READY_S, "etcd has a leader")

    def start(self, member: Member) -> None:
        """Again, or for the first time."""
        member.start(",".join(each.peer for each in self.members), self._scheme)

    @property
    def leader(self) -> Member | None:
        """The member that leads the others."""
        return next((member for member in self.members if member.is_leader), None)

    def state(self, prefix: str = "rdzv/test") -> str:
        """What `--state` takes."""
        hosts = ",".join(f"127.0.0.1:{member.client_port}" for member in self.members)
        return f"etcd://{hosts}/{prefix}"

    def get(self, key: str) -> str:
        """The value of a key, as text; empty if it is not there."""
        command = ["etcdctl", "--endpoints", f"127.0.0.1:{self.members[0].client_port}", "get"]
        run = subprocess.run(
            [*command, key, "--print-value-only"], capture_output=True, timeout=20, check=True,
            env=os.environ | {"ETCDCTL_API": "3"},
        )  # fmt: skip
        return run.stdout.decode(errors="replace").rstrip("\n")

    def close(self) -> None:
        for member in self.members:
            with contextlib.suppress(ProcessLookupError, AssertionError):
                member.signal(signal.SIGCONT)
            member.kill()
        # etcd lays its logs out in 64 MB each, and whoever looks for secrets afterwards reads every byte.
        for path in self._folder.glob("etcd*/member/wal/*"):
            path.write_bytes(path.read_bytes().rstrip(b"\0"))
