"""The scheme as torch sees it, and who shares a generation with whom."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rdzv_proto.messages import Fence, Join
from tests.unit.client.fake_server import FENCE, FakeServer
from tests.unit.client.torch.agent import rank_0_server, with_master

pytestmark = pytest.mark.torch


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with rank_0_server(monkeypatch) as running:
        yield running


@pytest.fixture
def module(server: FakeServer) -> Iterator[Any]:
    from rdzv_client.torch import init_method

    yield init_method
    for node in init_method._nodes.values():
        node.end("finished")
    init_method._nodes.clear()
    init_method._newest = None


def rendezvous(server: FakeServer, more: str = "min=2", **given: Any) -> tuple[Any, int, int]:
    import torch.distributed as dist

    url = f"rdzv://{server.address}/llama?{more}"
    result: tuple[Any, int, int] = next(iter(dist.rendezvous(url, **given)))
    return result


def second_generation(server: FakeServer) -> None:
    server.on(Join, lambda ask: with_master(ask, Fence(7, 2)))


def test_torch_knows_the_scheme_and_gets_store_rank_and_world(
    server: FakeServer, module: Any
) -> None:
    store, rank, world = rendezvous(server)
    assert (rank, world) == (0, 2)
    store.set("a", "1")
    assert store.get("a") == b"1"
    assert module.current_generation().number == 1


def test_rank_and_world_size_given_to_torch_are_asked_for(server: FakeServer, module: Any) -> None:
    rendezvous(server, "min=1&max=4", rank=0, world_size=2)
    ask = server.wait_for(Join)
    assert (ask.policy.min_nodes, ask.policy.max_nodes, ask.rank_hint) == (2, 2, 0)


def test_the_next_process_group_of_the_process_is_a_rejoin(server: FakeServer, module: Any) -> None:
    rendezvous(server)
    second_generation(server)
    rendezvous(server)
    assert module.current_generation().number == 2
    assert [ask.last for ask in server.all(Join)] == [None, FENCE]
    assert len(server.peers) == 1, "the same client"


def test_another_url_for_the_run_is_another_node(server: FakeServer, module: Any) -> None:
    rendezvous(server)
    second_generation(server)
    rendezvous(server, "min=1&max=2")
    assert len(server.peers) == 2
    assert len(module._nodes) == 1


def test_rpc_beside_a_process_group_shares_its_generation(
    server: FakeServer, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = rendezvous(server)
    monkeypatch.setattr(module, "_in_use", lambda: True)
    second, rank, world = rendezvous(server, "min=1&max=4", rank=0, world_size=2)
    assert (rank, world) == (0, 2)
    first.set("a", "1")
    assert second.get("a") == b"1"
    assert len(server.all(Join)) == 1


def test_rpc_that_asks_for_another_world_is_refused_and_harms_nobody(
    server: FakeServer, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendezvous(server)
    monkeypatch.setattr(module, "_in_use", lambda: True)
    with pytest.raises(ValueError, match="is rank 0 of 2 in generation 1 of that run already"):
        rendezvous(server, "min=3")
    assert module._nodes["llama"].goes_on


def test_the_package_gives_the_present_generation_without_being_asked_for_torch_before() -> None:
    pytest.importorskip("torch")
    code = (
        "import sys, rdzv_client.torch as t; assert 'torch' not in sys.modules;"
        "print(t.current_generation());"
        "import torch.distributed.rendezvous;"
        "print('rdzv' in sys.modules['torch.distributed.rendezvous']._rendezvous_handlers)"
    )
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ
    )
    assert run.stdout.split() == ["None", "True"], run.stderr


def test_a_name_the_package_does_not_have_is_an_attribute_error() -> None:
    import rdzv_client.torch

    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = rdzv_client.torch.nothing
