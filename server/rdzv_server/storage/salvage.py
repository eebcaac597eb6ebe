"""Reading what can be read of a damaged database. Nothing here writes to its files."""

import struct
from collections import Counter
from dataclasses import dataclass, field

from rdzv_server.storage.files import Files
from rdzv_server.storage.integrity import Meta, is_whole, kind
from rdzv_server.storage.pages import INTERIOR, LEAF, TABLE_LEAF, Column, Image
from rdzv_server.storage.schema import DamageError, meta_of

_RECORD_COLUMNS = 4


@dataclass
class Found:
    """What could be read.

    Args:
        records: those that are as they were written.
        dropped: those that are not, by kind.
        unread: pages that hold neither records nor parts of one.
        doubtful: nobody knows which pages are free, so records that were removed may have come back.
        meta: what was said of all records together, if that is whole.
    """

    records: dict[bytes, bytes] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    unread: int = 0
    doubtful: bool = False
    meta: Meta | None = None


def read(all_files: Files) -> Found:
    """All that can be read. The caller holds the lock.

    Raises:
        OSError: the files cannot be read at all.
    """
    return _Reader(Image(_content(all_files.database), _content(all_files.wal))).read()


class _Reader:
    """Goes through the pages as they lie, not through the tree: a bad page costs what is in it, and not
    what is below it. The checksums say what a record is."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._found = Found()
        self._numbers: dict[bytes, int] = {}
        self._bad: list[bytes] = []

    def read(self) -> Found:
        found = self._found
        try:
            free = self._image.free()
        except (ValueError, struct.error):
            free = set()
            found.doubtful = True
        # The first page is SQLite's own.
        unread = set(range(2, self._image.count + 1)) - free
        for number in sorted(unread):
            unread -= self._read_page(number)
        found.unread = len(unread)
        # An older form of a record that is there is none that was dropped.
        for key in self._bad:
            if key not in found.records:
                found.dropped[kind(key)] += 1
        return found

    def _read_page(self, number: int) -> set[int]:
        """Returns: the pages that are explained by this one."""
        try:
            first = self._image.page(number)[0]
        except ValueError:
            return set()
        if first == TABLE_LEAF:
            for columns, _ in self._image.cells(number):
                self._take_meta(columns)
            return {number}
        if first not in (INTERIOR, LEAF):
            return set()
        explained = {number}
        for columns, further in self._image.cells(number):
            if self._take(columns):
                explained.update(further)
        return explained

    def _take(self, columns: list[Column] | None) -> bool:
        if columns is None or len(columns) != _RECORD_COLUMNS:
            self._found.dropped["?"] += 1
            return False
        key, number, checksum, value = columns
        if not is_whole(key, number, checksum, value):
            self._bad.append(key if isinstance(key, bytes) else b"?")
            return False
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        assert isinstance(number, int)
        if number >= self._numbers.get(key, 0):
            self._numbers[key] = number
            self._found.records[key] = value
        return True

    def _take_meta(self, columns: list[Column] | None) -> None:
        if columns is not None:
            try:
                # The first column is the row's number, which SQLite keeps elsewhere.
                self._found.meta = meta_of(columns[1:])
            except DamageError:
                return


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
