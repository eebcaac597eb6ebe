"""The tables of a database, how a new one is made, and how an older one is brought forward."""

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from rdzv_server.storage import files
from rdzv_server.storage.base import Changes, StorageError
from rdzv_server.storage.files import Files
from rdzv_server.storage.integrity import SUM_BYTES, Meta, Step

Migration = Callable[[dict[bytes, bytes]], Changes]
"""What has to change in the records of one version to make them those of the next. It is given all
records, verified; the changes of all migrations are one commit, together with the new version."""


@dataclass(frozen=True)
class Schema:
    """The layout of records.

    Args:
        version: the one this server writes.
        migrations: from each older version to the next, from the oldest that is brought forward.
    """

    version: int
    migrations: Mapping[int, Migration] = field(default_factory=dict)

    @property
    def oldest(self) -> int:
        """The oldest version that can be brought forward."""
        return min([*self.migrations, self.version])

    def check(self, place: str, version: int, *, back: str) -> None:
        """Whether records of a version can be read.

        Args:
            place: of the records, for people.
            version: of them.
            back: how to get back to an older server, for people.

        Raises:
            StorageError: they are too new or too old.
        """
        has = f"{place} has schema version {version}, and this server"
        if version > self.version:
            raise StorageError(
                f"{has} knows versions up to {self.version}: start the later version of rdzv-server that wrote "
                f"it, or {back}",
                "newer",
            )
        if version < self.oldest:
            raise StorageError(
                f"{has} brings versions from {self.oldest} on forward to {self.version}: start a version of "
                "rdzv-server in between first",
                "older",
            )

    def forward(self, version: int, records: dict[bytes, bytes]) -> dict[bytes, bytes | None]:
        """Make records of an older version those of this one.

        Args:
            version: of the records, from `oldest`.
            records: all of them; changed.

        Returns:
            What has changed.
        """
        changes: dict[bytes, bytes | None] = {}
        for step in range(version, self.version):
            for key, value in self.migrations[step](dict(records)).items():
                changes[key] = value
                if value is None:
                    records.pop(key, None)
                else:
                    records[key] = value
        return changes


CURRENT = Schema(version=1)

SQLITE_MIN = (3, 37, 0)
"""The first with STRICT tables."""

PAGE_BYTES = 4096
"""SQLite's default; said aloud because it cannot be changed later."""

_CREATE_META = (
    "CREATE TABLE meta (id INTEGER PRIMARY KEY CHECK (id = 1), schema INTEGER NOT NULL,"
    " number INTEGER NOT NULL, rows INTEGER NOT NULL, identity BLOB NOT NULL, chain BLOB NOT NULL,"
    " digest BLOB NOT NULL, seal BLOB NOT NULL) STRICT"
)
# A table without row ids is one tree: reading it from end to end visits all that searches rely on. The
# checksum comes before the value, so that replacing a record of 8 MiB does not read it.
_CREATE_RECORDS = (
    "CREATE TABLE records (key BLOB PRIMARY KEY, number INTEGER NOT NULL, checksum BLOB NOT NULL,"
    " value BLOB NOT NULL) STRICT, WITHOUT ROWID"
)
_UPSERT = (
    "INSERT INTO records (key, number, checksum, value) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE"
    " SET number = excluded.number, checksum = excluded.checksum, value = excluded.value"
)
_INSERT_META = "INSERT INTO meta VALUES (1, ?, ?, ?, ?, ?, ?, ?)"
_UPDATE_META = (
    "UPDATE meta SET schema = ?, number = ?, rows = ?, identity = ?, chain = ?, digest = ?, seal = ?"
    " WHERE id = 1 AND seal = ?"
)


class DamageError(Exception):
    """A table does not hold what it must."""


def connect(path: str, *, writing: bool, busy_s: float = 5.0) -> sqlite3.Connection:
    """A connection as all of them are: nothing is done that was not asked for.

    Args:
        path: of the database.
        writing: False: it can change neither the database nor its log, not even when it is closed.
        busy_s: how long to wait for another program that holds a lock, as a backup does for moments.
    """
    uri = f"file:{_quote(path)}?mode={'rw' if writing else 'ro'}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False
    )
    # Text that is not UTF-8 comes only of damage; it must not raise before it is looked at.
    connection.text_factory = bytes
    try:
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
    except BaseException:
        connection.close()
        raise
    return connection


