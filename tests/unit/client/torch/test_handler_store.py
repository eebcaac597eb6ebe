"""The handler with `worker_store=server`: the workers' store is the server's."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from rdzv_proto.messages import Address, Fence, Join, Joined
from tests.unit.client.fake_server import FENCE, FakeServer, joined
from tests.unit.client.torch.agent import create, rank_0_server

if TYPE_CHECKING:
    from rdzv_client.torch.handler import RdzvHandler

pytestmark = pytest.mark.torch


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with rank_0_server(monkeypatch) as running:
        running.on(Join, lambda ask: with_store(40_001))
        yield running


@pytest.fixture
def handler(server: FakeServer) -> Iterator["RdzvHandler"]:
    made = create(server, worker_store="server")
    yield made
    made.shutdown()


def with_store(port: int, fence: Fence = FENCE, rank: int = 1) -> Joined:
    """An assignment with a store, and a rank 0 that is somewhere else."""
    master = Address(host="10.9.9.9", port=4321)
    return replace(joined(fence, rank=rank), master=master, store_port=port)


def test_the_workers_find_their_store_where_this_node_finds_the_server(
    server: FakeServer, handler: "RdzvHandler"
) -> None:
    assert handler.use_agent_store is True
    info = handler.next_rendezvous()
    master = info.bootstrap_store_info
    assert (master.master_addr, master.master_port) == ("127.0.0.1", 40_001)
    assert server.wait_for(Join).policy.worker_store == "server"


def test_no_port_is_reserved_for_worker_0(server: FakeServer, handler: "RdzvHandler") -> None:
    handler.next_rendezvous()
    assert server.wait_for(Join).address == Address(host="127.0.0.1")
    assert handler._port is None
    assert handler._next_port is None


def test_each_generation_has_its_own_port(server: FakeServer, handler: "RdzvHandler") -> None:
    handler.next_rendezvous()
    server.on(Join, lambda ask: with_store(40_002, Fence(FENCE.epoch, FENCE.generation + 1)))
    assert handler.next_rendezvous().bootstrap_store_info.master_port == 40_002


def test_the_log_says_which_store_it_is_and_where(
    handler: "RdzvHandler", caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="rdzv"):
        handler.next_rendezvous()
    assert (
        "workers' store: the server. MASTER_ADDR=127.0.0.1 MASTER_PORT=40001, for this generation only"
        in caplog.text
    )


def test_the_log_says_so_of_worker_0_s_store_too(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.on(Join, lambda ask: with_store(0, rank=0))
    handler = create(server)
    with caplog.at_level(logging.INFO, logger="rdzv"):
        handler.next_rendezvous()
    handler.shutdown()
    assert "workers' store: worker 0. MASTER_ADDR=10.9.9.9 MASTER_PORT=4321" in caplog.text


def test_a_server_that_cannot_do_it_is_named(server: FakeServer, handler: "RdzvHandler") -> None:
    from torch.distributed.elastic.rendezvous.api import RendezvousStateError

    server.on(Join, lambda ask: with_store(0))
    with pytest.raises(RendezvousStateError, match=r"worker_store=server.*update it, or use"):
        handler.next_rendezvous()
