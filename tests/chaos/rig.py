"""A place for chaos: namespaces of its own for network, mounts and processes, and what can be cut in them.

The server listens on all of 127.0.0.0/8 there, and each client reaches it at an address of its own, so
that nftables can cut one client off by that address, in either direction. All processes are in a namespace
that ends with its first one: however the harness ends, nothing is left.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

Way = Literal["up", "down", "refused"]
"""What the client sends is lost; what the server sends is lost; a reset answers what the client sends."""

INSIDE = "RDZV_CHAOS_INSIDE"

PORT = 29500
"""Of the server: nobody else is here."""

SLOW_PORT = 29501
"""Of the slow link before it."""

_RULES = f"""
table ip chaos {{
  set up {{ type ipv4_addr; }}
  set down {{ type ipv4_addr; }}
  set refused {{ type ipv4_addr; }}
  chain input {{
    type filter hook input priority 0; policy accept;
    tcp dport {PORT} ip daddr @up drop
    tcp sport {PORT} ip saddr @down drop
    tcp dport {PORT} ip daddr @refused reject with tcp reset
  }}
}}
"""


def missing() -> str | None:
    """Why there can be no such place here, or None."""
    if os.geteuid() != 0:
        return "needs root (namespaces)"
    for tool in ("unshare", "nft", "ip", "mount"):
        if shutil.which(tool) is None:
            return f"needs {tool}, which is not installed"
    probe = subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False)
    return None if probe.returncode == 0 else "namespaces are not allowed here"


_UNSHARE = (
    "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc",
    "--propagation", "private", "--",
)  # fmt: skip


def inside(module: str, arguments: Sequence[str]) -> list[str]:
    """The command that runs a module in such a place."""
    return [*_UNSHARE, "env", f"{INSIDE}=1", sys.executable, "-m", module, *arguments]


def enter(module: str, arguments: Sequence[str]) -> None:
    """Go there, by starting this program again; returns only where it is there already."""
    if INSIDE in os.environ:
        _nft(_RULES)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    words = inside(module, arguments)
    os.execvp(words[0], words)


def cut(addresses: Iterable[str], way: Way) -> None:
    """Begin to lose what goes to or comes from these addresses."""
    _nft(f"add element ip chaos {way} {{ {', '.join(addresses)} }}")


def heal(addresses: Iterable[str], way: Way) -> None:
    """Stop losing it."""
    _nft(f"delete element ip chaos {way} {{ {', '.join(addresses)} }}")


def _nft(rules: str) -> None:
    done = subprocess.run(
        ["nft", "-f", "-"], input=rules, text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"nft: {done.stderr.strip()}")


class SmallDisk:
    """A file system of a few MiB that can be filled.

    Args:
        path: where it is mounted.
        size: of it, as `mount` takes it.
    """

    def __init__(self, path: Path, size: str = "16m") -> None:
        self.path = path
        path.mkdir()
        options = f"size={size},mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)

    def fill(self) -> None:
        """Leave no room."""
        try:
            with open(self.path / "filler", "wb", buffering=0) as file:
                while True:
                    file.write(bytes(65536))
        except OSError:
            pass

    def empty(self) -> None:
        """Give the room back."""
        (self.path / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)