def create(
    all_files: Files, path: str, version: int, records: Iterable[tuple[bytes, bytes]]
) -> Meta:
    """Make a database file, whole and on the disk, but not its name: the caller renames it and syncs the
    directory.

    Raises:
        OSError, sqlite3.Error: it cannot be made.
    """
    files.remove(all_files.of_new)
    os.close(files.create(path))
    with closing(connect(path, writing=True)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES:d}")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_CREATE_META)
        connection.execute(_CREATE_RECORDS)
        chain, identity = secrets.token_bytes(SUM_BYTES), secrets.token_bytes(SUM_BYTES)
        meta = Meta(version, 0, 0, identity, chain, 0)
        connection.execute(_INSERT_META, _row(meta))
        changes = dict(records)
        if changes:
            step = Step(meta)
            write(connection, step, changes)
            meta = finish(connection, meta, step.after())
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    files.sync(path)
    return meta


def write(connection: sqlite3.Connection, step: Step, changes: Changes) -> None:
    """Write records, within a transaction. In the order of their keys: neighbours share pages."""
    rows: list[tuple[bytes, int, bytes, bytes]] = []
    gone: list[tuple[bytes]] = []
    find = "SELECT checksum FROM records WHERE key = ?"
    for key in sorted(changes):
        value = changes[key]
        found = connection.execute(find, (key,)).fetchone()
        if found is not None:
            step.replaced(found[0])
        if value is None:
            step.gone(key)
            gone.append((key,))
        else:
            rows.append((key, step.number, step.put(key, value), value))
    connection.executemany("DELETE FROM records WHERE key = ?", gone)
    connection.executemany(_UPSERT, rows)


def finish(connection: sqlite3.Connection, before: Meta, after: Meta) -> Meta:
    """Write what is said of all records together, in the same transaction.

    Raises:
        DamageError: it was not what it had to be before; somebody else wrote to the database.
    """
    changed = connection.execute(_UPDATE_META, (*_row(after), before.seal())).rowcount
    if changed != 1:
        raise DamageError("another program changed it while the server ran")
    return after


def read_version(connection: sqlite3.Connection) -> int:
    """The version of a database, of which nothing else need be known.

    Raises:
        DamageError: it says none.
    """
    found = connection.execute("SELECT schema FROM meta").fetchall()
    if len(found) != 1 or not isinstance(found[0][0], int):
        raise DamageError("it says no version")
    version: int = found[0][0]
    return version


def read_meta(connection: sqlite3.Connection) -> Meta:
    """What is said of all records together, verified.

    Raises:
        DamageError: it is not what was written.
    """
    found = connection.execute(
        "SELECT schema, number, rows, identity, chain, digest, seal FROM meta"
    ).fetchall()
    if len(found) != 1:
        raise DamageError(f"{len(found)} rows where one must be")
    return meta_of(found[0])


def meta_of(columns: Sequence[object]) -> Meta:
    """What a row says of all records together.

    Raises:
        DamageError: it is not what was written.
    """
    try:
        version, number, rows, identity, chain, digest, seal = columns
    except ValueError:
        raise DamageError("the row that describes all others has other columns") from None
    if (
        isinstance(version, int)
        and isinstance(number, int)
        and isinstance(rows, int)
        and min(version, number, rows) >= 0
        and isinstance(identity, bytes)
        and isinstance(chain, bytes)
        and isinstance(digest, bytes)
        and {len(identity), len(chain), len(digest)} == {SUM_BYTES}
    ):
        meta = Meta(version, number, rows, identity, chain, int.from_bytes(digest, "big"))
        if meta.seal() == seal:
            return meta
    raise DamageError("the row that describes all others does not match its checksum")


def read_rows(connection: sqlite3.Connection) -> Iterable[tuple[bytes, int, bytes, bytes]]:
    """All rows, in the order in which they lie."""
    return connection.execute("SELECT key, number, checksum, value FROM records ORDER BY key")


def _row(meta: Meta) -> tuple[int, int, int, bytes, bytes, bytes, bytes]:
    digest = meta.digest.to_bytes(SUM_BYTES, "big")
    return meta.schema, meta.number, meta.rows, meta.identity, meta.chain, digest, meta.seal()


def _quote(path: str) -> str:
    """A path within a URI, in which these three mean something."""
    absolute = os.path.abspath(path)
    return absolute.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
