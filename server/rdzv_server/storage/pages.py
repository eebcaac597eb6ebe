"""SQLite's file format, as far as records need it, read without SQLite: what SQLite refuses to read
because of one bad page may be whole everywhere else.

The format is fixed (https://sqlite.org/fileformat2.html). Numbers read from a damaged file can be
anything: whatever does not fit raises `ValueError` or is passed over, and what is taken for a record is
verified by its checksum elsewhere.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from rdzv_server.storage import wal
from rdzv_server.storage.schema import PAGE_BYTES

INTERIOR, LEAF, TABLE_LEAF = 2, 10, 13
"""Kinds of pages, by their first byte: of a table without row ids (both hold records), and of one with."""

_HEADER_BYTES = {INTERIOR: 12, LEAF: 8, TABLE_LEAF: 8}
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_LOCAL_MAX = (PAGE_BYTES - 12) * 64 // 255 - 23
_LOCAL_MIN = (PAGE_BYTES - 12) * 32 // 255 - 23
_FIRST_FREE_AT = 32
"""In the first page; the number of free pages follows."""

Column = bytes | int | None


@dataclass
class Image:
    """The pages of a database, those of its log in the place of those of the main file.

    Args:
        main: the main file.
        log: its write-ahead log.
    """

    main: bytes
    log: bytes
    _newer: dict[int, bytes] = field(init=False)
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self._newer, count = wal.pages(self.log)
        self.count = count or len(self.main) // PAGE_BYTES

    def page(self, number: int) -> bytes:
        """A page; they are counted from 1.

        Raises:
            ValueError: there is none.
        """
        found = self._newer.get(number)
        if found is None and 1 <= number <= self.count:
            found = self.main[(number - 1) * PAGE_BYTES : number * PAGE_BYTES]
        if found is None or len(found) != PAGE_BYTES:
            raise ValueError("no such page")
        return found

    def free(self) -> set[int]:
        """The pages that hold nothing any longer, though they look as if they did.

        Raises:
            ValueError: that cannot be told.
        """
        trunk, expected = struct.unpack_from(">II", self.page(1), _FIRST_FREE_AT)
        found: set[int] = set()
        while trunk:
            if trunk in found:
                raise ValueError("a circle")
            found.add(trunk)
            page = self.page(trunk)
            following, leaves = struct.unpack_from(">II", page)
            if leaves > PAGE_BYTES // 4 - 2:
                raise ValueError("too many")
            found.update(struct.unpack_from(f">{leaves}I", page, 8))
            trunk = following
        if len(found) != expected:
            raise ValueError("not as many as there should be")
        return found

    def cells(self, number: int) -> Iterator[tuple[list[Column] | None, list[int]]]:
        """The rows of a page, each with the further pages that it takes. None: it cannot be read."""
        page = self.page(number)
        kind = page[0]
        header = _HEADER_BYTES[kind]
        (count,) = struct.unpack_from(">H", page, 3)
        for index in range(min(count, (PAGE_BYTES - header) // 2)):
            (at,) = struct.unpack_from(">H", page, header + 2 * index)
            try:
                payload, further = self._payload(page, kind, at)
                yield _columns(payload), further
            except (ValueError, IndexError, struct.error):
                yield None, []

    def _payload(self, page: bytes, kind: int, at: int) -> tuple[bytes, list[int]]:
        at += 4 if kind == INTERIOR else 0
        size, at = _varint(page, at)
        if kind == TABLE_LEAF:
            _, at = _varint(page, at)
            return page[at : at + size], []
        if size > self.count * PAGE_BYTES:
            raise ValueError("longer than the file")
        local = size
        if size > _LOCAL_MAX:
            local = _LOCAL_MIN + (size - _LOCAL_MIN) % (PAGE_BYTES - 4)
            local = local if local <= _LOCAL_MAX else _LOCAL_MIN
        parts = [page[at : at + local]]
        further: list[int] = []
        left = size - local
        follow = page[at + local : at + local + 4]
        while left > 0:
            (number,) = struct.unpack(">I", follow)
            further.append(number)
            content = self.page(number)
            follow = content[:4]
            parts.append(content[4 : 4 + left])
            left -= PAGE_BYTES - 4
        return b"".join(parts), further


def _columns(payload: bytes) -> list[Column]:
    end, at = _varint(payload, 0)
    kinds = []
    while at < end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    found: list[Column] = []
    for kind in kinds:
        if kind == 0:
            found.append(None)
        elif kind in (8, 9):
            found.append(kind - 8)
        else:
            length = _INTEGERS[kind] if kind in _INTEGERS else (kind - 12) // 2
            part = payload[at : at + length]
            if length < 0 or len(part) != length:
                raise ValueError("a column beyond its end")
            found.append(int.from_bytes(part, "big", signed=True) if kind in _INTEGERS else part)
            at += length
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | data[at + 8], at + 9
