"""The rdzv client: find the other nodes of a training job, agree who is in, carry on when one dies.

    from rdzv_client import Client

    with Client("host:29500", run="llama", min_nodes=2, max_nodes=4) as client:
        g = client.join(timeout=600)
        print(g.rank, g.world_size)

Importing this package is cheap; what it needs is loaded at first use.
"""

import importlib
import logging
from typing import TYPE_CHECKING

from rdzv_proto import __version__

if TYPE_CHECKING:
    from rdzv_client import errors
    from rdzv_client.aio import AsyncClient, AsyncGeneration
    from rdzv_client.blocking import Client, Generation, Worker
    from rdzv_client.errors import RdzvError
    from rdzv_client.generation import EndedFlag, Member
    from rdzv_client.kv import AsyncKv, Kv
    from rdzv_client.operations import KeyEntry, Meeting, Swapped

__all__ = [
    "AsyncClient",
    "AsyncGeneration",
    "AsyncKv",
    "Client",
    "EndedFlag",
    "Generation",
    "KeyEntry",
    "Kv",
    "Meeting",
    "Member",
    "RdzvError",
    "Swapped",
    "Worker",
    "__version__",
    "errors",
]

_HOME = {
    "AsyncClient": "aio",
    "AsyncGeneration": "aio",
    "AsyncKv": "kv",
    "Client": "blocking",
    "Generation": "blocking",
    "Kv": "kv",
    "Worker": "blocking",
    "EndedFlag": "generation",
    "KeyEntry": "operations",
    "Meeting": "operations",
    "Member": "generation",
    "Swapped": "operations",
    "RdzvError": "errors",
}

logging.getLogger("rdzv").addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("rdzv_client.errors")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'rdzv_client' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rdzv_client.{home}"), name)
