"""Keys for ordinary code: of a generation (gone when it ends), or of a run."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rdzv_client import operations
from rdzv_client.operations import Data, KeyEntry, Swapped
from rdzv_proto.messages import (
    AnyRequest,
    Done,
    Fence,
    KvMissing,
    KvNumber,
    KvPage,
    KvSwapped,
    KvValue,
    KvValues,
)

if TYPE_CHECKING:
    from rdzv_client.aio import AsyncCalls
    from rdzv_client.calls import Calls

Entries = list[KeyEntry]
Values = list[bytes]


class Kv:
    """Keys and their values, which are bytes; text is stored as UTF-8.

    Every call may raise GenerationEnded (where the keys are those of a generation), ConnectionLost
    and RequestTimeout. Writes are done once, however often the connection breaks meanwhile. Limits
    (key 1,024 characters, value 1 MiB, 64 MiB and 100,000 keys a run) raise LimitExceeded or
    ValueError and change nothing. To wait for no keys, or to check, get or delete none, is done at once.
    """

    def __init__(self, calls: "Calls", fence: Fence | None) -> None:
        self._calls, self._fence = calls, fence

    def set(self, key: str, value: Data) -> int:
        """Set a key; returns its revision."""
        return self._ask(operations.kv_set(self._fence, key, value), Done).revision

    def get(self, key: str, timeout: float = operations.GET_S) -> bytes:
        """The value of a key; waits up to `timeout` seconds for it (0: does not wait).

        Raises:
            WaitTimeout: nobody set it in time.
            GenerationEnded: the generation ended first.
        """
        return self.entry(key, timeout).value or b""

    def entry(self, key: str, timeout: float = operations.GET_S) -> KeyEntry:
        """A key with its value and revision; waits for it as `get` does.

        Raises:
            WaitTimeout: nobody set it in time.
        """
        ask = operations.kv_get(self._fence, key, timeout)
        found = self._ask(ask, KvValue, timeout + operations.SLACK_S)
        return KeyEntry(key, found.revision, len(found.value), found.value)

    def wait(self, keys: Iterable[str], timeout: float = operations.GET_S) -> None:
        """Wait until all keys are there.

        Raises:
            WaitTimeout: naming the keys that are missing.
            GenerationEnded: the generation ended first.
        """
        names = list(keys)
        if not names:
            return
        ask = operations.kv_wait(self._fence, names, timeout)
        self._ask(ask, Done, timeout + operations.SLACK_S)

    def check(self, keys: Iterable[str]) -> bool:
        """True if all keys are there."""
        names = list(keys)
        return not names or not self._ask(operations.kv_check(self._fence, names), KvMissing).keys

    def add(self, key: str, delta: int = 1) -> int:
        """Add to a counter (a missing key counts as 0) and return the sum.

        Raises:
            NotANumber: the key holds something else.
        """
        return self._ask(operations.kv_add(self._fence, key, delta), KvNumber).value

    def cas(
        self,
        key: str,
        expected: Data | None,
        value: Data,
        *,
        revision: int | None = None,
    ) -> Swapped:
        """Set a key if it is as expected.

        Args:
            key: the key.
            expected: the value it must have; None: it must not be there.
            value: the new value.
            revision: the revision it must have (0: it must not be there), instead of `expected`.

        Returns:
            Whether it was set, and how the key is now.
        """
        ask = operations.kv_cas(self._fence, key, expected, value, revision)
        return operations.swapped(self._ask(ask, KvSwapped))

    def append(self, key: str, value: Data) -> int:
        """Append to a value (a missing key counts as empty) and return its length in bytes."""
        return self._ask(operations.kv_append(self._fence, key, value), KvNumber).value

    def delete(self, *keys: str) -> int:
        """Delete keys; returns how many were there."""
        if not keys:
            return 0
        return self._ask(operations.kv_delete(self._fence, keys), KvNumber).value

    def count(self, prefix: str = "") -> int:
        """How many keys begin with a prefix."""
        return self._ask(operations.kv_count(self._fence, prefix), KvNumber).value

    def list(self, prefix: str = "", *, values: bool = False) -> Entries:
        """The keys that begin with a prefix, in order, with their values if asked for.

        The list is fetched page by page: keys that change meanwhile may or may not be in it.
        """
        rows: Entries = []
        more = True
        while more:
            after = rows[-1].key if rows else ""
            page = self._ask(operations.kv_list(self._fence, prefix, after, values), KvPage)
            rows += operations.entries(page)
            more = page.more
        return rows

    def multi_get(
        self,
        keys: Iterable[str],
        timeout: float = operations.GET_S,
    ) -> Values:
        """The values of several keys, in their order; waits for all of them.

        Raises:
            WaitTimeout, GenerationEnded.
        """
        names = list(keys)
        if not names:
            return []
        ask = operations.kv_multi_get(self._fence, names, timeout)
        return self._ask(ask, KvValues, timeout + operations.SLACK_S).values

    def multi_set(self, keys: Iterable[str], values: Iterable[Data]) -> int:
        """Set several keys in one step; returns their revision."""
        return self._ask(operations.kv_multi_set(self._fence, keys, values), Done).revision

    def _ask(
        self,
        message: AnyRequest,
        kind: type[operations.R],
        timeout_s: float = operations.OPERATION_S,
    ) -> operations.R:
        return self._calls.ask(message, kind, timeout_s)


class AsyncKv:
    """Keys for asyncio code; see `Kv` for what each call does and raises."""

    def __init__(self, calls: "AsyncCalls", fence: Fence | None) -> None:
        self._calls, self._fence = calls, fence

    async def set(self, key: str, value: Data) -> int:
        """Set a key; returns its revision."""
        return (await self._ask(operations.kv_set(self._fence, key, value), Done)).revision

    async def get(self, key: str, timeout: float = operations.GET_S) -> bytes:
        """The value of a key; waits up to `timeout` seconds for it."""
        return (await self.entry(key, timeout)).value or b""

    async def entry(self, key: str, timeout: float = operations.GET_S) -> KeyEntry:
        """A key with its value and revision; waits for it."""
        ask = operations.kv_get(self._fence, key, timeout)
        found = await self._ask(ask, KvValue, timeout + operations.SLACK_S)
        return KeyEntry(key, found.revision, len(found.value), found.value)

    async def wait(self, keys: Iterable[str], timeout: float = operations.GET_S) -> None:
        """Wait until all keys are there."""
        names = list(keys)
        if not names:
            return
        ask = operations.kv_wait(self._fence, names, timeout)
        await self._ask(ask, Done, timeout + operations.SLACK_S)

    async def check(self, keys: Iterable[str]) -> bool:
        """True if all keys are there."""
        names = list(keys)
        if not names:
            return True
        return not (await self._ask(operations.kv_check(self._fence, names), KvMissing)).keys

    async def add(self, key: str, delta: int = 1) -> int:
        """Add to a counter and return the sum."""
        return (await self._ask(operations.kv_add(self._fence, key, delta), KvNumber)).value

    async def cas(
        self,
        key: str,
        expected: Data | None,
        value: Data,
        *,
        revision: int | None = None,
    ) -> Swapped:
        """Set a key if it is as expected."""
        ask = operations.kv_cas(self._fence, key, expected, value, revision)
        return operations.swapped(await self._ask(ask, KvSwapped))

    async def append(self, key: str, value: Data) -> int:
        """Append to a value and return its length in bytes."""
        return (await self._ask(operations.kv_append(self._fence, key, value), KvNumber)).value

    async def delete(self, *keys: str) -> int:
        """Delete keys; returns how many were there."""
        if not keys:
            return 0
        return (await self._ask(operations.kv_delete(self._fence, keys), KvNumber)).value

    async def count(self, prefix: str = "") -> int:
        """How many keys begin with a prefix."""
        return (await self._ask(operations.kv_count(self._fence, prefix), KvNumber)).value

    async def list(self, prefix: str = "", *, values: bool = False) -> Entries:
        """The keys that begin with a prefix, in order."""
        rows: Entries = []
        more = True
        while more:
            after = rows[-1].key if rows else ""
            page = await self._ask(operations.kv_list(self._fence, prefix, after, values), KvPage)
            rows += operations.entries(page)
            more = page.more
        return rows

    async def multi_get(
        self,
        keys: Iterable[str],
        timeout: float = operations.GET_S,
    ) -> Values:
        """The values of several keys; waits for all of them."""
        names = list(keys)
        if not names:
            return []
        ask = operations.kv_multi_get(self._fence, names, timeout)
        return (await self._ask(ask, KvValues, timeout + operations.SLACK_S)).values

    async def multi_set(self, keys: Iterable[str], values: Iterable[Data]) -> int:
        """Set several keys in one step; returns their revision."""
        ask = operations.kv_multi_set(self._fence, keys, values)
        return (await self._ask(ask, Done)).revision

    async def _ask(
        self,
        message: AnyRequest,
        kind: type[operations.R],
        timeout_s: float = operations.OPERATION_S,
    ) -> operations.R:
        return await self._calls.ask(message, kind, timeout_s)
