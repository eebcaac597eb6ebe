"""`RdzvStore`: the keys of a generation, or of a run, as a `torch.distributed.Store`.

For whatever takes a store: `init_process_group(store=…)`, gloo groups made by hand, code of your own.

    store = RdzvStore.from_env()  # in a training process under torchrun
    store = RdzvStore(generation.kv)  # of a Client
    store = RdzvStore(client.kv, prefix="shared/")  # keys that outlive the generation

C++ calls such a store through a trampoline that has traps (torch 2.13; TORCH.md 8): values must be
bytes, two methods are looked up under camelCase names, the timeout is only in the C++ object, and an
object without a Python reference loses its methods. Any thread may call; each call waits alone.

NCCL groups work, but newer NCCL features of torch insist on a TCPStore: use `worker_store` for them.
Queues (`queue_push`, …) are not forwarded to Python stores by torch.
"""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from torch.distributed import DistNetworkError, DistStoreError, Store

from rdzv_client.blocking import Client, Worker
from rdzv_client.errors import (
    GenerationEnded,
    NotAMember,
    RdzvError,
    RequestTimeout,
    Unreachable,
)
from rdzv_client.kv import Kv
from rdzv_proto import limits

P = ParamSpec("P")
R = TypeVar("R")
Value = bytes | str

PREFIX = "store/"
"""Keeps these keys apart from others in the same generation, such as those of torch's agents."""

PART_BYTES = limits.VALUE_BYTES_MAX // 2
"""A long multi-set is sent in parts of this size; characters may take more than one byte each."""

_alive: list["RdzvStore"] = []
"""C++ holds a store without holding its Python half; without that half its methods are gone. So no
store is ever given up unless it is closed."""


class RdzvStore(Store):
    """A store over keys of the server.

    Args:
        kv: of a generation or of a run.
        prefix: goes in front of each key.
        timeout: patience of `get`, `multi_get` and `wait`; changed by `set_timeout`.
        worker: closed with this store.
    """

    def __init__(
        self,
        kv: Kv,
        *,
        prefix: str = PREFIX,
        timeout: timedelta = timedelta(seconds=300),
        worker: Worker | None = None,
    ) -> None:
        super().__init__()
        self._kv, self._prefix, self._worker = kv, prefix, worker
        self.set_timeout(timeout)
        _alive.append(self)

    @classmethod
    def from_env(cls, **more: Any) -> "RdzvStore":
        """The keys of the generation that this training process was started in by torchrun.

        Raises:
            ValueError: the environment is not that of a worker under rdzv.
            RdzvError: the generation has ended, or the server cannot be reached.
        """
        worker = Client.from_env()
        return cls(worker.generation.kv, worker=worker, **more)

    def close(self) -> None:
        """Give the store up. It must not be in any process group any more."""
        if self in _alive:
            _alive.remove(self)
        if self._worker is not None:
            self._worker.close()

    def clone(self) -> "RdzvStore":
        """Another store over the same keys, with a timeout of its own."""
        return type(self)(self._kv, prefix=self._prefix, timeout=self._patience())

    # --- one key ------------------------------------------------------------------------------

    def set(self, key: str, value: Value) -> None:
        """Set a key."""
        self._do(self._kv.set, self._prefix + key, value)

    def get(self, key: str) -> bytes:
        """The value of a key; waits for it up to the timeout."""
        return self._do(self._kv.get, self._prefix + key, self._patience_s())

    def add(self, key: str, value: int) -> int:
        """Add to a counter and return the sum."""
        return self._do(self._kv.add, self._prefix + key, value)

    def append(self, key: str, value: Value) -> None:
        """Append to a value; a missing key counts as empty."""
        self._do(self._kv.append, self._prefix + key, value)

    def compare_set(self, key: str, expected_value: Value, desired_value: Value) -> bytes:
        """Set a key if it has the expected value, or is missing and nothing is expected.

        Returns:
            The value it has now; the expected one if the key is missing and stays so.
        """
        expected, desired = _bytes(expected_value), _bytes(desired_value)
        full = self._prefix + key
        while True:
            if not expected:
                done = self._do(self._kv.cas, full, None, desired)
                if done.swapped:
                    return desired
                if done.value:  # what is there is not empty, so it is not what was expected
                    return done.value
            done = self._do(self._kv.cas, full, expected, desired)
            if done.swapped:
                return desired
            if done.value is not None:
                return done.value
            if expected:
                return expected  # c10d depends on it

    def delete_key(self, key: str) -> bool:
        """Delete a key; True if it was there."""
        return self._do(self._kv.delete, self._prefix + key) > 0

    # --- several keys -------------------------------------------------------------------------

    def check(self, keys: Sequence[str]) -> bool:
        """True if all keys are there."""
        return all(self._do(self._kv.check, chunk) for chunk in self._chunks(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there, up to `timeout` or the store's own."""
        until = (
            time.monotonic() + (self._patience() if timeout is None else timeout).total_seconds()
        )
        for chunk in self._chunks(keys):
            self._do(self._kv.wait, chunk, max(0.0, until - time.monotonic()))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys; waits for all of them."""
        until = time.monotonic() + self._patience_s()
        values: list[bytes] = []
        for chunk in self._chunks(keys):
            values += self._do(self._kv.multi_get, chunk, max(0.0, until - time.monotonic()))
        return values

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Set several keys."""
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys and {len(values)} values")
        part: dict[str, Value] = {}
        part_bytes = 0
        for key, value in zip(keys, values, strict=True):
            full = part_bytes + len(value) > PART_BYTES or len(part) == limits.KEYS_PER_REQUEST_MAX
            if part and full:
                self._do(self._kv.multi_set, part.keys(), part.values())
                part, part_bytes = {}, 0
            part[self._prefix + key] = value
            part_bytes += len(key) + len(value)
        if part:
            self._do(self._kv.multi_set, part.keys(), part.values())

    def num_keys(self) -> int:
        """How many keys there are."""
        return self._do(self._kv.count, self._prefix)

    def list_keys(self) -> list[str]:
        """The names of all keys, in order."""
        rows = self._do(self._kv.list, self._prefix)
        return [row.key.removeprefix(self._prefix) for row in rows]

    # --- what only C++ asks for ---------------------------------------------------------------

    def has_extended_api(self) -> bool:
        """`append`, `multi_get` and `multi_set` are there."""
        return True

    deleteKey = delete_key  # noqa: N815  (the names that C++ looks for)
    getNumKeys = num_keys  # noqa: N815

    # --- inside -------------------------------------------------------------------------------

    def _patience(self) -> timedelta:
        """`set_timeout` may have been called on the C++ half alone."""
        timeout: timedelta = self.timeout
        return timeout

    def _patience_s(self) -> float:
        return self._patience().total_seconds()

    def _chunks(self, keys: Sequence[str]) -> list[list[str]]:
        """At most as many keys as one request may have; no request at all for none."""
        full = [self._prefix + key for key in keys]
        step = limits.KEYS_PER_REQUEST_MAX
        return [full[first : first + step] for first in range(0, len(full), step)]

    def _do(self, action: Callable[P, R], *args: P.args, **more: P.kwargs) -> R:
        """The errors are those of torch's own stores."""
        try:
            return action(*args, **more)
        except (GenerationEnded, NotAMember, Unreachable, RequestTimeout) as error:
            raise DistNetworkError(str(error)) from None
        except (RdzvError, ValueError) as error:
            raise DistStoreError(str(error)) from None


def _bytes(value: Value) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
