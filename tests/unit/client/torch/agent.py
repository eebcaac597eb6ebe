"""A handler as torchrun makes it, and a server that gives it rank 0."""

import os
import tempfile
import threading
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from rdzv_proto.messages import Fence, Join, Joined
from tests.unit.client.fake_server import FENCE, FakeServer, joined

if TYPE_CHECKING:
    from rdzv_client.torch.handler import RdzvHandler


class Environment(UserDict[str, str]):
    """Variables that get no new name while a thread of ours runs, which may look up a host.

    `getaddrinfo` walks the C library's environment without a lock, and a new name moves it: an agent
    died of that (glibc before 2.41).
    """

    def __setitem__(self, name: str, value: str) -> None:
        running = [thread.name for thread in threading.enumerate() if thread.name[:4] == "rdzv"]
        assert name in self or not running, f"{name} is added beside the threads {running}"
        super().__setitem__(name, value)


@contextmanager
def rank_0_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """A server; environment and temporary files are of this block only."""
    pytest.importorskip("torch")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RDZV_")}
    monkeypatch.setattr(os, "environ", Environment(clean))
    with FakeServer() as running, tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        running.on(Join, lambda ask: with_master(ask, FENCE))
        yield running


def with_master(ask: Join, fence: Fence) -> Joined:
    """An assignment as rank 0 of a world of 2, with this node's own address."""
    return replace(joined(fence), master=ask.address, master_reason="it is rank 0")


def create(server: FakeServer, local_addr: str | None = None, **config: Any) -> "RdzvHandler":
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from rdzv_client.torch.plugin import create_handler

    endpoint = config.pop("endpoint", server.address)
    made: RdzvHandler = create_handler(
        RendezvousParameters("rdzv", endpoint, "llama", 1, 2, local_addr, **config)
    )
    return made
