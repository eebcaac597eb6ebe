"""A process as a node: which store it opens, what it says when it ends."""

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from rdzv_client.errors import GenerationEnded, JoinTimeout
from rdzv_client.torch.url import parse
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Address, Error, Fence, Join, Joined, KvWait, Leave, WorkersStarted
from tests.unit.client.fake_server import FENCE, FakeServer, joined
from tests.unit.client.torch.agent import rank_0_server, with_master

if TYPE_CHECKING:
    from rdzv_client.torch.node import ProcessNode

pytestmark = pytest.mark.torch

TIMEOUT = timedelta(seconds=20)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with rank_0_server(monkeypatch) as running:
        yield running


def make(server: FakeServer, more: str = "min=2") -> "ProcessNode":
    from rdzv_client.torch.node import ProcessNode

    return ProcessNode(parse(f"rdzv://{server.address}/llama?{more}", {}))


@pytest.fixture
def node(server: FakeServer) -> Iterator["ProcessNode"]:
    made = make(server)
    yield made
    made.end("finished")


def as_rank_1(port: int) -> Joined:
    return replace(joined(rank=1), master=Address(host="127.0.0.1", port=port))


def test_rank_0_serves_the_store_on_the_port_it_named_and_others_are_its_clients(
    server: FakeServer, node: "ProcessNode"
) -> None:
    generation = node.rendezvous(TIMEOUT)
    assert (generation.rank, generation.world_size) == (0, 2)
    port = server.wait_for(Join).address.port
    server.on(Join, lambda ask: as_rank_1(port))
    other = make(server)
    assert other.rendezvous(TIMEOUT).rank == 1
    assert node.store is not None
    assert other.store is not None
    node.store.set("a", b"1")
    assert other.store.get("a") == b"1"
    other.end("finished")


def test_the_loss_of_rank_0_before_it_serves_the_store_is_told_at_once(server: FakeServer) -> None:
    refusal = Error(code=ErrorCode.STALE_GENERATION, message="generation 7.1 ended: a was lost")
    server.on(Join, lambda ask: as_rank_1(1))
    server.on(KvWait, lambda ask: refusal)
    node = make(server)
    with pytest.raises(GenerationEnded, match="a was lost"):
        node.rendezvous(TIMEOUT)
    assert server.wait_for(Leave).kind == "drained"


def test_with_worker_store_server_everybody_is_a_client_of_the_server(server: FakeServer) -> None:
    from torch.distributed import TCPStore

    theirs = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    server.on(Join, lambda ask: replace(joined(), store_port=theirs.port))
    node = make(server, "min=2&worker_store=server")
    node.rendezvous(TIMEOUT)
    assert node.store is not None
    node.store.set("a", b"1")
    assert theirs.get("a") == b"1"
    assert server.wait_for(Join).policy.worker_store == "server"
    node.end("finished")


def test_a_server_that_serves_no_stores_is_an_error_that_says_so(server: FakeServer) -> None:
    node = make(server, "min=2&worker_store=server")
    with pytest.raises(RuntimeError, match="serves no workers' stores; update it, or use"):
        node.rendezvous(TIMEOUT)
    assert server.wait_for(Leave).kind == "failed"


def test_the_server_is_told_which_process_has_which_rank(
    server: FakeServer, node: "ProcessNode"
) -> None:
    import os

    node.rendezvous(TIMEOUT)
    report = server.wait_for(WorkersStarted)
    assert (report.ranks, report.pids, report.world_size) == ([0], [os.getpid()], 2)


def test_a_second_rendezvous_is_a_rejoin_with_a_fresh_store(
    server: FakeServer, node: "ProcessNode"
) -> None:
    node.rendezvous(TIMEOUT)
    first = node.store
    assert first is not None
    first.set("old", b"1")
    server.on(Join, lambda ask: with_master(ask, Fence(7, 2)))
    node.rendezvous(TIMEOUT)
    second = node.store
    assert second is not None
    assert not second.check(["old"])
    assert [ask.last for ask in server.all(Join)][1:] != [None]
    a, b = (ask.address.port for ask in server.all(Join))
    assert a != b


def test_the_timeout_of_the_process_group_bounds_the_join(server: FakeServer) -> None:
    short, long = make(server, "min=2&timeout=7"), make(server, "min=2&timeout=700")
    for node in (short, long):
        node.rendezvous(TIMEOUT)
        node.end("finished")
    limits = [ask.policy.join_timeout_ms for ask in server.all(Join)]
    assert limits == [7000, 20_000]


def test_a_rank_that_does_not_come_out_is_an_error_and_the_others_are_told(
    server: FakeServer,
) -> None:
    node = make(server, "min=2&rank=1")
    with pytest.raises(ValueError, match="rank=1 was asked for, but this process is rank 0 of 2"):
        node.rendezvous(TIMEOUT)
    assert server.wait_for(Join).rank_hint == 1
    assert server.wait_for(Leave).kind == "failed"
    assert not node.goes_on


def test_a_join_that_fails_leaves_nothing_behind(server: FakeServer) -> None:
    server.on(Join, lambda ask: Error(code=ErrorCode.JOIN_TIMEOUT, message="1 of min 2 joined"))
    node = make(server)
    with pytest.raises(JoinTimeout, match="1 of min 2 joined"):
        node.rendezvous(TIMEOUT)
    assert server.wait_for(Leave).kind == "drained"
    assert not node.goes_on


def test_a_local_address_that_was_given_is_passed_on_as_it_is(server: FakeServer) -> None:
    node = make(server, "min=2&local_addr=node-1.example")
    node.rendezvous(TIMEOUT)
    address = server.wait_for(Join).address
    assert (address.host, address.explicit) == ("node-1.example", True)
    node.end("finished")


def test_it_leaves_once_and_never_raises(server: FakeServer, node: "ProcessNode") -> None:
    node.rendezvous(TIMEOUT)
    server.on(Leave, lambda ask: Error(code=ErrorCode.INTERNAL, message="no"))
    node.end("failed", "RuntimeError: x", 3)
    node.end("finished")
    (leave,) = server.all(Leave)
    assert (leave.kind, leave.detail, leave.exit_code) == ("failed", "RuntimeError: x", 3)


# --- why a process ends ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (None, ("finished", "", None)),
        (SystemExit(), ("finished", "", None)),
        (SystemExit(0), ("finished", "", None)),
        (SystemExit(3), ("failed", "exit code 3", 3)),
        (SystemExit("bad"), ("failed", "exit code 1", 1)),
        (KeyboardInterrupt(), ("drained", "KeyboardInterrupt", None)),
        (RuntimeError("the loss is NaN"), ("failed", "RuntimeError: the loss is NaN", None)),
    ],
)
def test_the_way_a_process_ends_is_told_as_far_as_it_can_be_known(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None, why: tuple[object, ...]
) -> None:
    pytest.importorskip("torch")
    from rdzv_client.torch.node import why_it_ends

    monkeypatch.setattr(sys, "last_value", error, raising=False)
    assert why_it_ends() == why, "the main process, after the traceback was printed"
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    if error is not None:
        try:
            raise error
        except BaseException:  # noqa: BLE001  (as multiprocessing does)
            assert why_it_ends() == why, "a process of multiprocessing, while it is in flight"


def test_the_generation_is_of_the_fence_that_was_given(
    server: FakeServer, node: "ProcessNode"
) -> None:
    assert node.rendezvous(TIMEOUT).fence == FENCE
