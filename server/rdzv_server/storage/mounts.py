"""On which kind of file system a path lies."""

import os
import re
from pathlib import Path

from rdzv_server.storage.base import StorageError

_NETWORK = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "smb3",
        "smbfs",
        "virtiofs",
        "wekafs",
    ]
)
"""Shared with other machines, or with a host: locks and shared memory may hold in one kernel only."""

_LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.ntfs-3g", "fuse.lxcfs"})
"""Of file systems in user space these have their data on a local disk. The others mostly have not
(sshfs, s3fs, glusterfs, …), so they are refused unless somebody says otherwise."""


def file_system(path: Path, mounts: str) -> str:
    """The type of the file system that a path lies on.

    Args:
        path: absolute, without symbolic links.
        mounts: the text of /proc/self/mountinfo.
    """
    best, found = -1, "unknown"
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = Path(_unescape(fields[4]))
        # The later of two mounts on one place covers the earlier.
        if len(point.parts) >= best and (path == point or point in path.parents):
            best, found = len(point.parts), after.split(" ", 1)[0]
    return found


def is_network(kind: str) -> bool:
    """Whether a type of file system is, or may be, kept by another machine."""
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def refuse_network(directory: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
    """Let through only what is on a disk of this machine, as far as the system tells.

    Raises:
        StorageError: it is not.
    """
    try:
        mounts = mountinfo.read_text(errors="surrogateescape")
    except OSError:
        return
    kind = file_system(Path(os.path.realpath(directory)), mounts)
    if is_network(kind):
        raise StorageError(
            f"{directory} is on a network file system ({kind}): SQLite's write-ahead log needs shared "
            "memory and locks that these do not give, and loses data without: take a directory on a "
            "local disk (`--data-dir`), `--state memory`, or risk it with `--force-network-fs`",
            "network",
        )


def _unescape(text: str) -> str:
    """mountinfo writes blanks, tabs, newlines and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
