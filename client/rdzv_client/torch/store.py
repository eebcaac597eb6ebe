"""The store that agents get from `next_rendezvous()`: a plain object over the keys of a generation.

Agents use it twice (TORCH.md 6): to exchange roles and ranks right after a rendezvous, and to meet in
the exit barrier. torch checks no type, so this is no `Store` subclass. Two rules make it more than a
thin cover:

- An agent that is inside the rank exchange when its generation ends must not see an error, for any
  exception there kills it (torch 2.13, `_assign_worker_ranks`). It gets well-formed placeholders, and
  the waiting count is positive by then: it starts its workers, stops them at its first poll and
  rejoins.
- An agent whose workers succeeded says so by writing the terminal-state key. That is where the server
  is told that this node has finished. When the generation ends while it waits for the others, there
  is nobody left to wait for: the wait is over.
"""

import json
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError

from rdzv_client.blocking import Generation
from rdzv_client.errors import GenerationEnded, NotAMember, RdzvError, Timeout

log = logging.getLogger("rdzv")

ROLE_INFO = "torchelastic/role_info/"
ASSIGNED_RANKS = "torchelastic/assigned_ranks/"
TERMINAL_STATE = "torchelastic/agent/terminal_state"
NUM_MEMBERS = f"{TERMINAL_STATE}/num_members"


class AgentStore:
    """Keys of one generation, as torch's agent calls them.

    Args:
        generation: where the keys live.
        timeout: patience of blocking reads until the agent sets another.
        on_finished: called once, before the agent enters the exit barrier.
    """

    def __init__(
        self, generation: Generation, timeout: timedelta, on_finished: Callable[[], None]
    ) -> None:
        self._generation = generation
        self._on_finished = on_finished
        self._role_info = b""
        self.timeout = timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Patience of the reads that follow."""
        self.timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key. Without effect once the generation has ended."""
        if key.startswith(ROLE_INFO):
            self._role_info = value.encode() if isinstance(value, str) else value
        self._write(lambda: self._generation.kv.set(key, value))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set several keys. Without effect once the generation has ended."""
        self._write(lambda: self._generation.kv.multi_set(keys, values))

    def get(self, key: str) -> bytes:
        """The value of a key; blocks until it is there.

        Raises:
            torch.distributed.DistStoreError: not within the timeout.
        """
        return self._read([key], self.timeout)[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys; blocks until all are there.

        Raises:
            torch.distributed.DistStoreError: not within the timeout.
        """
        return self._read(list(keys), self.timeout)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return the sum; 0 once the generation has ended."""
        if key == NUM_MEMBERS:
            self._on_finished()
        try:
            return self._generation.kv.add(key, amount)
        except (GenerationEnded, NotAMember):
            return 0
        except RdzvError as error:
            raise _torch_error(error) from None

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Block until all keys are there, or until the generation has ended.

        Raises:
            torch.distributed.DistStoreError: not within the timeout.
        """
        patience = self.timeout if timeout is None else timeout
        try:
            self._generation.kv.wait(keys, patience.total_seconds())
        except (GenerationEnded, NotAMember) as error:
            log.info("rdzv[%s] not waiting any more: %s", self._generation.run, error.message)
        except RdzvError as error:
            raise _torch_error(error) from None

    def _write(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (GenerationEnded, NotAMember):
            pass  # the rejoin that follows makes a new generation with keys of its own
        except RdzvError as error:
            raise _torch_error(error) from None

    def _read(self, keys: list[str], timeout: timedelta) -> list[bytes]:
        try:
            return self._generation.kv.multi_get(keys, timeout.total_seconds())
        except (GenerationEnded, NotAMember):
            return [self._placeholder(key) for key in keys]
        except RdzvError as error:
            raise _torch_error(error) from None

    def _placeholder(self, key: str) -> bytes:
        """An answer of the right form and size for a world that has ended."""
        if key.startswith(ASSIGNED_RANKS):
            local = int(json.loads(self._role_info or b"{}").get("local_world_size", 1))
            base, world = self._generation.rank * local, self._generation.world_size * local
            return json.dumps([base, world, base, world]).encode()
        return self._role_info


def _torch_error(error: RdzvError) -> Exception:
    """The type that torch's own stores raise; the exit barrier catches DistStoreError by name."""
    if isinstance(error, Timeout):
        return DistStoreError(str(error))
    return DistNetworkError(str(error))
