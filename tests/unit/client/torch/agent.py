"""A handler as torchrun makes it, and a server that gives it rank 0."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from rdzv_proto.messages import Fence, Join, Joined
from tests.unit.client.fake_server import FENCE, FakeServer, joined

if TYPE_CHECKING:
    from rdzv_client.torch.handler import RdzvHandler


@contextmanager
def rank_0_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """A server; environment and temporary files are of this block only."""
    pytest.importorskip("torch")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RDZV_")}
    monkeypatch.setattr(os, "environ", clean)
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
