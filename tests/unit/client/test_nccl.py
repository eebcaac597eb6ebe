"""Unique ids through both client classes, against a server in this process."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from rdzv_client.aio import AsyncClient
from rdzv_client.blocking import Client, Generation
from rdzv_client.errors import GenerationEnded, IdFailed, IdTimeout, MintFailed
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Done,
    Ended,
    Error,
    NcclFail,
    NcclGet,
    NcclIds,
    NcclPut,
    NcclReady,
    NcclRevoked,
    View,
    ViewChanged,
)
from tests.unit.client.fake_server import FENCE, PATIENCE_S, FakeServer

ID = bytes(range(128, 256))


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        running.on(NcclGet, lambda m: NcclIds(attempt=0, ids=[ID], version=22809))
        running.on(NcclPut, lambda m: Done())
        running.on(NcclReady, lambda m: Done())
        running.on(NcclFail, lambda m: Done())
        yield running


@pytest.fixture
def g(server: FakeServer) -> Iterator[Generation]:
    client = Client(server.address, run="llama", min_nodes=2, node_id="node-1")
    yield client.join(timeout=5)
    client.close()


def revoke(server: FakeServer, message: str = "rank 0 was lost") -> None:
    server.push(
        NcclRevoked(fence=FENCE, group="dp", attempt=0, code=ErrorCode.ID_FAILED, message=message)
    )


def mint_first(server: FakeServer) -> None:
    """The first get is answered with an order to mint."""
    orders = iter([NcclIds(attempt=0, mint=[0])])
    server.on(NcclGet, lambda m: next(orders, NcclIds(attempt=0, ids=[ID])))


def test_ids_come_as_bytes_with_what_they_are_good_for(server: FakeServer, g: Generation) -> None:
    ids = g.nccl_unique_id("dp", rank=1, nranks=2)
    assert bytes(ids) == ID
    assert ids.raw == [ID]
    assert (ids.nccl_version, ids.generation, ids.attempt) == (22809, 1, 0)
    ids.ready()
    assert server.wait_for(NcclReady).rank == 1


def test_several_ids_are_not_one(server: FakeServer, g: Generation) -> None:
    server.on(NcclGet, lambda m: NcclIds(attempt=0, ids=[ID, ID[::-1]]))
    ids = g.nccl_unique_id("dp", rank=1, nranks=4, n_ids=2)
    assert ids.raw == [ID, ID[::-1]]
    with pytest.raises(ValueError, match=r"\.raw"):
        bytes(ids)


def test_s22_no_repr_shows_an_id(g: Generation) -> None:
    ids = g.nccl_unique_id("dp", rank=1, nranks=2)
    with g.nccl_comm("dp", rank=1, nranks=2) as h:
        for shown in (repr(ids), str(ids), f"{ids}", repr(h), repr(g)):
            assert "\\x8" not in shown
            assert ID[:8].hex() not in shown
    assert "'dp' rank 1 of 2" in repr(ids)


@pytest.mark.parametrize(("version", "kind"), [("14.2.0", bytes), ("13.6.0", tuple), ("", bytes)])
def test_cupy_gets_what_its_version_takes(
    g: Generation, monkeypatch: pytest.MonkeyPatch, version: str, kind: type
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(__version__=version))
    given = g.nccl_unique_id("dp", rank=1, nranks=2).for_cupy()
    assert type(given) is kind
    assert bytes(b & 0xFF for b in given) == ID
    assert kind is bytes or all(-128 <= b < 128 for b in given)


def test_the_elected_rank_mints_with_the_callers_function(
    server: FakeServer, g: Generation
) -> None:
    mint_first(server)
    assert bytes(g.nccl_unique_id("dp", rank=0, nranks=2, mint=lambda: list(ID))) == ID
    assert server.wait_for(NcclPut).id == ID


def test_a_function_that_fails_is_told_to_the_others(server: FakeServer, g: Generation) -> None:
    mint_first(server)

    def broken() -> bytes:
        raise OSError("no interface")

    with pytest.raises(MintFailed, match="no interface"):
        g.nccl_unique_id("dp", rank=0, nranks=2, mint=broken)
    assert server.wait_for(NcclFail).reason == "OSError: no interface"


def test_a_refusal_is_raised_as_its_class(server: FakeServer, g: Generation) -> None:
    server.on(NcclGet, lambda m: Error(code=ErrorCode.ID_TIMEOUT, message="rank 0 sleeps"))
    with pytest.raises(IdTimeout, match="rank 0 sleeps"):
        g.nccl_unique_id("dp", rank=1, nranks=2)


# --- the block --------------------------------------------------------------------------------


def test_leaving_the_block_says_ready(server: FakeServer, g: Generation) -> None:
    with g.nccl_comm("dp", rank=1, nranks=2) as h:
        assert h.id == ID
        assert h.ids == [ID]
        assert server.all(NcclReady) == []
    assert server.wait_for(NcclReady).group == "dp"
    assert server.all(NcclFail) == []


def test_an_exception_in_the_block_tells_the_others_and_goes_on(
    server: FakeServer, g: Generation
) -> None:
    with pytest.raises(RuntimeError, match="unhandled cuda error"):  # noqa: SIM117
        with g.nccl_comm("dp", rank=1, nranks=2):
            raise RuntimeError("unhandled cuda error")
    assert server.wait_for(NcclFail).reason == "RuntimeError: unhandled cuda error"
    assert server.all(NcclReady) == []


def test_a_revocation_reaches_the_block_on_a_thread_of_its_own(
    server: FakeServer, g: Generation
) -> None:
    told, names = threading.Event(), list[str]()

    def abort(why: str) -> None:
        names.append(f"{why} / {threading.current_thread().name}")
        told.set()

    server.on(NcclReady, lambda m: Error(code=ErrorCode.ID_FAILED, message="rank 0 was lost"))
    h = g.nccl_comm("dp", rank=1, nranks=2).__enter__()
    h.on_revoked(abort)
    assert not h.revoked
    revoke(server)
    assert told.wait(PATIENCE_S)
    assert h.revoked.reason == "rank 0 was lost"
    with pytest.raises(IdFailed):
        h.__exit__(None, None, None)
    assert names == ["rank 0 was lost / rdzv-revoked"]


def test_a_revocation_that_overtakes_the_ids_is_not_lost(server: FakeServer, g: Generation) -> None:
    def answer(ask: NcclGet) -> NcclIds:
        revoke(server)
        return NcclIds(attempt=0, ids=[ID])

    server.on(NcclGet, answer)
    told = threading.Event()
    with g.nccl_comm("dp", rank=1, nranks=2) as h:
        h.on_revoked(lambda why: told.set())
        assert told.wait(PATIENCE_S)


def test_the_end_of_the_generation_revokes_within_the_block_only(
    server: FakeServer, g: Generation
) -> None:
    with g.nccl_comm("dp", rank=1, nranks=2) as done:
        pass
    view = View(fence=FENCE, waiting=1, ended=Ended(kind="lost", reason="node-2 was lost"))
    told = threading.Event()
    stale = Error(code=ErrorCode.STALE_GENERATION, message="it ended")
    server.on(NcclReady, lambda m: stale)
    h = g.nccl_comm("dp", rank=1, nranks=2).__enter__()
    h.on_revoked(lambda why: told.set())
    server.push(ViewChanged(view=view))
    assert told.wait(PATIENCE_S)
    assert h.revoked.reason == "node-2 was lost"
    with pytest.raises(GenerationEnded):
        h.__exit__(None, None, None)
    assert not done.revoked, "its communicator stands; what happens later is g.ended"


def test_ids_are_there_in_the_block_only(g: Generation) -> None:
    with pytest.raises(ValueError, match="`with` block"):
        _ = g.nccl_comm("dp", rank=1, nranks=2).id


# --- asyncio ----------------------------------------------------------------------------------


async def test_the_asyncio_client_mints_on_another_thread(server: FakeServer) -> None:
    mint_first(server)
    threads: list[bool] = []

    def mint() -> bytes:
        threads.append(threading.current_thread() is threading.main_thread())
        return ID

    async with AsyncClient(server.address, run="llama", min_nodes=2) as client:
        g = await client.join()
        ids = await g.nccl_unique_id("dp", rank=0, nranks=2, mint=mint)
        assert bytes(ids) == ID
        assert threads == [False]
        await ids.ready()
    assert server.all(NcclReady)


async def test_the_asyncio_block_says_ready_or_fails(server: FakeServer) -> None:
    async with AsyncClient(server.address, run="llama", min_nodes=2) as client:
        g = await client.join()
        async with g.nccl_comm("dp", rank=1, nranks=2) as h:
            assert h.id == ID
            assert h.ids == [ID]
        with pytest.raises(RuntimeError):
            async with g.nccl_comm("dp", rank=1, nranks=2):
                raise RuntimeError("no")
    assert len(server.all(NcclReady)) == 1
    assert server.all(NcclFail)[0].reason == "RuntimeError: no"


async def test_the_asyncio_block_hears_of_a_revocation_on_its_loop(server: FakeServer) -> None:
    async with AsyncClient(server.address, run="llama", min_nodes=2) as client:
        g = await client.join()
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with g.nccl_comm("dp", rank=1, nranks=2) as h:
            h.on_revoked(told.set_result)
            revoke(server)
            assert await asyncio.wait_for(told, PATIENCE_S) == "rank 0 was lost"


async def test_a_cancelled_minter_tells_the_others(server: FakeServer) -> None:
    mint_first(server)
    started, go_on = threading.Event(), threading.Event()

    def slow() -> bytes:
        started.set()
        go_on.wait(PATIENCE_S)
        return ID

    async with AsyncClient(server.address, run="llama", min_nodes=2) as client:
        g = await client.join()
        task = asyncio.create_task(g.nccl_unique_id("dp", rank=0, nranks=2, mint=slow))
        await asyncio.to_thread(started.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await asyncio.to_thread(server.wait_for, NcclFail)
