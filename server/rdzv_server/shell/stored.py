"""Opening what the server keeps its state in, as the configuration names it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rdzv_server.config import Config
from rdzv_server.core.durable import restoring
from rdzv_server.http.buckets import COMMIT_S, Buckets
from rdzv_server.storage.base import RecordStore, StorageError
from rdzv_server.storage.sqlite import SqliteStore


@dataclass(frozen=True)
class Stored:
    """A store, and what it held at the start."""

    store: RecordStore
    records: Mapping[bytes, bytes] = field(repr=False)
    path: Path

    @property
    def epoch(self) -> int | None:
        """Of the server whose state this is; None if it is new.

        Raises:
            StorageError: the records are not those of this server.
        """
        try:
            return restoring.epoch_of(self.records)
        except restoring.UnreadableError as error:
            raise unreadable(self.path, error) from None


@dataclass
class CommitNumbers:
    """For metrics."""

    latency: Buckets = field(default_factory=lambda: Buckets(COMMIT_S))
    failures: int = 0

    def took(self, seconds: float) -> None:
        """A commit was made."""
        self.latency.observe(seconds)


def open_stored(config: Config) -> Stored | None:
    """What the configuration names; None: state ends with the process.

    Raises:
        StorageError: it cannot be used; the text is for the operator.
    """
    path = config.state_path()
    if path is None:
        return None
    store = SqliteStore(path)
    try:
        return Stored(store, store.load(), path)
    except BaseException:
        store.close()
        raise


def unreadable(path: Path, error: Exception) -> StorageError:
    """The file is whole, and means nothing to this server."""
    return StorageError(f"{path}: {error}; was it written by another version?", "newer")


def new_epoch() -> int:
    """For a start without state, which must never repeat an epoch. The one reading of the wall clock that
    decides anything."""
    return time.time_ns() // 1_000_000
