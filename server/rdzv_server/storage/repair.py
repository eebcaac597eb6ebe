"""`rdzv-server --repair`: a new database with all that is whole in a damaged one."""

import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from rdzv_server.storage import acked, faults, files, salvage, schema
from rdzv_server.storage.base import StorageError
from rdzv_server.storage.files import Files, Lock
from rdzv_server.storage.integrity import Meta, kind
from rdzv_server.storage.salvage import Found
from rdzv_server.storage.schema import CURRENT, Schema


@dataclass(frozen=True)
class Report:
    """What a repair did.

    Args:
        path: of the database.
        kept: records in the new one, by kind (the part of their key before the first NUL or slash).
        dropped: records that were found damaged, by kind.
        missing: records that were stored and not found; None if nobody knows.
        lost_commits: acknowledged commits of which nothing is left; None if nobody knows.
        unread: pages of which nothing could be read.
        doubtful: records that were removed long ago may be among those that were kept.
        saved_as: where the files of before are now.
        resumed: an earlier repair was brought to its end, and only `kept` is known.
    """

    path: str
    kept: Mapping[str, int]
    dropped: Mapping[str, int] = field(default_factory=dict)
    missing: int | None = None
    lost_commits: int | None = None
    unread: int = 0
    doubtful: bool = False
    saved_as: tuple[str, ...] = ()
    resumed: bool = False

    def __str__(self) -> str:
        lines = [f"{self.path}: kept {_counts(self.kept)}"]
        if self.resumed:
            lines.append("this is what an earlier repair, which was interrupted, had found")
        else:
            lines.append(f"damaged and dropped: {_counts(self.dropped)}")
            lines.append(f"pages of which nothing could be read: {self.unread}")
            if self.doubtful:
                lines.append(
                    "the list of free pages is damaged: records removed before may be back"
                )
            lines.append(f"records that are not there any longer: {_known(self.missing)}")
            lines.append(f"acknowledged commits that are lost: {_known(self.lost_commits)}")
        lines += [f"the file of before is {name}" for name in self.saved_as]
        return "\n".join(lines)


def repair(path: str | os.PathLike[str], *, layout: Schema = CURRENT) -> Report:
    """Make a new database of what is whole. The files of before are kept under other names.

    Interrupted anywhere, it leaves the old files in their place, or a server that refuses to start until
    the repair is called again.

    Raises:
        StorageError: a server has it, there is no database, it is of a later version, or no new one can
            be written.
    """
    all_files = Files(Path(path))
    if not all_files.directory.is_dir():
        raise StorageError(f"{all_files.database}: there is no database", "access")
    lock = Lock(all_files)
    try:
        if files.check(all_files.repaired):
            return _resume(all_files)
        if not files.check(all_files.database):
            raise StorageError(f"{all_files.database}: there is no database", "access")
        files.check(all_files.wal)
        files.check(all_files.shm)
        return _repair(all_files, layout)
    except (OSError, sqlite3.Error) as error:
        raise faults.translate(error, all_files.database, "repair it") from None
    finally:
        lock.release()


def _repair(all_files: Files, layout: Schema) -> Report:
    lost_from: int | None = None
    try:
        last = acked.read(all_files.acked)
        lost_from = None if last is None else last.number
    except StorageError as error:
        if error.cause != "corrupt":
            raise
    found = salvage.read(all_files)
    if found.meta is not None and found.meta.schema > layout.version:
        raise StorageError(
            f"{all_files.database} has schema version {found.meta.schema}, and this server knows "
            f"versions up to {layout.version}: repair it with the later version that wrote it",
            "newer",
        )
    # A version that cannot be read: the oldest, since a migration may be repeated but not left out.
    version = found.meta.schema if found.meta is not None else layout.oldest
    meta = schema.create(all_files, all_files.new, version, found.records.items())
    os.rename(all_files.new, all_files.repaired)
    files.sync_directory(all_files.directory)
    return _report(all_files, found, lost_from, _install(all_files, meta))


def _install(all_files: Files, meta: Meta) -> tuple[str, ...]:
    """Put the new database in its place. A server refuses to start while the name of before is there,
    so that no step in between is taken for a state; in particular the old log must not be found beside
    the new database, which it would be written into."""
    number = 1
    while any(os.path.lexists(_saved(name, number)) for name in all_files.kept):
        number += 1
    saved = [name for name in all_files.kept if os.path.lexists(name)]
    for name in saved:
        os.rename(name, _saved(name, number))
    files.remove([all_files.shm])
    files.replace(all_files.acked, acked.content(meta))
    files.sync_directory(all_files.directory)
    os.rename(all_files.repaired, all_files.database)
    files.sync_directory(all_files.directory)
    return tuple(_saved(name, number) for name in saved)


def _resume(all_files: Files) -> Report:
    """The decision of an earlier repair stands: its database was whole before it got that name."""
    with closing(schema.connect(all_files.repaired, writing=False)) as connection:
        try:
            meta = schema.read_meta(connection)
        except schema.DamageError as error:
            raise faults.corrupt(all_files.repaired, str(error)) from None
        kept = _kinds(row[0] for row in schema.read_rows(connection))
    files.remove([f"{all_files.repaired}-wal", f"{all_files.repaired}-shm"])
    saved_as = _install(all_files, meta)
    return Report(all_files.database, kept, saved_as=saved_as, resumed=True)


def _report(
    all_files: Files, found: Found, last_number: int | None, saved_as: tuple[str, ...]
) -> Report:
    missing = lost = None
    if found.meta is not None:
        missing = max(found.meta.rows - len(found.records) - sum(found.dropped.values()), 0)
        if last_number is not None:
            lost = max(last_number - found.meta.number, 0)
    return Report(
        path=all_files.database,
        kept=_kinds(found.records),
        dropped=dict(found.dropped),
        missing=missing,
        lost_commits=lost,
        unread=found.unread,
        doubtful=found.doubtful,
        saved_as=saved_as,
    )


def _kinds(keys: Iterable[bytes]) -> dict[str, int]:
    return dict(sorted(Counter(map(kind, keys)).items()))


def _saved(name: str, number: int) -> str:
    return f"{name}.damaged-{number}"


def _counts(kinds: Mapping[str, int]) -> str:
    total = sum(kinds.values())
    noun = "record" if total == 1 else "records"
    each = ", ".join(f"{name} {count}" for name, count in kinds.items())
    return f"{total} {noun} ({each})" if each else f"{total} {noun}"


def _known(count: int | None) -> str:
    return "unknown" if count is None else str(count)
