"""One key space: values, counters, revisions and the requests that wait for keys.

A key space belongs to a generation and dies with it (S11), or to a run. Waits are entries in a table,
woken by the write that completes them in the same step (S24). Limits refuse without side effect (S25).
Every change has a number, the revision; a key's revision is that of its last change.
"""

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from rdzv_proto import limits
from rdzv_proto.counters import INT64_MAX, INT64_MIN
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import KvGet, KvMultiGet, KvWait
from rdzv_server.core.quota import Quota
from rdzv_server.core.refusal import Refused

_DECIMAL = re.compile(rb"-?[0-9]{1,19}")

Waiter = tuple[int, int]
"""(session id, request id)."""


Reading = KvGet | KvWait | KvMultiGet
"""Requests that may wait for keys."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """What a key holds."""

    value: bytes
    revision: int
    number: int | None = None
    """The same as a number, where an addition wrote it: the next one need not read the digits."""


@dataclass(slots=True)
class Wait:
    """A request that waits."""

    waiter: Waiter
    ask: Reading
    missing: set[str]
    """Keys that are not there right now."""

    def missing_in_order(self) -> list[str]:
        """In the order in which they were asked for."""
        return [key for key in dict.fromkeys(keys_of(self.ask)) if key in self.missing]


def keys_of(ask: Reading) -> list[str]:
    """The keys that a request reads."""
    return [ask.key] if isinstance(ask, KvGet) else ask.keys


class Namespace:
    """Keys and values, and who waits for which key.

    Args:
        quota: what the run's key spaces may hold together.
    """

    __slots__ = ("_by_key", "_bytes", "_entries", "_quota", "_waits", "revision")

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._entries: dict[str, Entry] = {}
        self._bytes = 0
        self.revision = 0
        """Number of changes so far."""
        self._waits: dict[Waiter, Wait] = {}
        self._by_key: dict[str, dict[Waiter, None]] = {}
        """Every key that a wait names, whether it is there or not."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes_used(self) -> int:
        """Of keys and values together."""
        return self._bytes

    # --- reading ------------------------------------------------------------------------------

    def get(self, keys: Sequence[str]) -> list[Entry] | None:
        """The entries of all keys, or None if one is missing."""
        try:
            return [self._entries[key] for key in keys]
        except KeyError:
            return None

    def names(self) -> list[str]:
        """All keys."""
        return list(self._entries)

    def entries(self) -> Iterable[tuple[str, Entry]]:
        """All keys and what they hold."""
        return self._entries.items()

    def restore(self, key: str, entry: Entry) -> None:
        """Enter a key that was stored."""
        self._entries[key] = entry
        self._take(len(key.encode()) + len(entry.value), 1)

    def find(self, key: str) -> Entry | None:
        """One entry, or None."""
        return self._entries.get(key)

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Those keys that are not there."""
        return [key for key in keys if key not in self._entries]

    def count(self, prefix: str) -> int:
        """How many keys begin with a prefix."""
        return sum(key.startswith(prefix) for key in self._entries) if prefix else len(self)

    def page(self, prefix: str, after: str, keys_max: int) -> list[tuple[str, Entry]]:
        """The first keys behind `after` that begin with a prefix, in order."""
        found = heapq.nsmallest(
            keys_max, (key for key in self._entries if key > after and key.startswith(prefix))
        )
        return [(key, self._entries[key]) for key in found]

    # --- writing: each returns the waits that it completes, removed ---------------------------

    def put(self, key: str, value: bytes, number: int | None = None) -> Sequence[Wait]:
        """Set one key; `number` is what the value says, if it is known to be one.

        Raises:
            Refused: LIMIT_EXCEEDED; nothing is changed.
        """
        old = self._entries.get(key)
        if old is None:
            self._take(len(key.encode()) + len(value), 1)
        elif len(old.value) != len(value):
            self._take(len(value) - len(old.value), 0)
        self.revision += 1
        self._entries[key] = Entry(value, self.revision, number)
        return list(self._wake(key)) if self._waits else ()

    def set(self, keys: Sequence[str], values: Sequence[bytes]) -> list[Wait]:
        """Set several keys in one change.

        Raises:
            Refused: LIMIT_EXCEEDED; nothing is changed.
        """
        new = dict(zip(keys, values, strict=True))
        entries = self._entries
        grown = added = 0
        for key, value in new.items():
            old = entries.get(key)
            if old is None:
                added += 1
                grown += len(key.encode()) + len(value)
            else:
                grown += len(value) - len(old.value)
        self._take(grown, added)
        self.revision += 1
        for key, value in new.items():
            entries[key] = Entry(value, self.revision)
        return [wait for key in new for wait in self._wake(key)] if self._waits else []

    def add(self, key: str, delta: int) -> tuple[int, Sequence[Wait]]:
        """Add to a decimal counter; a missing key counts as 0.

        Raises:
            Refused: NOT_A_NUMBER or LIMIT_EXCEEDED; nothing is changed.
        """
        entry = self._entries.get(key)
        if entry is None:
            old = 0
        elif entry.number is not None:
            old = entry.number
        elif _DECIMAL.fullmatch(entry.value):
            old = int(entry.value)
        else:
            raise Refused(ErrorCode.NOT_A_NUMBER, f"the value of key {key!r} is no decimal number")
        total = old + delta
        if not INT64_MIN <= total <= INT64_MAX:
            raise Refused(ErrorCode.NOT_A_NUMBER, f"counter {key!r} would leave 64 bits")
        return total, self.put(key, b"%d" % total, total)

    def append(self, key: str, value: bytes) -> tuple[int, Sequence[Wait]]:
        """Append to a value; a missing key counts as empty. Returns the new length as well.

        Raises:
            Refused: LIMIT_EXCEEDED; nothing is changed.
        """
        entry = self._entries.get(key)
        joined = value if entry is None else entry.value + value
        if len(joined) > limits.VALUE_BYTES_MAX:
            raise Refused(
                ErrorCode.LIMIT_EXCEEDED,
                f"the value of key {key!r} would have {len(joined)} bytes; the limit is "
                f"{limits.VALUE_BYTES_MAX}",
            )
        return len(joined), self.put(key, joined)

    def delete(self, keys: Sequence[str]) -> int:
        """Delete keys in one change; returns how many were there.

        A wait for several keys is complete when all are there at one time, so those that had seen a
        deleted key wait for it again.
        """
        there = [key for key in dict.fromkeys(keys) if key in self._entries]
        if not there:
            return 0
        self.revision += 1
        freed = 0
        for key in there:
            freed += len(key.encode()) + len(self._entries.pop(key).value)
            for waiter in self._by_key.get(key, ()):
                self._waits[waiter].missing.add(key)
        self._take(-freed, -len(there))
        return len(there)

    def clear(self) -> None:
        """Drop all keys and give their room back; waits go on."""
        self.delete(list(self._entries))

    # --- waits --------------------------------------------------------------------------------

    def wait(self, waiter: Waiter, ask: Reading) -> None:
        """Enter a wait for all keys of a request; at least one of them must be missing."""
        keys = keys_of(ask)
        self._waits[waiter] = Wait(waiter, ask, set(self.missing(keys)))
        for key in keys:
            self._by_key.setdefault(key, {})[waiter] = None

    def drop(self, waiter: Waiter) -> Wait | None:
        """Remove a wait, if it is there."""
        wait = self._waits.pop(waiter, None)
        for key in dict.fromkeys(keys_of(wait.ask)) if wait is not None else ():
            waiters = self._by_key[key]
            waiters.pop(waiter, None)
            if not waiters:
                del self._by_key[key]
        return wait

    def waiters(self) -> list[Waiter]:
        """All waits, in the order in which they began."""
        return list(self._waits)

    def waits(self) -> list[Wait]:
        """All requests that wait."""
        return list(self._waits.values())

    def _wake(self, key: str) -> Iterator[Wait]:
        for waiter in list(self._by_key.get(key, ())):
            wait = self._waits[waiter]
            wait.missing.discard(key)
            if not wait.missing:
                self.drop(waiter)
                yield wait

    def _take(self, grown: int, keys_new: int) -> None:
        """Use room of the run's quota, or give it back."""
        if (grown > 0 or keys_new > 0) and not self._quota.allows(grown, keys_new):
            raise Refused(
                ErrorCode.LIMIT_EXCEEDED,
                f"the run's keys would exceed {self._quota.bytes_max} bytes of keys and values, or "
                f"{self._quota.keys_max} keys",
                "Delete keys that are not needed, or keep large values elsewhere.",
            )
        self._quota.take(grown, keys_new)
        self._bytes += grown
