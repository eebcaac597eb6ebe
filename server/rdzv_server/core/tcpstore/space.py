"""One key space with the semantics of torch's TCPStore server: values, queues, waits and barriers.

Pure: a request goes in, the bytes of its answer come out, and waits that it completes are handed back
for their own answers. What the C++ server does by accident is not copied (see `tests/e2e/
test_tcpstore_wire.py` for the list).
"""

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rdzv_proto import counters, limits, tcpstore
from rdzv_proto.tcpstore import (
    Add,
    AnyRequest,
    Append,
    BadRequestError,
    Barrier,
    CancelWait,
    Check,
    CompareSet,
    DeleteKey,
    Get,
    GetNumKeys,
    ListKeys,
    MultiGet,
    MultiSet,
    Ping,
    QueueLen,
    QueuePop,
    QueuePush,
    Set,
    Wait,
    blob,
    number,
)
from rdzv_server.core.quota import Quota

C = TypeVar("C", bound=Hashable)

Reading = Get | MultiGet | Check | GetNumKeys | ListKeys | QueueLen
Writing = Set | MultiSet | Add | CompareSet | Append | DeleteKey | QueuePush | QueuePop

_NUMBER_BYTES = 20
"""The longest decimal number of 64 bits."""


@dataclass(slots=True, eq=False)
class Pending(Generic[C]):
    """A WAIT or BARRIER that is not over."""

    client: C
    missing: dict[bytes, None]
    """Keys that have not been there since the wait began."""
    cost_bytes: int


