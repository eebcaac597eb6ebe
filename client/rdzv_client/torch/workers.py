"""Which process is which rank, told to the server, so that `rdzv status` can name a worker whose store
connection it sees.

torch tells a handler nothing of the workers it starts, but they are children of this process and have
their ranks in their environment. Where that cannot be read (no /proc), nothing is reported.
"""

import contextlib
import logging
import os
import threading

from rdzv_client import worker
from rdzv_client.blocking import Client, Generation
from rdzv_proto.messages import WorkersStarted

log = logging.getLogger("rdzv")

PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 24.0)
"""Between two looks. Workers start right after the rank exchange, which has a minute; a node that is
later than that stays without names in the status."""

Found = dict[int, int]
"""Process ids by global rank."""


def report(client: Client, generation: Generation) -> None:
    """Look for the generation's workers beside everything else, and report them once all are there."""
    threading.Thread(
        target=_watch, args=(client, generation), name="rdzv-workers", daemon=True
    ).start()


def workers_of(parent: int, fence: str, proc: str = "/proc") -> tuple[Found, int]:
    """The workers that a process has started for a generation.

    Args:
        parent: its process id.
        fence: of the generation.
        proc: where the system shows its processes.

    Returns:
        What was found, and how many there will be (0: not known yet).
    """
    found: Found = {}
    expected = 0
    for pid in _children(parent, proc):
        environment = _environment(pid, proc)
        rank, count = environment.get("RANK", ""), environment.get("LOCAL_WORLD_SIZE", "")
        if environment.get(worker.FENCE) == fence and rank.isdecimal() and count.isdecimal():
            found[int(rank)], expected = pid, int(count)
    return found, expected


def _watch(client: Client, generation: Generation) -> None:
    for pause_s in PAUSES_S:
        if generation.ended.wait(pause_s):
            return
        found, expected = workers_of(os.getpid(), str(generation.fence))
        if expected and len(found) >= expected:
            ranks = sorted(found)
            ask = WorkersStarted(
                fence=generation.fence, ranks=ranks, pids=[found[rank] for rank in ranks]
            )
            client.engine.submit(ask, lambda reply: None)  # without it the status knows less
            return
    log.debug("rdzv[%s] the workers of this node could not be found", generation.run)


def _children(parent: int, proc: str) -> list[int]:
    """Child processes, whichever thread started them."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"{proc}/{parent}/task"):
            with contextlib.suppress(OSError), open(f"{proc}/{parent}/task/{thread}/children") as f:
                found += map(int, f.read().split())
    return found


def _environment(pid: int, proc: str) -> dict[str, str]:
    """What a process was started with; empty if it is gone or somebody else's."""
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            entries = file.read().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
