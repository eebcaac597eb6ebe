"""Which unique ids were taken already: none serves twice, whatever became of its run or of the server since (S18)."""

from collections import OrderedDict

from rdzv_server.core.durable.stored import StoredSeen

IDS_SEEN_MAX = 65_536
"""Fingerprints that are remembered: days of communicators."""


class SeenIds:
    """Fingerprints in the order of their coming, each under a number that names its record."""

    def __init__(self) -> None:
        self.by_number: OrderedDict[int, StoredSeen] = OrderedDict()
        self._numbers: dict[bytes, int] = {}

    def find(self, digest: bytes) -> StoredSeen | None:
        """What the id with this fingerprint was taken for."""
        number = self._numbers.get(digest)
        return None if number is None else self.by_number[number]

    def enter(self, number: int, seen: StoredSeen) -> None:
        """One that was stored."""
        self.by_number[number], self._numbers[seen.digest] = seen, number

    def add(self, seen: StoredSeen) -> list[int]:
        """A new one; returns the numbers of the records that change."""
        changed = [next(reversed(self.by_number), 0) + 1]
        self.enter(changed[0], seen)
        while len(self.by_number) > IDS_SEEN_MAX:
            oldest, old = self.by_number.popitem(last=False)
            del self._numbers[old.digest]
            changed.append(oldest)
        return changed
