"""A training process attached to its agent's generation, against a server in this process."""

import pytest
from msgspec.structs import replace

from rdzv_client import operations
from rdzv_client.blocking import Client, Worker
from rdzv_client.calls import Calls
from rdzv_client.endpoint import parse
from rdzv_client.engine import Engine
from rdzv_client.errors import GenerationEnded
from rdzv_client.worker import WorkerEnvironment
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Ended,
    Error,
    HelloWorker,
    KvNumber,
    Leave,
    View,
    ViewChanged,
)
from tests.unit.client.fake_server import FENCE, PATIENCE_S, FakeServer


def environment(server: FakeServer) -> WorkerEnvironment:
    return WorkerEnvironment(
        endpoints=parse(server.address),
        run="llama",
        node_id="node-1",
        fence=FENCE,
        rank=5,
        world_size=8,
        lease_ms=9000,
        token=b"w" * 32,
    )


def test_a_worker_attaches_to_its_agents_generation(server: FakeServer) -> None:
    with Worker(environment(server)) as worker:
        g = worker.generation
        assert (g.run, g.rank, g.world_size, g.fence) == ("llama", 5, 8, FENCE)
        g.kv.set("k", "v")
        ended = View(fence=FENCE, waiting=1, ended=Ended(kind="lost", reason="b"))
        server.push(ViewChanged(view=ended))
        assert g.ended.wait(PATIENCE_S)
    hello = server.wait_for(HelloWorker)
    assert (hello.rank, hello.worker_token) == (5, b"w" * 32)
    assert server.all(Leave) == [], "a worker's end changes nothing for the run"
    assert server.peers[-1].gone.wait(PATIENCE_S)


def test_a_first_welcome_may_come_before_the_worker_has_gone_on(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is as fast as it can be: by the time it is started, all that comes has come."""
    start = Engine.start

    def start_and_hear(engine: Engine) -> None:
        start(engine)
        ask = operations.kv_count(None, "")  # answered after the view
        Calls(engine).ask(ask, KvNumber, PATIENCE_S)

    monkeypatch.setattr(Engine, "start", start_and_hear)
    over = View(fence=FENCE, waiting=1, ended=Ended(kind="lost", reason="node-2 is lost"))
    server.on(HelloWorker, lambda m: replace(server.welcome(m), view=over))
    with Worker(environment(server)) as worker:
        assert worker.generation.ended.is_set()
        assert worker.generation.ended.reason == "node-2 is lost"


def test_a_worker_of_a_dead_generation_is_refused_and_leaves_nothing_behind(
    server: FakeServer,
) -> None:
    server.on(HelloWorker, lambda m: Error(code=ErrorCode.STALE_GENERATION, message="7.1 is over"))
    with pytest.raises(GenerationEnded, match=r"7\.1 is over"):
        Worker(environment(server))
    assert server.peers[-1].gone.wait(PATIENCE_S)


def test_from_env_reads_what_the_agent_exported(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerEnvironment, "read", lambda: environment(server))
    with Client.from_env() as worker:
        assert worker.generation.rank == 5
