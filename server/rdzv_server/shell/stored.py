"""Opening what the server keeps its state in, as the configuration names it."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from rdzv_server.config import Config
from rdzv_server.core.durable import restoring
from rdzv_server.http.buckets import COMMIT_S, Buckets
from rdzv_server.shell import log
from rdzv_server.storage.base import RecordStore, StorageError
from rdzv_server.storage.repair import repair
from rdzv_server.storage.sqlite import SqliteStore

_NOT_HERE = ("access", "network", "unsupported")
"""Why a place that nobody named is not used."""


@dataclass(frozen=True)
class Stored:
    """A store, and what it held at the start."""

    store: RecordStore
    records: dict[bytes, bytes] = field(repr=False)
    place: str
    """For people."""

    @property
    def epoch(self) -> int | None:
        """Of the server whose state this is; None if it is new.

        Raises:
            StorageError: the records are not those of this server.
        """
        try:
            return restoring.epoch_of(self.records)
        except restoring.UnreadableError as error:
            raise unreadable(self.place, error) from None


@dataclass
class CommitNumbers:
    """For metrics."""

    latency: Buckets = field(default_factory=lambda: Buckets(COMMIT_S))
    failures: int = 0

    def took(self, seconds: float) -> None:
        """A commit was made."""
        self.latency.observe(seconds)


def open_stored(config: Config) -> Stored | None:
    """What the configuration names, or the usual place; None: state ends with the process.

    Raises:
        StorageError: it cannot be used; the text is for the operator.
    """
    path = config.state_path()
    if path is not None:
        return _open(path, config)
    path = config.state_path_default(os.environ)
    if path is None:
        if not config.state:
            log.event(
                "state_in_memory", "warning", text="a free port is another one after a restart"
            )
        return None
    try:
        return _open(path, config)
    except StorageError as error:
        if error.cause not in _NOT_HERE:
            raise
        text = f"{error}; a restart of the server will end all generations (--data-dir names another place)"
        log.event("state_in_memory", "warning", text=text)
        return None


def mend(config: Config) -> str:
    """Keep what is whole of a damaged database; returns what was kept and dropped. Parts of a world may be
    missing, so no generation goes on: the next start has a new epoch.

    Raises:
        StorageError: there is none, or it cannot be mended.
    """
    path = config.state_path() or config.state_path_default(os.environ)
    if path is None:
        raise StorageError("--repair needs --data-dir or --state sqlite:PATH", "access")
    report = repair(path)
    store = SqliteStore(path, force_network_fs=config.force_network_fs)
    try:
        store.commit(restoring.in_new_epoch(store.load(), new_epoch()))
    except restoring.UnreadableError as error:
        raise unreadable(str(path), error) from None
    finally:
        store.close()
    return f"{report}\nit goes on in a new epoch: runs, keys of runs and closed runs are kept, generations are over"


def _open(path: Path, config: Config) -> Stored:
    store = SqliteStore(path, force_network_fs=config.force_network_fs)
    try:
        stored = Stored(store, store.load(), str(path))
        say_migrated(store.migrated, len(stored.records))
        return stored
    except BaseException:
        store.close()
        raise


def say_migrated(versions: tuple[int, int] | None, records: int) -> None:
    """That records were brought forward, if they were."""
    if versions is not None:
        text = "a server that knows only the older schema refuses it from now on"
        log.event("state_migrated", was=versions[0], now=versions[1], records=records, text=text)


def unreadable(place: str, error: Exception) -> StorageError:
    """It is whole, and means nothing to this server."""
    return StorageError(f"{place}: {error}; was it written by another version?", "newer")


def new_epoch() -> int:
    """For a start without state, which must never repeat an epoch. The one reading of the wall clock that
    decides anything."""
    return time.time_ns() // 1_000_000
