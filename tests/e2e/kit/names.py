"""A private hosts file: names that only the processes of one test know. Needs root."""

import os
import shlex
from pathlib import Path


class Names:
    """A hosts file that is mounted over /etc/hosts for commands started with `prefix`.

    Args:
        folder: where it lies. It can be rewritten while the commands run.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "hosts"
        self._nsswitch = folder / "nsswitch.conf"
        self._nsswitch.write_text("hosts: files\n")
        self._names: dict[str, str] = {"localhost": "127.0.0.1"}
        self._write()

    def add(self, name: str, address: str) -> None:
        """Make a name known, from now on."""
        self._names[name] = address
        self._write()

    def _write(self) -> None:
        # Rewritten in place: the mount is on this very file.
        text = "".join(f"{address} {name}\n" for name, address in self._names.items())
        with open(self.path, "w") as file:
            file.write(text)

    def prefix(self) -> list[str]:
        """Words before a command that shall see these names, and no name service."""
        mounts = (
            f"mount --bind {shlex.quote(str(self.path))} /etc/hosts && "
            f"mount --bind {shlex.quote(str(self._nsswitch))} /etc/nsswitch.conf && "
        )
        return [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            mounts + 'exec "$@"',
            "sh",
        ]


def can_mount() -> bool:
    """True if this process may make a mount namespace."""
    return os.geteuid() == 0
