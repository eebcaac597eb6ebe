"""Where every client process is, in memory that it shares with the harness: one slot for each.

A slot is written by one process and read by another one, without locks: its first number is odd while it
is being written.
"""

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

_SLOT = struct.Struct("<qqqqdd")
_COUNT = struct.Struct("<q")
SLOT_BYTES = 64


class Place(NamedTuple):
    """The last barrier that a client passed, and where."""

    epoch: int
    generation: int
    rank: int
    world: int
    came_s: float
    """When it arrived there."""
    passed_s: float


NOWHERE = Place(0, 0, 0, 0, 0.0, 0.0)


class Board:
    """All slots.

    Args:
        path: of the file behind it.
        slots: how many, where it is made; 0 opens one that is there.
    """

    def __init__(self, path: Path, slots: int = 0) -> None:
        if slots:
            path.write_bytes(bytes(SLOT_BYTES * slots))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def post(self, slot: int, place: Place) -> None:
        """Write a slot."""
        at = slot * SLOT_BYTES
        count = _COUNT.unpack_from(self._map, at)[0] & ~1
        _COUNT.pack_into(self._map, at, count + 1)
        _SLOT.pack_into(self._map, at + _COUNT.size, *place)
        _COUNT.pack_into(self._map, at, count + 2)

    def look(self, slot: int) -> Place:
        """Read a slot; one that is being written is nowhere."""
        at = slot * SLOT_BYTES
        before = _COUNT.unpack_from(self._map, at)[0]
        place = Place(*_SLOT.unpack_from(self._map, at + _COUNT.size))
        after = _COUNT.unpack_from(self._map, at)[0]
        return place if before == after and not before & 1 else NOWHERE

    def close(self) -> None:
        self._map.close()
