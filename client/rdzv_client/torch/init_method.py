"""`init_method="rdzv://HOST:29500/RUN?min=2&max=4"`, for scripts that are started without torchrun.

    import rdzv_client.torch.init_method  # makes the scheme known

    torch.distributed.init_process_group("gloo", init_method="rdzv://host:29500/llama?min=2&max=4")

Rank and world size come from the server. Importing this module registers the scheme with torch; the
package itself does not, since torchrun loads it for every job.
"""

import multiprocessing.util
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from rdzv_client.blocking import Generation
from rdzv_client.torch import logs
from rdzv_client.torch.node import ProcessNode, why_it_ends
from rdzv_client.torch.url import SCHEME, Target, parse

DEFAULT_TIMEOUT = timedelta(minutes=30)
"""torch's own for process groups."""

_nodes: dict[str, ProcessNode] = {}
"""By run: they live as long as the process does, or until another URL for the same run."""

_newest: ProcessNode | None = None


def current_generation() -> Generation | None:
    """The generation that the last `init_process_group` with a `rdzv://` URL got.

    Its `ended` is set, with the reason, when a peer was lost or wants in; its `kv`, barriers and
    members are there as in a generation that was joined with `Client`.
    """
    return None if _newest is None else _newest.generation


def handler(
    url: str, timeout: timedelta = DEFAULT_TIMEOUT, **_: Any
) -> Iterator[tuple[dist.Store, int, int]]:
    """What torch calls for the scheme.

    Args:
        url: see `rdzv_client.torch.url`.
        timeout: of the process group.

    Raises:
        ValueError: the URL is wrong, or rank or world size did not come out as asked for.
        RdzvError: no generation; the text says what, who, since when, and what to do.
    """
    global _newest
    logs.set_up()
    target = parse(url, os.environ)
    node = _nodes.get(target.run)
    if node is not None and _in_use() and _same_world(node, target):
        _newest = node
    else:
        node = _newest = _rejoin_or_make(node, target)
        node.rendezvous(timeout)
    generation, store = node.generation, node.store
    assert generation is not None, "a rendezvous gives a generation"
    assert store is not None, "and a store"
    yield (store, generation.rank, generation.world_size)
    raise RuntimeError(f"{target.url}: call init_process_group again for a new rendezvous")


def _rejoin_or_make(node: ProcessNode | None, target: Target) -> ProcessNode:
    """The same node goes on as long as it is asked for the same."""
    if node is not None and node.goes_on and node.target == target:
        return node
    if node is not None:
        node.end("finished")
    made = _nodes[target.run] = ProcessNode(target)
    multiprocessing.util.Finalize(None, _at_exit, args=(os.getpid(), made), exitpriority=0)
    return made


def _same_world(node: ProcessNode, target: Target) -> bool:
    """`init_rpc` beside a process group (or the other way round) shares its generation."""
    generation = node.generation
    if generation is None or node.store is None or generation.ended:
        return False
    fits = target.options["min_nodes"] <= generation.world_size <= target.options["max_nodes"]
    if not fits or target.rank not in (None, generation.rank):
        raise ValueError(
            f"{target.url}: this process is rank {generation.rank} of {generation.world_size} in "
            f"generation {generation.number} of that run already, which is not what is asked for "
            "here; use another run id"
        )
    return True


def _in_use() -> bool:
    """A process group or an RPC agent of this process works on the present generation."""
    rpc = sys.modules.get("torch.distributed.rpc.api")
    return dist.is_initialized() or (rpc is not None and rpc._is_current_rpc_agent_set())


def _at_exit(pid: int, node: ProcessNode) -> None:
    if pid == os.getpid():  # the node belongs to the process that made it
        node.end(*why_it_ends())


dist.register_rendezvous_handler(SCHEME, handler)
