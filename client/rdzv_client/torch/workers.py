"""The worker processes of this agent, found among its children.

torch does not tell a rendezvous handler what it starts. Linux shows a process its children, and
their environment holds their rank; elsewhere nothing is found, and the server then cannot tell store
connections by rank.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rdzv_client import worker


@dataclass
class Workers:
    """What has been found so far."""

    ranks: dict[int, int] = field(default_factory=dict)
    """Process id to global rank."""
    local_world_size: int = 0
    world_size: int = 0

    @property
    def complete(self) -> bool:
        """All workers of this node have been found."""
        return 0 < self.local_world_size <= len(self.ranks)


def find(fence: str, proc: str = "/proc") -> Workers:
    """The children of this process that are workers of a generation. Never raises.

    Args:
        fence: of the generation, as its workers inherit it: those of the last one may still be there.
        proc: where the system shows processes.
    """
    found = Workers()
    for pid in _children(proc):
        environ = _environ(f"{proc}/{pid}/environ")
        if environ.get(worker.FENCE) != fence:
            continue
        with contextlib.suppress(KeyError, ValueError):
            rank, local = int(environ["RANK"]), int(environ["LOCAL_WORLD_SIZE"])
            found.ranks[pid] = rank
            found.local_world_size = local
            found.world_size = int(environ["WORLD_SIZE"])
    return found


def _children(proc: str) -> Iterator[int]:
    """Of all threads: a child belongs to the thread that started it."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"{proc}/self/task"):
            yield from map(int, _text(f"{proc}/self/task/{thread}/children").split())


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:  # the thread has ended, or this kernel does not tell
        return ""


def _environ(path: str) -> Mapping[str, str]:
    """A process' environment as it was started; empty if it is gone or somebody else's."""
    try:
        with open(path, "rb") as file:
            pairs = (part.partition(b"=") for part in file.read().split(b"\0") if part)
            return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    except OSError:
        return {}
