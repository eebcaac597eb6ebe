"""What a store of records is, whatever it is made of."""

from collections.abc import Mapping
from typing import Literal, Protocol

Changes = Mapping[bytes, bytes | None]
"""A record's key and its new value; None: the record is gone."""

Cause = Literal[
    "full",  # no space left, or a quota is used up
    "io",  # the device or the file system failed
    "corrupt",  # what is stored is not what was written
    "lost",  # what is stored is whole, but older than what was acknowledged
    "owned",  # another server, or another cluster, has it
    "deposed",  # another server of this cluster leads by now
    "busy",  # another program holds a lock on it
    "access",  # rights, owner, a symbolic link, a read-only file system
    "network",  # a file system that cannot keep it safe
    "newer",  # written by a later version of the server
    "older",  # written by a version too old to be brought forward
    "unsupported",  # the SQLite library here is too old
]
"""Why a store failed, for programs."""


class StorageError(Exception):
    """A store failed. The text is for the operator: which file, why, what to do.

    Args:
        text: one line.
        cause: the same for programs.
    """

    def __init__(self, text: str, cause: Cause) -> None:
        super().__init__(text)
        self.cause: Cause = cause


class RecordStore(Protocol):
    """Keeps records through crashes. Calls come from one thread at a time."""

    @property
    def name(self) -> str:
        """What READY and `rdzv status` call it."""

    def load(self) -> dict[bytes, bytes]:
        """Everything that is stored, verified. Once, before the first commit.

        Raises:
            StorageError: it cannot be read, or is not what was written.
        """

    def commit(self, changes: Changes) -> None:
        """Store changes, all or none; they are durable when this returns.

        Raises:
            StorageError: nothing of it counts as done. It may have reached the disk nevertheless, as
                with any failure of a disk: the caller commits the same changes again, alone or with
                later ones, which has the effect of once.
        """

    def tidy(self) -> None:
        """Do what need not hold up a commit: nobody waits for one now. Never raises."""

    def close(self) -> None:
        """Let go of everything. Never raises."""
