"""The keys of one generation: values, counters and the requests that wait for keys.

A namespace is born with its generation and dies with it (S11). Waits are entries in a table, woken by
the write that completes them in the same step (S24). Limits refuse without side effect (S25).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import KvGet, KvMultiGet, KvWait
from rdzv_server.core.refusal import Refused

_DECIMAL = re.compile(rb"-?[0-9]{1,19}")
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

Waiter = tuple[int, int]
"""(session id, request id)."""


Reading = KvGet | KvWait | KvMultiGet
"""Requests that may wait for keys."""


@dataclass(slots=True)
class Wait:
    """A request that waits."""

    waiter: Waiter
    ask: Reading
    missing: dict[str, None]
    """Keys that have not come yet, in the order in which they were asked for."""


def keys_of(ask: Reading) -> list[str]:
    """The keys that a request reads."""
    return [ask.key] if isinstance(ask, KvGet) else ask.keys


class Namespace:
    """Keys and values, and who waits for which key."""

    __slots__ = ("_by_key", "_bytes", "_values", "_waits")

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._waits: dict[Waiter, Wait] = {}
        self._by_key: dict[str, dict[Waiter, None]] = {}

    def __len__(self) -> int:
        return len(self._values)

    @property
    def bytes_used(self) -> int:
        """Of keys and values together."""
        return self._bytes

    def get(self, keys: Sequence[str]) -> list[bytes] | None:
        """The values of all keys, or None if one is missing."""
        try:
            return [self._values[key] for key in keys]
        except KeyError:
            return None

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Those keys that are not there."""
        return [key for key in keys if key not in self._values]

    def set(self, keys: Sequence[str], values: Sequence[bytes]) -> list[Wait]:
        """Set several keys in one step.

        Returns:
            The waits that this completes, removed.

        Raises:
            Refused: LIMIT_EXCEEDED; nothing is changed.
        """
        new = dict(zip(keys, values, strict=True))
        grown = sum(
            len(value) - len(self._values[key])
            if key in self._values
            else len(key.encode()) + len(value)
            for key, value in new.items()
        )
        self._check_limits(grown, sum(key not in self._values for key in new))
        self._values.update(new)
        self._bytes += grown
        return [wait for key in new for wait in self._wake(key)]

    def add(self, key: str, delta: int) -> tuple[int, list[Wait]]:
        """Add to a decimal counter; a missing key counts as 0.

        Returns:
            The new value and the waits that this completes.

        Raises:
            Refused: NOT_A_NUMBER or LIMIT_EXCEEDED; nothing is changed.
        """
        old = self._values.get(key, b"0")
        if not _DECIMAL.fullmatch(old):
            raise Refused(ErrorCode.NOT_A_NUMBER, f"the value of key {key!r} is no decimal number")
        total = int(old) + delta
        if not INT64_MIN <= total <= INT64_MAX:
            raise Refused(ErrorCode.NOT_A_NUMBER, f"counter {key!r} would leave 64 bits")
        return total, self.set((key,), (str(total).encode(),))

    def wait(self, waiter: Waiter, ask: Reading) -> None:
        """Enter a wait for all keys of a request; at least one of them must be missing."""
        missing = dict.fromkeys(self.missing(keys_of(ask)))
        self._waits[waiter] = Wait(waiter, ask, missing)
        for key in missing:
            self._by_key.setdefault(key, {})[waiter] = None

    def drop(self, waiter: Waiter) -> Wait | None:
        """Remove a wait, if it is there."""
        wait = self._waits.pop(waiter, None)
        for key in wait.missing if wait is not None else ():
            waiters = self._by_key[key]
            waiters.pop(waiter, None)
            if not waiters:
                del self._by_key[key]
        return wait

    def waiters(self) -> list[Waiter]:
        """All waits, in the order in which they began."""
        return list(self._waits)

    def _wake(self, key: str) -> list[Wait]:
        done = []
        for waiter in self._by_key.pop(key, {}):
            wait = self._waits[waiter]
            del wait.missing[key]
            if not wait.missing:
                done.append(self._waits.pop(waiter))
        return done

    def _check_limits(self, grown: int, keys_new: int) -> None:
        if self._bytes + grown > limits.KV_BYTES_PER_RUN_MAX:
            raise Refused(
                ErrorCode.LIMIT_EXCEEDED,
                f"the run's keys and values would exceed {limits.KV_BYTES_PER_RUN_MAX} bytes",
            )
        if len(self._values) + keys_new > limits.KV_KEYS_PER_RUN_MAX:
            raise Refused(
                ErrorCode.LIMIT_EXCEEDED,
                f"the run would hold more than {limits.KV_KEYS_PER_RUN_MAX} keys",
            )
