"""SQLite's write-ahead log, read without SQLite: for messages that say where it stops being readable, and
for repairs. What a start recovers is SQLite's business, and whether that is all is told by `acked`.

The format is fixed (https://sqlite.org/walformat.html): a header of 32 bytes, then frames of 24 bytes and
a page, each with a checksum over all that precedes it.
"""

import struct
from collections.abc import Iterator

_HEADER = 32
_FRAME = 24
_MAGIC = 0x377F0682
"""The lowest bit says in which byte order the checksums are made."""


def damage(path: str) -> str:
    """Where a log ends for SQLite although more follows, as the end of a sentence; empty if nowhere."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return ""
    if not data:
        return ""
    end = readable(data)
    if end == len(data):
        return ""
    return f": {path} can be read up to byte {end} of {len(data)}"


def readable(data: bytes) -> int:
    """How many bytes of a log are whole frames that belong together."""
    return max([end for _, _, end in _frames(data)], default=_header(data)[1])


def pages(data: bytes) -> tuple[dict[int, bytes], int]:
    """What a log holds of whole commits.

    Returns:
        Pages by their numbers; and how many pages the database has, 0 if the log does not tell.
    """
    done: dict[int, bytes] = {}
    begun: dict[int, bytes] = {}
    count = 0
    for start, size, end in _frames(data):
        number, total = struct.unpack_from(">II", data, start)
        begun[number] = data[end - size : end]
        if total:
            count = total
            done.update(begun)
            begun.clear()
    return done, count


def _header(data: bytes) -> tuple[str, int]:
    """The byte order of its checksums, and where the first frame begins; 0 if it is no header."""
    if len(data) < _HEADER:
        return "", 0
    magic, _, page_size = struct.unpack_from(">3I", data)
    if magic & ~1 != _MAGIC or page_size < 512 or page_size > 65536:
        return "", 0
    order = ">" if magic & 1 else "<"
    if _checksum(order, data[:24], (0, 0)) != struct.unpack_from(">II", data, 24):
        return "", 0
    return order, _HEADER


def _frames(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Where each whole frame starts, the size of its page, and where it ends."""
    order, at = _header(data)
    if not at:
        return
    _, _, page_size, _, *salts = struct.unpack_from(">6I", data)
    sums: tuple[int, ...] = struct.unpack_from(">II", data, 24)
    while at + _FRAME + page_size <= len(data):
        end = at + _FRAME + page_size
        _, _, *found, check_1, check_2 = struct.unpack_from(">6I", data, at)
        sums = _checksum(order, data[at : at + 8], sums)
        sums = _checksum(order, data[at + _FRAME : end], sums)
        if found != salts or sums != (check_1, check_2):
            return
        yield at, page_size, end
        at = end


def _checksum(order: str, data: bytes, sums: tuple[int, ...]) -> tuple[int, ...]:
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
