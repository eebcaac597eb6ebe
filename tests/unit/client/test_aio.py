"""The client for asyncio code, on both event loops, against a server in this process."""

import asyncio
from typing import Any

import pytest

from rdzv_client.aio import AsyncClient
from rdzv_client.errors import (
    ConnectionLost,
    GenerationEnded,
    JoinTimeout,
    RequestTimeout,
)
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Address,
    CloseRun,
    Ended,
    Error,
    Fence,
    Finished,
    Heartbeat,
    Join,
    KvGet,
    KvWait,
    Leave,
    MemberStatus,
    View,
    ViewChanged,
)
from tests.e2e.kit.wait import until
from tests.unit.client.fake_server import FENCE, PATIENCE_S, FakeServer, joined

LOST = View(fence=FENCE, waiting=1, ended=Ended(kind="lost", reason="node b was lost"))


def client_of(server: FakeServer, **options: Any) -> AsyncClient:
    return AsyncClient(server.address, run="llama", node_id="node-1", name="node-1", **options)


async def test_a_join_returns_the_generation(server: FakeServer) -> None:
    async with client_of(server, min_nodes=2) as client:
        g = await client.join(timeout=5, address=Address(host="10.0.0.1", port=7))
        assert client.generation is g
        assert (g.rank, g.world_size, g.number, g.fence) == (0, 2, 1, FENCE)
        server.on(Join, lambda m: joined(Fence(7, 2)))
        assert (await client.join()).number == 2
    first, second = server.all(Join)
    assert (first.last, second.last) == (None, FENCE)
    assert (first.policy.min_nodes, first.policy.join_timeout_ms) == (2, 5000)
    assert first.address == Address(host="10.0.0.1", port=7)
    assert g.ended.kind == "superseded"


async def test_keys_of_the_generation(server: FakeServer) -> None:
    async with client_of(server) as client:
        kv = (await client.join()).kv
        await kv.set("a", "text")
        await kv.multi_set(["b", "c"], [b"1", "2"])
        assert await kv.get("a") == b"text"
        assert await kv.multi_get(["c", "b"]) == [b"2", b"1"]
        await kv.wait(["a", "b"], timeout=2)
        assert server.wait_for(KvWait).timeout_ms == 2000
        assert [await kv.add("n"), await kv.add("n", 5)] == [1, 6]


async def test_many_calls_at_a_time_each_get_their_own_answer(server: FakeServer) -> None:
    server.values = {f"k{i}": b"%d" % i for i in range(100)}
    async with client_of(server) as client:
        kv = (await client.join()).kv
        values = await asyncio.gather(*(kv.get(f"k{i}") for i in range(100)))
    assert values == [b"%d" % i for i in range(100)]


async def test_a_refusal_is_raised_with_the_server_that_refused(server: FakeServer) -> None:
    async with client_of(server) as client:
        server.on(Join, lambda m: Error(code=ErrorCode.JOIN_TIMEOUT, message="1 of min 2"))
        with pytest.raises(JoinTimeout) as caught:
            await client.join()
        assert caught.value.message == f"1 of min 2 (server {server.address}, instance fake)"


async def test_a_key_of_a_generation_that_ended_says_so(server: FakeServer) -> None:
    async with client_of(server) as client:
        g = await client.join()
        server.on(KvGet, lambda m: Error(code=ErrorCode.STALE_GENERATION, message="b was lost"))
        with pytest.raises(GenerationEnded, match="b was lost"):
            await g.kv.get("k")


async def test_no_answer_in_time_is_a_request_timeout(server: FakeServer) -> None:
    server.on(Leave, None)
    client = client_of(server)
    try:
        with pytest.raises(RequestTimeout) as caught:
            await client.leave(timeout=0.05)
        assert caught.value.message == f"leave: no answer from {server.address} for 0.05 s"
    finally:
        await client.close()


async def test_waiting_for_the_end_gives_the_reason(server: FakeServer) -> None:
    async with client_of(server) as client:
        g = await client.join()
        waiting = asyncio.create_task(g.wait_ended())
        server.push(ViewChanged(view=LOST))
        assert await asyncio.wait_for(waiting, PATIENCE_S) == "node b was lost"
        assert await g.wait_ended() == "node b was lost", "at once, when it has ended"
        assert (g.ended.kind, g.waiting) == ("lost", 1)


