"""One opening of a database: the two connections, what was recovered, and whether that is all."""

import contextlib
import sqlite3
from collections.abc import Iterator

from rdzv_server.storage import acked, faults, files, schema, wal
from rdzv_server.storage.acked import AckedFile
from rdzv_server.storage.base import Changes, StorageError
from rdzv_server.storage.files import Files
from rdzv_server.storage.integrity import Meta, Step, gather
from rdzv_server.storage.schema import DamageError

WAL_BYTES_KEPT = 16 << 20
"""The log is cut to this after a larger burst. Not to less: a log that need not grow is synced faster
(measured: 0.2 against 3 ms)."""


class Database:
    """What is open, from one fault to the next.

    There are two connections. SQLite writes the log into the main file when the last connection is
    closed, and syncs both: after a fault just that must not happen, on descriptors of which one may have
    failed. So the first connection can only read; it looks before anything is written, and stays, which
    keeps the close of the second from being the last; and its own close can write nothing. (In SQLite's
    exclusive locking mode there could be no such two.)

    Args:
        all_files: of the database. The caller holds its lock.

    Raises:
        StorageError: it cannot be opened, or is damaged.
    """

    def __init__(self, all_files: Files) -> None:
        self._files = all_files
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._acked: AckedFile | None = None
        try:
            if not files.check(all_files.database):
                raise faults.lost(all_files.database, "it is missing")
            files.check(all_files.wal)
            files.check(all_files.shm)
            self._last = acked.read(all_files.acked)
            files.settle(all_files.wal)
            with self._translating("read it"):
                self._reader = schema.connect(all_files.database, writing=False)
                self.version = schema.read_version(self._reader)
        except BaseException:
            self.abandon()
            raise

    def read_meta(self) -> Meta:
        """What was recovered.

        Raises:
            StorageError: it is damaged, or less than was acknowledged.
        """
        assert self._reader is not None
        with self._translating("read it"):
            meta = schema.read_meta(self._reader)
        try:
            acked.compare(self._files.acked, self._last, meta)
        except StorageError as error:
            # Where, which takes a moment, only for the one who has to look.
            if error.cause != "lost":
                raise
            acked.compare(self._files.acked, self._last, meta, wal.damage(self._files.wal))
        return meta

    def read_records(self, meta: Meta) -> dict[bytes, bytes]:
        """All records, verified.

        Raises:
            StorageError: they are not those that were written.
        """
        assert self._reader is not None
        with self._translating("read it"):
            # Structure first: a free page that is in use as well would be written over later.
            found = self._reader.execute("PRAGMA integrity_check(1)").fetchall()[0][0]
            if found != b"ok":
                raise DamageError(" ".join(found.decode("utf-8", "replace").split()))
            return gather(schema.read_rows(self._reader), meta)

    def start_writing(self, meta: Meta) -> None:
        """Open what commits need.

        Raises:
            StorageError: it cannot be opened, or is no longer what was verified.
        """
        with self._translating("open it for writing"):
            self._writer = schema.connect(self._files.database, writing=True)
            self._writer.execute("PRAGMA synchronous = FULL")
            # Not within commits: see `checkpoint`.
            self._writer.execute("PRAGMA wal_autocheckpoint = 0")
            # Else pages that become free are written as well, full of zeros; a full disk could not even
            # be helped by removing records. What is stored of secrets are hashes.
            self._writer.execute("PRAGMA secure_delete = OFF")
            self._writer.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT:d}")
            if schema.read_meta(self._writer) != meta:
                raise DamageError("another program changed it while the server started")
        with self._translating("write it", self._files.acked):
            self._acked = AckedFile(self._files.acked)
            self._acked.renew(meta)

    def begin(self, before: Meta, changes: Changes, version: int) -> Meta:
        """Write changes, up to but not including the moment that makes them durable.

        Returns:
            How things stand if they get through.

        Raises:
            StorageError: they cannot be written.
        """
        assert self._writer is not None
        with self._translating("write it"):
            self._writer.execute("BEGIN IMMEDIATE")
            step = Step(before)
            schema.write(self._writer, step, changes)
            return schema.finish(self._writer, before, step.after(version))

    def end(self, after: Meta) -> None:
        """Make durable what was begun.

        Raises:
            StorageError: nobody knows whether it is.
        """
        assert self._writer is not None
        assert self._acked is not None
        with self._translating("write it"):
            self._writer.execute("COMMIT")
        with self._translating("write it", self._files.acked):
            self._acked.write(after)

    def checkpoint(self, *, closing: bool = False) -> None:
        """Bring the log into the main file, so that it can start anew.

        Raises:
            StorageError: it failed. What was committed is in the log, as before.
        """
        assert self._writer is not None
        mode = "TRUNCATE" if closing else "PASSIVE"
        with self._translating("write it"):
            self._writer.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()

    def close(self) -> None:
        """Close it after all went well: the log is brought in and removed."""
        if self._writer is not None and self._acked is not None:
            with contextlib.suppress(StorageError, OSError):
                self.checkpoint(closing=True)
                self._acked.sync()
                self._close(self._reader)
                self._reader = None
        self.abandon()

    def abandon(self) -> None:
        """Close it and leave the files as they are."""
        if self._writer is not None:
            with contextlib.suppress(sqlite3.Error):
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
        # The reader last: see above.
        self._close(self._writer)
        self._close(self._reader)
        if self._acked is not None:
            with contextlib.suppress(OSError):
                self._acked.close()
        self._writer = self._reader = self._acked = None

    @staticmethod
    def _close(connection: sqlite3.Connection | None) -> None:
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    @contextlib.contextmanager
    def _translating(self, doing: str, path: str | None = None) -> Iterator[None]:
        path = path or self._files.database
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise faults.translate(error, path, doing) from None
        except (DamageError, ValueError) as error:
            raise faults.corrupt(path, str(error)) from None
