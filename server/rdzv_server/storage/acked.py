"""The number of the last acknowledged commit, in a small file beside the database.

It tells a log that ended from one that was damaged: SQLite recovers both without a word. The file is not
fsynced with each commit, which would double its cost: it survives the death of the process, and after a
loss of power it may say less than there is, never more.

It has two slots, written in turn, so that one is always whole. When a slot is damaged, by a write that
was torn, the other says n and the damaged one may have said n + 1, not more. A commit is on the disk
before its number is written here; so with commit n + 1 in the database nothing is lost, and the server
starts. Without it nobody can tell, and it refuses. It also refuses without the file: it is made, and
brought to the disk, before the database is.
"""

import os
import struct
from dataclasses import dataclass
from hashlib import blake2b

from rdzv_server.storage import faults, files
from rdzv_server.storage.integrity import SUM_BYTES, Meta

_MAGIC = b"rdzvack1"
_SLOT = struct.Struct(">8sQ16s16s")
_APART = 512
"""Between slots: a sector, the most that a disk writes all or nothing."""


@dataclass(frozen=True)
class Acked:
    """What the file says.

    Args:
        number: of the last acknowledged commit.
        identity: of the database.
        chain: hash over all commits.
        whole: False if a slot is damaged, and the number may be one higher.
    """

    number: int
    identity: bytes
    chain: bytes
    whole: bool = True


class AckedFile:
    """The file while commits are made.

    Args:
        path: of the file; it has to be there.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)

    def write(self, meta: Meta) -> None:
        """A commit is on the disk.

        Raises:
            OSError: it cannot be written.
        """
        files.write_at(self._fd, _pack(meta), meta.number % 2 * _APART)

    def renew(self, meta: Meta) -> None:
        """Make both slots whole, and bring them to the disk.

        Raises:
            OSError: they cannot be written.
        """
        for turn in (0, 1):
            files.write_at(self._fd, _pack(meta), (meta.number + turn) % 2 * _APART)
            os.fsync(self._fd)

    def sync(self) -> None:
        """Bring it to the disk.

        Raises:
            OSError: it cannot be written.
        """
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)


def content(meta: Meta) -> bytes:
    """A whole new file."""
    return 2 * _pack(meta).ljust(_APART, b"\0")


def read(path: str) -> Acked | None:
    """What the file says; None if there is none.

    Raises:
        StorageError: it cannot be read, or nothing in it is whole.
    """
    if not files.check(path):
        return None
    try:
        with open(path, "rb") as file:
            data = file.read(2 * _APART)
    except OSError as error:
        raise faults.translate(error, path, "read it") from None
    slots = [slot for at in (0, _APART) if (slot := _unpack(data[at:])) is not None]
    if not slots:
        raise faults.corrupt(path, "it is damaged, so nobody knows whether commits are lost")
    last = max(slots, key=lambda slot: slot.number)
    if len(slots) == 2 and slots[0].identity == slots[1].identity:
        return last
    return Acked(last.number, last.identity, last.chain, whole=False)


def compare(path: str, last: Acked | None, meta: Meta, place: str = "") -> None:
    """Hold what was recovered against what was acknowledged.

    Args:
        path: of the file.
        last: what it says.
        meta: what the database says.
        place: where the log is damaged, if it is.

    Raises:
        StorageError: acknowledged commits are lost, or may be.
    """
    if last is None:
        raise faults.corrupt(path, "it is missing, so nobody knows whether commits are lost")
    if last.identity != meta.identity:
        raise faults.corrupt(path, "it belongs to another database than the one beside it")
    missing = last.number - meta.number
    if missing > 0:
        what = f"acknowledged commit {last.number} is" if missing == 1 else (
            f"{missing} acknowledged commits, {meta.number + 1} to {last.number}, are"
        )  # fmt: skip
        raise faults.lost(path, f"{what} lost{place}")
    if missing == 0 and last.chain != meta.chain:
        raise faults.corrupt(path, f"commit {meta.number} is another one than was acknowledged")
    if missing == 0 and not last.whole:
        raise faults.corrupt(
            path, f"it is damaged, so nobody knows whether commit {meta.number + 1} is lost"
        )


def _pack(meta: Meta) -> bytes:
    slot = _SLOT.pack(_MAGIC, meta.number, meta.identity, meta.chain)
    return slot + _checksum(slot)


def _unpack(data: bytes) -> Acked | None:
    slot, checksum = data[: _SLOT.size], data[_SLOT.size : _SLOT.size + SUM_BYTES]
    if len(slot) < _SLOT.size or checksum != _checksum(slot):
        return None
    magic, number, identity, chain = _SLOT.unpack(slot)
    return Acked(number, identity, chain) if magic == _MAGIC else None


def _checksum(slot: bytes) -> bytes:
    return blake2b(slot, digest_size=SUM_BYTES, person=b"rdzv acked").digest()