class KeySpace(Generic[C]):
    """Keys, queues and waits of one store.

    Args:
        quota: of the owner; keys, queued values and the keys of waits count against it.
    """

    __slots__ = (
        "_bytes",
        "_keys",
        "_pending",
        "_queues",
        "_quota",
        "_values",
        "_waiters",
        "_woken",
    )

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._values: dict[bytes, bytes | bytearray] = {}
        self._queues: dict[bytes, deque[bytes]] = {}
        self._pending: dict[C, Pending[C]] = {}
        self._waiters: dict[bytes, dict[Pending[C], None]] = {}
        """By key; who has waited longest comes first."""
        self._woken: list[C] = []
        self._bytes = self._keys = 0

    def __len__(self) -> int:
        """Keys, queues not counted."""
        return len(self._values)

    @property
    def bytes_used(self) -> int:
        """Of keys, values, queued values and the keys that somebody waits for."""
        return self._bytes

    @property
    def waiting(self) -> int:
        """Clients whose WAIT or BARRIER is not over."""
        return len(self._pending)

    def do(self, client: C, ask: AnyRequest) -> bytes:
        """Do one request.

        Returns:
            What is answered now; nothing for a wait, or for a request without an answer. Who else has
            become due is told by `woken`.

        Raises:
            BadRequestError: not a number, or a limit is exceeded. Nothing is changed.
        """
        match ask:
            case Get() | MultiGet() | Check() | GetNumKeys() | ListKeys() | QueueLen():
                return self._read(ask)
            case Wait():
                return self._wait(client, ask.keys)
            case Barrier():
                return self._barrier(client, ask)
            case CancelWait():
                self.drop(client)
                return tcpstore.NO
            case Ping():
                return tcpstore.nonce(ask.nonce)
            case _:
                return self._write(ask)

    def woken(self) -> list[C]:
        """Whose waits the last requests completed: each is answered with `tcpstore.YES`."""
        woken = self._woken
        if woken:
            self._woken = []
        return woken

    def drop(self, client: C) -> None:
        """The client gives up its wait, or is gone. Its arrivals at barriers stay counted."""
        pending = self._pending.pop(client, None)
        if pending is None:
            return
        self._account(-pending.cost_bytes, 0)
        for key in pending.missing:
            waiters = self._waiters[key]
            del waiters[pending]
            if not waiters:
                del self._waiters[key]

    def clear(self) -> None:
        """Forget everything and give its quota back."""
        self._account(-self._bytes, -self._keys)
        self._values.clear()
        self._queues.clear()
        self._pending.clear()
        self._waiters.clear()
        self._woken.clear()

    # --- values -------------------------------------------------------------------------------

    def _read(self, ask: Reading) -> bytes:
        match ask:
            case Get():
                return blob(self._values.get(ask.key, b""))
            case MultiGet():
                return self._multi_get(ask.keys)
            case Check():
                return tcpstore.YES if all(map(self._present, ask.keys)) else tcpstore.NO
            case GetNumKeys():
                return number(len(self._values))
            case ListKeys():
                return number(len(self._values)) + b"".join(map(blob, self._values))
            case QueueLen():
                return number(len(self._queues.get(ask.key, ())))

    def _write(self, ask: Writing) -> bytes:
        match ask:
            case Set():
                self._put({ask.key: ask.value})
            case MultiSet():
                self._put(dict(zip(ask.keys, ask.values, strict=True)))
            case Add():
                return number(self._add(ask.key, ask.delta))
            case CompareSet():
                return self._compare_set(ask)
            case Append():
                self._append(ask.key, ask.value)
            case DeleteKey():
                return number(self._delete(ask.key))
            case QueuePush():
                self._push(ask.key, ask.value)
            case QueuePop():
                return self._pop(ask.key)
        return b""

    def _put(self, new: dict[bytes, bytes]) -> None:
        self._store(new)
        if self._waiters:
            for key in new:
                self._wake(key)

    def _store(self, new: dict[bytes, bytes]) -> None:
        """Set without waking anybody."""
        grown = added = 0
        for key, value in new.items():
            old = self._values.get(key)
            if old is None:
                grown += len(key) + len(value)
                added += 1
            else:
                grown += len(value) - len(old)
        self._check(grown, added)
        self._values.update(new)
        self._account(grown, added)

    def _add(self, key: bytes, delta: int) -> int:
        total = delta
        if key in self._values:
            total = counters.wrapped(self._number(key) + delta)
        self._put({key: b"%d" % total})
        return total

    def _number(self, key: bytes) -> int:
        value = counters.counter(self._values[key])
        if value is None:
            raise BadRequestError("the value of a counter is no 64-bit number")
        return value

    def _append(self, key: bytes, value: bytes) -> None:
        old = self._values.get(key)
        if old is None:
            self._put({key: value})
            return
        self._check(len(value), 0)
        if not isinstance(old, bytearray):  # grows in place from here on
            old = self._values[key] = bytearray(old)
        old += value
        self._account(len(value), 0)
        self._wake(key)

    def _compare_set(self, ask: CompareSet) -> bytes:
        present = self._values.get(ask.key)
        if present is None and ask.expected:
            answer: bytes | bytearray = ask.expected  # c10d depends on it
        elif present is None or present == ask.expected:
            self._put({ask.key: ask.desired})
            return blob(ask.desired)
        else:
            answer = present
        self._wake(ask.key)
        return blob(answer)

    def _delete(self, key: bytes) -> int:
        value = self._values.pop(key, None)
        if value is None:
            return 0
        self._account(-len(key) - len(value), -1)
        return 1

    def _multi_get(self, keys: Iterable[bytes]) -> bytes:
        values = [self._values.get(key, b"") for key in keys]
        if sum(map(len, values)) > limits.STORE_ANSWER_BYTES_MAX:
            raise BadRequestError(
                f"the values asked for exceed the limit of {limits.STORE_ANSWER_BYTES_MAX} bytes"
            )
        return b"".join(map(blob, values))

    # --- queues -------------------------------------------------------------------------------

    def _push(self, key: bytes, value: bytes) -> None:
        grown = len(key) + len(value)
        self._check(grown, 1)
        self._queues.setdefault(key, deque()).append(value)
        self._account(grown, 1)
        for pending in list(self._waiters.get(key, ())):
            if self._seen(pending, key):
                break  # one value, one waiter

    def _pop(self, key: bytes) -> bytes:
        queue = self._queues.get(key)
        if queue is None:
            return number(0)
        length, value = len(queue), queue.popleft()
        if not queue:
            del self._queues[key]
        self._account(-len(key) - len(value), -1)
        return number(length) + blob(value)

    # --- waits --------------------------------------------------------------------------------

    def _present(self, key: bytes) -> bool:
        return key in self._values or key in self._queues

    def _wait(self, client: C, keys: Iterable[bytes]) -> bytes:
        self.drop(client)  # torch never has two waits on one connection; the newer one counts
        missing = {key: None for key in keys if not self._present(key)}
        if not missing:
            return tcpstore.YES
        self._block(client, missing)
        return b""

    def _barrier(self, client: C, ask: Barrier) -> bytes:
        self.drop(client)
        count = 1
        if ask.key in self._values:
            count = counters.wrapped(self._number(ask.key) + 1)
        if count >= ask.world_size:
            self._put({ask.key: b"%d" % count})
            return tcpstore.YES
        self._check(2 * len(ask.key) + _NUMBER_BYTES, 1)  # all or nothing
        self._store({ask.key: b"%d" % count})  # such an arrival wakes nobody
        self._block(client, {ask.key: None})
        return b""

    def _block(self, client: C, missing: dict[bytes, None]) -> None:
        cost = sum(map(len, missing))
        self._check(cost, 0)
        pending = self._pending[client] = Pending(client, missing, cost)
        self._account(cost, 0)
        for key in missing:
            self._waiters.setdefault(key, {})[pending] = None

    def _wake(self, key: bytes) -> None:
        if key in self._waiters:
            for pending in list(self._waiters[key]):
                self._seen(pending, key)

    def _seen(self, pending: Pending[C], key: bytes) -> bool:
        """The key was there for a moment, which is enough; True if the wait is over."""
        del pending.missing[key]
        waiters = self._waiters[key]
        del waiters[pending]
        if not waiters:
            del self._waiters[key]
        if pending.missing:
            return False
        del self._pending[pending.client]
        self._account(-pending.cost_bytes, 0)
        self._woken.append(pending.client)
        return True

    # --- quota --------------------------------------------------------------------------------

    def _check(self, grown_bytes: int, new_keys: int) -> None:
        if not self._quota.allows(grown_bytes, new_keys):
            raise BadRequestError(
                f"the run's stores would exceed {self._quota.bytes_max} bytes or "
                f"{self._quota.keys_max} keys"
            )

    def _account(self, grown_bytes: int, new_keys: int) -> None:
        self._bytes += grown_bytes
        self._keys += new_keys
        self._quota.take(grown_bytes, new_keys)