async def test_members_are_asked_for_page_by_page(server: FakeServer) -> None:
    server.members = [
        MemberStatus(node_id=f"n{i}-1", name=f"n{i}", state="participant", group_rank=i)
        for i in range(5)
    ]
    server.page_rows = 2
    async with client_of(server) as client:
        members = await (await client.join()).members()
    assert [(m.rank, m.name) for m in members] == [(i, f"n{i}") for i in range(5)]


async def test_a_blocked_event_loop_keeps_its_lease() -> None:
    with FakeServer(lease_ms=300) as server:
        async with client_of(server) as client:
            await client.join()
            # On purpose a blocking wait: nothing else runs on this loop meanwhile.
            until(lambda: len(server.all(Heartbeat)) >= 4, PATIENCE_S, "heartbeats")
        assert len(server.peers) == 1


async def test_a_cancelled_join_withdraws_the_node(server: FakeServer) -> None:
    server.on(Join, None)
    client = client_of(server)
    try:
        joining = asyncio.create_task(client.join())
        await asyncio.to_thread(server.wait_for, Join)
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining
        leave = await asyncio.to_thread(server.wait_for, Leave)
        assert leave == Leave(kind="drained", detail="cancelled")
        assert client.generation is None
    finally:
        await client.close()


async def test_a_cancelled_call_does_not_disturb_the_next(server: FakeServer) -> None:
    server.values["k"] = b"v"
    async with client_of(server) as client:
        g = await client.join()
        server.on(KvGet, None)
        call = asyncio.create_task(g.kv.get("k"))
        await asyncio.to_thread(server.wait_for, KvGet)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await g.kv.multi_get(["k"]) == [b"v"]


async def test_finished_leave_and_close_run_are_told_to_the_server(server: FakeServer) -> None:
    client = client_of(server)
    try:
        await client.finished()
        assert server.all(Finished) == []
        await client.join()
        await client.finished()
        assert server.wait_for(Finished) == Finished(fence=FENCE)
        await client.leave("failed", "worker 3", exit_code=7)
        assert server.wait_for(Leave) == Leave(kind="failed", detail="worker 3", exit_code=7)
        await client.close_run("enough")
        assert server.wait_for(CloseRun) == CloseRun(run="llama", detail="enough")
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("raised", "kind", "detail"),
    [
        (None, "finished", ""),
        (ValueError("bad thing"), "failed", "ValueError: bad thing"),
        (asyncio.CancelledError(), "drained", "CancelledError"),
    ],
)
async def test_leaving_the_block_says_why(
    server: FakeServer, raised: BaseException | None, kind: Any, detail: str
) -> None:
    async def use() -> None:
        async with client_of(server) as client:
            await client.join()
            if raised is not None:
                raise raised

    if raised is None:
        await use()
    else:
        with pytest.raises(type(raised)):
            await use()
    assert server.wait_for(Leave) == Leave(kind=kind, detail=detail)
    assert server.peers[-1].gone.wait(PATIENCE_S)


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
async def test_a_server_that_is_gone_hides_no_error_but_is_one(
    server: FakeServer, error: type[Exception] | None
) -> None:
    async def use() -> None:
        async with client_of(server, reconnect_timeout_s=0.2) as client:
            await client.join()
            server.stop_listening()
            server.peers[-1].cut()
            if error is not None:
                raise error

    with pytest.raises(error or ConnectionLost):
        await use()


async def test_a_reply_that_comes_when_the_loop_is_closed_harms_nobody(server: FakeServer) -> None:
    """A client that was made on one loop and outlived it."""
    server.on(Join, None)
    other = asyncio.new_event_loop()
    client = client_of(server)
    joining = other.create_task(client.join())
    await asyncio.to_thread(other.run_until_complete, asyncio.to_thread(server.wait_for, Join))
    joining.cancel()
    await asyncio.to_thread(
        other.run_until_complete, asyncio.gather(joining, return_exceptions=True)
    )
    other.close()
    await client.close()
    assert not client._engine._thread.is_alive()
