"""T6: what is sent twice, or too late, has no second effect. Over real connections."""

from collections.abc import Callable

import pytest

from rdzv_proto import codec
from rdzv_proto.errors import ErrorCode
from rdzv_proto.framing import PREAMBLE
from rdzv_proto.messages import Address as Where
from rdzv_proto.messages import (
    Barrier,
    CloseRun,
    Done,
    Fence,
    Finished,
    Joined,
    KvAdd,
    KvAppend,
    KvCas,
    KvDelete,
    KvGet,
    KvList,
    KvMultiGet,
    KvMultiSet,
    KvNumber,
    KvPage,
    KvSet,
    KvSwapped,
    KvValue,
    KvWait,
    Leave,
    MasterProbe,
    NcclFail,
    NcclGet,
    NcclPut,
    NcclReady,
    Released,
    Request,
    Welcome,
    WorkersStarted,
)
from tests.e2e.conftest import Cluster
from tests.e2e.kit.hostile import Raw, join, world
from tests.e2e.kit.server import Server

STALE: dict[str, Callable[[Fence], Request]] = {
    "set": lambda f: KvSet(fence=f, key="k", value=b"stale"),
    "get": lambda f: KvGet(fence=f, key="k"),
    "wait": lambda f: KvWait(fence=f, keys=["k"]),
    "add": lambda f: KvAdd(fence=f, key="n", delta=1),
    "multi_get": lambda f: KvMultiGet(fence=f, keys=["k"]),
    "multi_set": lambda f: KvMultiSet(fence=f, keys=["k"], values=[b"stale"]),
    "cas": lambda f: KvCas(fence=f, key="new", value=b"stale"),
    "append": lambda f: KvAppend(fence=f, key="k", value=b"stale"),
    "delete": lambda f: KvDelete(fence=f, keys=["k"]),
    "list": lambda f: KvList(fence=f),
    "barrier": lambda f: Barrier(fence=f, name="b", timeout_ms=1000),
    "finished": lambda f: Finished(fence=f),
    "nccl_get": lambda f: NcclGet(fence=f, group="g", rank=0, nranks=2, timeout_ms=1000),
    "nccl_put": lambda f: NcclPut(fence=f, group="g", attempt=0, rank=0, index=0, id=b"i" * 128),
    "nccl_ready": lambda f: NcclReady(fence=f, group="g", attempt=0, rank=0),
    "nccl_fail": lambda f: NcclFail(fence=f, group="g", attempt=0, rank=0),
    "master_probe": lambda f: MasterProbe(fence=f, master=Where(host="h", port=1)),
    "workers_started": lambda f: WorkersStarted(fence=f, ranks=[0], pids=[1]),
}


def _again(nodes: list[Raw], fence: Fence) -> Fence:
    """End the generation by a rejoin of all; the fence of the next one."""
    ids = [node.post(join(len(nodes), last=fence)) for node in nodes]
    told = [node.answer(number) for node, number in zip(nodes, ids, strict=True)]
    assert isinstance(told[0], Joined)
    return told[0].fence


def test_requests_with_a_fence_that_is_over_or_made_up_change_nothing(cluster: Cluster) -> None:
    """T6"""
    server = cluster.server()
    with world(server, "replay", 2) as (nodes, told):
        old = told[0].fence
        new = _again(nodes, old)
        assert new > old
        nodes[0].good(KvSet(fence=new, key="k", value=b"good"), Done)
        before = nodes[0].good(KvList(fence=new, values=True), KvPage)
        made_up = (
            old, Fence(new.epoch, new.generation + 1), Fence(new.epoch + 1, new.generation),
            Fence(new.epoch - 1, new.generation), Fence(0, 0), Fence(2**63 - 1, 2**63 - 1),
        )  # fmt: skip
        for fence in made_up:
            for name, make in STALE.items():
                refused = nodes[1].refused(make(fence))
                assert refused.code == ErrorCode.STALE_GENERATION, (name, fence, refused)
        assert nodes[0].good(KvList(fence=new, values=True), KvPage) == before
        status = server.run("replay")
        assert status is not None
        assert (status.fence, status.phase, status.finished) == (new, "live", 0)
        assert not server.inside("replay").barriers
        assert not server.inside("replay").communicators


def test_a_request_that_is_sent_again_is_answered_again_and_done_once(cluster: Cluster) -> None:
    """T6: on the same connection, and on another one of the same session."""
    server = cluster.server()
    with world(server, "replay", 1) as ((node,), (told,)):
        fence = told.fence
        requests: list[Request] = [
            KvAdd(fence=fence, key="n", delta=5),
            KvAppend(fence=fence, key="a", value=b"x"),
            KvCas(fence=fence, key="c", value=b"1"),
            KvMultiSet(fence=fence, keys=["m"], values=[b"1"]),
            Barrier(fence=fence, name="b", timeout_ms=1000),
            KvDelete(fence=fence, keys=["m"]),
        ]
        sent = [(node.post(ask), ask) for ask in requests]
        first = [node.answer(number) for number, _ in sent]
        assert [type(reply) for reply in first] == [
            KvNumber, KvNumber, KvSwapped, Done, Released, KvNumber,
        ]  # fmt: skip
        page = node.good(KvList(fence=fence, values=True), KvPage)
        for _ in range(3):
            for (number, ask), reply in zip(sent, first, strict=True):
                node.post(ask, number)
                assert node.answer(number) == reply
        with _resumed(server, node) as other:
            for (number, ask), reply in zip(sent, first, strict=True):
                other.post(ask, number)
                assert other.answer(number) == reply
            assert other.good(KvList(fence=fence, values=True), KvPage) == page
            released = other.good(Barrier(fence=fence, name="b", timeout_ms=1000), Released)
            assert released.round == 2, "the replays were no arrivals"


def _resumed(server: Server, node: Raw) -> Raw:
    """Another connection of a node's session."""
    other = Raw(server)
    hello = node.hello_sent
    assert hello is not None
    reply = other.hello(
        hello.run, hello.node_id, incarnation=hello.incarnation, resume=node.resume, attempt=1
    )
    assert isinstance(reply, Welcome)
    assert reply.resumed
    other.ids = node.ids
    return other


@pytest.mark.parametrize("kind", ["finished", "failed", "drained"])
def test_a_recorded_connection_played_again_later_harms_nobody(cluster: Cluster, kind: str) -> None:
    """T6: a whole recording, hello included, of a node that was replaced since."""
    server = cluster.server()
    with world(server, "replay", 2) as (nodes, told):
        victim = nodes[0]
        hello = victim.hello_sent
        assert hello is not None
        with Raw(server).node("replay", hello.node_id) as newer:
            again = [newer.post(join(2)), nodes[1].post(join(2, last=told[0].fence))]
            newer.answer(again[0])
            nodes[1].answer(again[1])
            generation = server.generation("replay")
            recording = (
                PREAMBLE
                + codec.encode(1, hello)
                + codec.encode(2, KvSet(key="k", value=b"replayed"))
                + codec.encode(3, Finished(fence=told[0].fence))
                + codec.encode(4, Leave(kind=kind))  # type: ignore[arg-type]
                + codec.encode(5, CloseRun(run="replay"))
            )
            with Raw(server) as replayer:
                replayer.send(recording)
                replayer.answer(5)
            assert server.generation("replay") == generation
            assert newer.refused(KvGet(key="k")).code == ErrorCode.WAIT_TIMEOUT
            newer.good(KvSet(key="mine", value=b"1"), Done)
            assert newer.good(KvGet(key="mine"), KvValue).value == b"1"
