"""Barriers for ordinary code, for asyncio code and for workers."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdzv_client.aio import AsyncClient
from rdzv_client.blocking import Client, Worker
from rdzv_client.errors import BarrierBroken, BarrierTimeout, GenerationEnded, RequestTimeout
from rdzv_client.operations import Meeting
from rdzv_client.worker import WorkerEnvironment, token_text
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Barrier, Error, Released
from tests.unit.client.fake_server import FENCE, PATIENCE_S, FakeServer

GATHERED = Released(round=3, payloads=[b"a", None], committed=False, against=[1])


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    made = Client(server.address, run="llama", min_nodes=2, node_id="node-1", name="node-1")
    yield made
    made.close()


@pytest.fixture
def worker(server: FakeServer, tmp_path: Path) -> Iterator[Worker]:
    token = tmp_path / "token"
    token.write_bytes(token_text(FENCE, b"w" * 32))
    environment = {
        "RDZV_ENDPOINT": server.address,
        "RDZV_RUN": "llama",
        "RDZV_FENCE": str(FENCE),
        "RDZV_WORKER_NODE": "node-1",
        "RDZV_WORKER_TOKEN_FILE": str(token),
        "RANK": "2",
        "WORLD_SIZE": "4",
    }
    with Worker(WorkerEnvironment.read(environment)) as made:
        yield made


def test_nodes_meet_in_their_generation(server: FakeServer, client: Client) -> None:
    server.on(Barrier, lambda m: GATHERED)
    met = client.join().barrier("ckpt", payload="p", vote=True, timeout=1.5)
    assert met == Meeting(3, [b"a", None], False, [1])
    assert server.all(Barrier) == [
        Barrier(fence=FENCE, name="ckpt", of="nodes", payload=b"p", vote=True, timeout_ms=1500)
    ]


def test_a_barrier_needs_a_name_only(server: FakeServer, client: Client) -> None:
    assert client.join().barrier("b") == Meeting(1, [], None, [])
    assert server.all(Barrier) == [Barrier(fence=FENCE, name="b", timeout_ms=60_000)]


def test_some_of_the_nodes_meet_in_whatever_order_they_are_named(
    server: FakeServer, client: Client
) -> None:
    client.join().barrier("b", members=iter([3, 0, 3]), round=7)
    (ask,) = server.all(Barrier)
    assert (ask.members, ask.round, ask.count) == ([0, 3], 7, 0)


def test_an_empty_payload_is_a_payload_and_a_no_is_a_vote(
    server: FakeServer, client: Client
) -> None:
    client.join().barrier("b", payload=b"", vote=False)
    (ask,) = server.all(Barrier)
    assert (ask.payload, ask.vote) == (b"", False)


def test_workers_meet_workers_and_say_how_many_they_are(server: FakeServer, worker: Worker) -> None:
    worker.generation.barrier("b")
    worker.generation.barrier("b", members=[1, 2])
    first, second = server.all(Barrier)
    assert (first.of, first.count, first.members, first.fence) == ("workers", 4, [], FENCE)
    assert (second.of, second.members) == ("workers", [1, 2])


def test_so_many_clients_of_a_run_meet_without_a_generation(
    server: FakeServer, client: Client
) -> None:
    client.barrier("start", 3, payload="x", timeout=2)
    assert server.all(Barrier) == [
        Barrier(name="start", of="count", count=3, payload=b"x", timeout_ms=2000)
    ]


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb"])
def test_a_name_that_is_none_never_reaches_the_server(
    server: FakeServer, client: Client, name: str
) -> None:
    g = client.join()
    with pytest.raises(ValueError, match="barrier name"):
        g.barrier(name)
    with pytest.raises(ValueError, match="barrier name"):
        client.barrier(name, 2)
    assert server.all(Barrier) == []


@pytest.mark.parametrize(
    ("members", "says"),
    [([], "members is empty"), ([-1, 0], "rank -1 is not between"), ([2_000_000], "rank 2000000")],
)
def test_wrong_ranks_never_reach_the_server(
    server: FakeServer, client: Client, members: list[int], says: str
) -> None:
    g = client.join()
    with pytest.raises(ValueError, match=says):
        g.barrier("b", members=members)
    with pytest.raises(ValueError, match="count is 0; nobody would meet"):
        client.barrier("b", 0)
    with pytest.raises(ValueError, match="count 2000000 is not between"):
        client.barrier("b", 2_000_000)
    assert server.all(Barrier) == []


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (ErrorCode.BARRIER_TIMEOUT, BarrierTimeout),
        (ErrorCode.BARRIER_BROKEN, BarrierBroken),
        (ErrorCode.STALE_GENERATION, GenerationEnded),
    ],
)
def test_a_round_that_failed_is_raised(
    server: FakeServer, client: Client, code: ErrorCode, raised: type[Exception]
) -> None:
    server.on(Barrier, lambda m: Error(code=code, message="3 of 4 came; missing: n2"))
    g = client.join()
    with pytest.raises(raised, match="missing: n2"):
        g.barrier("b")
    with pytest.raises(raised, match="missing: n2"):
        client.barrier("b", 2)


def test_a_barrier_timeout_is_a_timeout_error(server: FakeServer, client: Client) -> None:
    server.on(Barrier, lambda m: Error(code=ErrorCode.BARRIER_TIMEOUT, message="n2"))
    with pytest.raises(TimeoutError):
        client.join().barrier("b")


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(
    server: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rdzv_client.operations.OPERATION_S", 0.05)
    server.on(Barrier, None)
    with pytest.raises(RequestTimeout, match="barrier: no answer from"):
        client.join().barrier("b", timeout=0.05)


def test_an_arrival_is_sent_again_after_a_broken_connection(
    server: FakeServer, client: Client
) -> None:
    server.on(Barrier, None)
    g, met = client.join(), list[Meeting]()
    waiting = threading.Thread(target=lambda: met.append(g.barrier("b")))
    waiting.start()
    server.wait_for(Barrier)
    server.on(Barrier, lambda m: GATHERED)
    server.peers[-1].cut()
    waiting.join(PATIENCE_S)
    assert [m.round for m in met] == [3]
    first, again = server.ids(Barrier)
    assert first == again, "under the same request id, so that it counts once"


async def test_asyncio_code_meets_too(server: FakeServer) -> None:
    server.on(Barrier, lambda m: GATHERED)
    async with AsyncClient(server.address, run="llama", node_id="node-1") as client:
        met = await (await client.join()).barrier("b", members=[1, 0], payload=b"p", vote=True)
        assert met == Meeting(3, [b"a", None], False, [1])
        await client.barrier("start", 3, timeout=2)
    assert server.all(Barrier) == [
        Barrier(fence=FENCE, name="b", members=[0, 1], payload=b"p", vote=True, timeout_ms=60_000),
        Barrier(name="start", of="count", count=3, timeout_ms=2000),
    ]


async def test_a_cancelled_barrier_leaves_no_task_behind(server: FakeServer) -> None:
    server.on(Barrier, None)
    async with AsyncClient(server.address, run="llama", node_id="node-1") as client:
        g = await client.join()
        waiting = asyncio.create_task(g.barrier("b"))
        await asyncio.to_thread(server.wait_for, Barrier)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        server.on(Barrier, lambda m: GATHERED)
        assert (await g.barrier("b")).round == 3, "and the client goes on"
