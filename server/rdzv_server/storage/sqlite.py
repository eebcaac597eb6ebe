"""Records in a SQLite database on a local disk."""

import contextlib
import os
import sqlite3
from pathlib import Path

from rdzv_server.storage import acked, faults, files, mounts, schema
from rdzv_server.storage.base import Changes, StorageError
from rdzv_server.storage.database import Database
from rdzv_server.storage.files import Files, Lock
from rdzv_server.storage.integrity import Meta
from rdzv_server.storage.schema import CURRENT, SQLITE_MIN, Schema

TIDY_BYTES = 4 << 20
"""So much written since the last time, and `tidy` brings the log into the main file: SQLite's own figure,
1000 pages."""

_LOG_BYTES_MAX = 4 * TIDY_BYTES
"""So much, and a commit does it itself, although somebody waits: the log must not grow without bound."""

_PAGE_BYTES = 4096


class SqliteStore:
    """One server's records.

    Commits are numbered. After a commit that failed nothing is written to the descriptors it failed on:
    the next one opens the files anew, makes sure that what is there is what was acknowledged, with or
    without the failed commit and nothing else, and goes on from there.

    Args:
        path: of the database. Further files lie beside it, under its name and an ending.
        force_network_fs: take a network file system.
        layout: version and migrations of the records.

    Raises:
        StorageError: another server has it, or its place is no good.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        force_network_fs: bool = False,
        layout: Schema = CURRENT,
    ) -> None:
        if sqlite3.sqlite_version_info < SQLITE_MIN:
            least = ".".join(map(str, SQLITE_MIN[:2]))
            raise StorageError(
                f"Python's SQLite is {sqlite3.sqlite_version}, and {least} or later is needed: take "
                "another Python, or `--state memory`",
                "unsupported",
            )
        self._files = Files(Path(path))
        self._layout = layout
        self._database: Database | None = None
        self._meta: Meta | None = None
        self._failed: tuple[Meta, dict[bytes, bytes | None]] | None = None
        self._unsettled_bytes = 0
        self.migrated: tuple[int, int] | None = None
        """Schema versions, of before and now, if `load` brought the records forward."""
        files.prepare_directory(self._files.directory)
        if not force_network_fs:
            mounts.refuse_network(self._files.directory)
        self._lock: Lock | None = Lock(self._files)

    @property
    def name(self) -> str:
        """What READY and `rdzv status` call it."""
        return "sqlite"

    def load(self) -> dict[bytes, bytes]:
        """Everything that is stored, verified. Makes the database if there is none.

        Raises:
            StorageError: it cannot be read, is not what was written, or is less than was acknowledged.
                All files are then as they were.
        """
        assert self._lock is not None
        assert self._meta is None
        if os.path.lexists(self._files.repaired):
            raise StorageError(
                f"{self._files.repaired}: a repair was interrupted: run `rdzv-server --repair` again",
                "corrupt",
            )
        if self._is_new():
            self._create()
        database = Database(self._files)
        try:
            self._check_version(database.version)
            meta = database.read_meta()
            records = database.read_records(meta)
            database.start_writing(meta)
        except BaseException:
            database.abandon()
            raise
        self._database, self._meta = database, meta
        self._migrate(records)
        return records

    def commit(self, changes: Changes) -> None:
        """Store changes, all or none; they are durable when this returns.

        Raises:
            StorageError: nothing of it counts as done; commit it again, alone or with later changes.
        """
        assert self._meta is not None, "a store is loaded before it is written to"
        self._commit(changes, self._meta.schema)

    def tidy(self) -> None:
        """Do now what a later commit would have to do: to be called when nobody waits. Never raises; if
        it fails, the next commit opens the files anew."""
        if self._database is not None and self._unsettled_bytes >= TIDY_BYTES:
            self._checkpoint(self._database)

    def close(self) -> None:
        """Let go of everything. Never raises."""
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _commit(self, changes: Changes, version: int) -> None:
        assert self._lock is not None, "a closed store is not written to"
        database = self._database
        if database is None:
            database, done = self._open_again(changes)
            if done:
                return
        assert self._meta is not None
        try:
            after = database.begin(self._meta, changes, version)
            self._failed = (after, dict(changes))
            database.end(after)
        except BaseException:
            self._database = None
            database.abandon()
            raise
        self._meta, self._failed = after, None
        self._unsettled_bytes += _log_bytes(changes)
        if self._unsettled_bytes >= _LOG_BYTES_MAX:
            self._checkpoint(database)

    def _open_again(self, changes: Changes) -> tuple[Database, bool]:
        """After a fault: on new descriptors, and only if what is there is what it must be.

        Returns:
            What was opened; and True if the failed commit got through after all, and `changes` are
            just that commit's.
        """
        assert self._meta is not None
        database = Database(self._files)
        try:
            meta = database.read_meta()
            through = self._failed is not None and meta == self._failed[0]
            if meta != self._meta and not through:
                lost = meta.number < self._meta.number
                raise (faults.lost if lost else faults.corrupt)(
                    self._files.database,
                    f"after a fault it holds commit {meta.number}, and {self._meta.number} was the "
                    "last acknowledged one",
                )
            database.start_writing(meta)
        except BaseException:
            database.abandon()
            raise
        done = through and self._failed is not None and self._failed[1] == changes
        self._database, self._meta, self._failed = database, meta, None
        return database, done

    def _checkpoint(self, database: Database) -> None:
        # Set back even if it fails: so it is tried again after as much again, not with every commit.
        self._unsettled_bytes = 0
        try:
            database.checkpoint()
        except StorageError:
            self._database = None
            database.abandon()

    def _is_new(self) -> bool:
        """Whether no commit was ever acknowledged here. A crash while the database was made leaves the
        file with the acknowledged number, which says 0."""
        if files.check(self._files.database):
            return False
        if files.check(self._files.wal):
            what = "it is missing, though its write-ahead log is there"
            raise faults.lost(self._files.database, what)
        last = acked.read(self._files.acked)
        if last is not None and (last.number > 0 or not last.whole):
            what = f"it is missing, though {self._files.acked} tells of {last.number} commits"
            raise faults.lost(self._files.database, what)
        return True

    def _create(self) -> None:
        """The file with the number first: without it the database would be refused."""
        try:
            meta = schema.create(self._files, self._files.new, self._layout.version, ())
            files.replace(self._files.acked, acked.content(meta))
            files.sync_directory(self._files.directory)
            os.rename(self._files.new, self._files.database)
            files.sync_directory(self._files.directory)
        except (OSError, sqlite3.Error) as error:
            with contextlib.suppress(OSError):
                files.remove(self._files.of_new)
            raise faults.translate(error, self._files.database, "make it") from None

    def _check_version(self, version: int) -> None:
        self._layout.check(
            str(self._files.database),
            version,
            back="put back a copy from before the upgrade and run `rdzv-server --repair`",
        )

    def _migrate(self, records: dict[bytes, bytes]) -> None:
        """Bring records of an older version forward, in one commit: a crash leaves the old ones or the new ones."""
        assert self._meta is not None
        was, now = self._meta.schema, self._layout.version
        if was < now:
            self._commit(self._layout.forward(was, records), now)
            self.migrated = was, now


def _log_bytes(changes: Changes) -> int:
    """How much a commit may add to the log: some page for each record, and those of long values."""
    return _PAGE_BYTES * (2 + len(changes)) + sum(len(value or b"") for value in changes.values())
