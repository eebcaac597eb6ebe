"""Reads every write in etcd's own order: the names of writes carry the fence of the server that made them."""

import os
import subprocess
import threading
from collections import Counter


class Witness:
    """Watches the key `head` from its beginning.

    Args:
        endpoint: of one etcd.
        prefix: of the cluster, without slashes at its ends.
    """

    def __init__(self, endpoint: str, prefix: str) -> None:
        self.fences: list[int] = []
        """One for each write, in etcd's order."""
        self._key = f"/{prefix}/head"
        self._process = subprocess.Popen(
            ["etcdctl", "--endpoints", endpoint, "watch", self._key, "--rev", "1"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"ETCDCTL_API": "3"},
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            fence, dot, number = line.strip().partition(".")
            if dot and fence.isdigit() and number.isdigit():
                self.fences.append(int(fence))

    def end(self) -> tuple[int, int]:
        """Writes seen, and how many of them came from a server behind its successor's first one."""
        self._process.terminate()
        self._process.wait(10)
        self._thread.join(10)
        late, newest = 0, 0
        for fence in self.fences:
            late += fence < newest
            newest = max(newest, fence)
        return len(self.fences), late

    def terms(self) -> Counter[int]:
        """Writes of each term."""
        return Counter(self.fences)
