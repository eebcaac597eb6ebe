"""T5, T6, T22: a node that was let in, and acts for others. Everything is refused, and the run goes on."""

import random
from typing import Any

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.framing import PREAMBLE
from rdzv_proto.messages import (
    Barrier,
    CloseRun,
    Done,
    Error,
    Fence,
    HelloWorker,
    Joined,
    KvList,
    KvPage,
    KvSet,
    Leave,
    ListRuns,
    Members,
    NcclFail,
    NcclGet,
    NcclIds,
    NcclPut,
    NcclReady,
    Released,
    Request,
    Resume,
    ShowGeneration,
    Status,
    WorkersStarted,
)
from tests.e2e.conftest import Cluster
from tests.e2e.kit.hostile import Raw, join, world
from tests.e2e.kit.pulse import RUN, live_run
from tests.e2e.kit.server import Server

C = ErrorCode

WITNESS: dict[str, Any] = {"steady": False, "calm_s": 0.0, "at_least_s": 0.3}
"""Nobody may be lost and no generation end; how fast it is, is not the point."""


def code(raw: Raw, message: Request) -> ErrorCode:
    return ErrorCode(raw.refused(message).code)


def victim_fence(server: Server) -> Fence:
    status = server.run(RUN)
    assert status is not None
    assert status.fence is not None
    return status.fence


def test_a_node_of_one_run_cannot_touch_another_run(cluster: Cluster) -> None:
    """T22, T3: by its name or by its fence."""
    server = cluster.server()
    with live_run(cluster, server, **WITNESS), world(server, "mine", 2) as (nodes, told):
        evil, fence = nodes[0], victim_fence(server)
        assert fence.epoch == told[0].fence.epoch
        # The same numbers name a generation of either run: the session's own run is what counts.
        assert fence == told[0].fence
        evil.good(KvSet(fence=fence, key="k", value=b"1"), Done)
        assert server.inside(RUN).keys == 0
        assert server.inside("mine").keys == 1
        assert code(evil, CloseRun(run=RUN)) == C.UNKNOWN_RUN
        assert code(evil, CloseRun(run="no such run")) == C.UNKNOWN_RUN
        assert code(evil, Members(run=RUN)) == C.UNKNOWN_RUN
        for make in (Members, CloseRun):
            texts = {
                evil.refused(make(run=run)).message.replace(run, "R")
                for run in (RUN, "no such run")
            }
            assert len(texts) == 1, "it cannot tell which runs there are"
        for tool in (Status(), ListRuns(), ListRuns(only=RUN), ShowGeneration(run=RUN)):
            assert code(evil, tool) == C.UNSUPPORTED
        assert [row.key for row in evil.good(KvList(fence=fence), KvPage).entries] == ["k"]


def test_a_second_hello_does_not_change_who_a_connection_is(cluster: Cluster) -> None:
    """T22"""
    server = cluster.server()
    with live_run(cluster, server, **WITNESS), Raw(server).node("mine", "n") as evil:
        hello = evil.hello_sent
        assert hello is not None
        other = type(hello)(
            run=RUN, node_id="heart0", name="heart0", incarnation=bytes(16), lease_ms=1000
        )
        assert code(evil, other) == C.MALFORMED
        with Raw(server).admin() as tool:
            assert code(tool, other) == C.MALFORMED
            assert code(tool, KvSet(key="k", value=b"")) == C.UNSUPPORTED
            assert code(tool, join(1)) == C.UNSUPPORTED


def test_guessed_session_tokens_resume_nothing(cluster: Cluster) -> None:
    """T5: a guess is UNAUTHENTICATED, and the session does not notice."""
    server = cluster.server()
    rng = random.Random(5)
    with live_run(cluster, server, **WITNESS), Raw(server).node("mine", "n") as evil:
        welcome = evil.welcome
        assert welcome is not None
        flipped = welcome.token[:-1] + bytes((welcome.token[-1] ^ 1,))
        guesses = [bytes(16), b"\xff" * 16, rng.randbytes(64), flipped, welcome.token]
        for token in guesses:  # each costs its delay, which grows
            resume = Resume(epoch=welcome.epoch, session=1, token=token)
            with Raw(server) as raw:
                reply = raw.hello(RUN, "heart0", resume=resume)
                assert isinstance(reply, Error)
                assert reply.code == C.UNAUTHENTICATED, reply
        with Raw(server) as raw:
            own = Resume(epoch=welcome.epoch, session=welcome.session, token=welcome.token)
            reply = raw.hello(RUN, "heart0", resume=own)
            assert isinstance(reply, Error), "its own token is good for itself only"
            assert reply.code == C.UNAUTHENTICATED
        assert server.run("mine") is None, "nothing came of it"


def test_guessed_worker_tokens_attach_nobody(cluster: Cluster) -> None:
    """T5, T22: nor does the token of another node, or of an earlier generation."""
    server = cluster.server()
    with live_run(cluster, server, **WITNESS), world(server, "mine", 2) as (nodes, told):
        fence, own = told[0].fence, told[0].worker_token
        wrong, later = C.UNAUTHENTICATED, Fence(fence.epoch, 2)
        tries = [(RUN, "heart0", fence, bytes(32), wrong), (RUN, "heart0", fence, own, wrong),
                 ("mine", "n1", fence, own, wrong), ("mine", "n0", later, own, C.STALE_GENERATION),
                 ("mine", "nobody", fence, own, C.STALE_GENERATION),
                 ("mine", "n0", fence, own[:-1] + bytes((own[-1] ^ 1,)), wrong)]  # fmt: skip
        for run, node, at, token, refusal in tries:
            with Raw(server) as raw:
                raw.send(PREAMBLE)
                hello = HelloWorker(
                    run=run, node_id=node, fence=at, rank=0, worker_token=token,
                    incarnation=bytes(16),
                )  # fmt: skip
                assert code(raw, hello) == refusal, (run, node, at)
        assert len(nodes) == 2


def test_a_node_cannot_arrive_at_the_barriers_of_others(cluster: Cluster) -> None:
    """T22, S13, S16: its own run's included; those that meet do not notice."""
    server = cluster.server()
    with live_run(cluster, server, **WITNESS), world(server, "mine", 3) as (nodes, told):
        fence = told[0].fence
        first, second, evil = nodes

        def ask(name: str, **more: object) -> Barrier:
            return Barrier(fence=fence, name=name, timeout_ms=20_000, **more)  # type: ignore[arg-type]

        waiting = first.post(ask("two", members=[0, 1]))
        assert code(evil, ask("two", members=[0, 1])) == C.NOT_A_MEMBER
        assert code(evil, ask("two", members=[0, 1, 2])) == C.NOT_A_MEMBER
        assert code(evil, ask("two")) == C.NOT_A_MEMBER
        assert code(evil, ask("two", of="workers", count=3)) == C.NOT_A_MEMBER
        assert code(evil, ask("two", members=[7])) == C.MALFORMED
        second.good(ask("two", members=[0, 1]), Released)
        released = first.answer(waiting)
        assert isinstance(released, Released)
        assert released.round == 1
        # It may come only once to a barrier of all, however often it asks.
        evil.post(ask("all"))
        evil.post(ask("all"))
        waiting = first.post(ask("all"))
        assert server.arrived("mine", "all") == 2
        second.ask(ask("all"))
        assert isinstance(first.answer(waiting), Released)
    assert server.generation("mine") in (0, 1)


def test_only_the_rank_that_was_told_to_can_give_an_id(cluster: Cluster) -> None:
    """T22, S19: nor can it be fetched, confirmed or failed by somebody who is not in it."""
    server = cluster.server()
    with world(server, "mine", 3) as (nodes, told):
        fence = told[0].fence
        minter, peer, evil = nodes

        def get(rank: int) -> NcclGet:
            return NcclGet(fence=fence, group="g", rank=rank, nranks=2, timeout_ms=20_000)

        def put(rank: int, fill: bytes) -> NcclPut:
            return NcclPut(fence=fence, group="g", attempt=0, rank=rank, index=0, id=fill * 128)

        assert minter.good(get(0), NcclIds).mint == [0]
        waiting = peer.post(get(1))
        for ask in (put(0, b"e"), put(1, b"e"), NcclReady(fence=fence, group="g", attempt=0, rank=0),
                    NcclReady(fence=fence, group="g", attempt=0, rank=1),
                    NcclFail(fence=fence, group="g", attempt=0, rank=0),
                    NcclFail(fence=fence, group="g", attempt=0, rank=1)):  # fmt: skip
            refused = evil.ask(ask)
            assert isinstance(refused, Error), ask
        assert isinstance(peer.ask(put(1, b"p")), Error), "the peer is not the minter"
        minter.good(put(0, b"m"), Done)
        ids = peer.answer(waiting)
        assert isinstance(ids, NcclIds)
        assert ids.ids == [b"m" * 128]
        stolen = evil.ask(get(0))
        assert isinstance(stolen, Error), "an id is a capability: only its ranks get it"
        assert stolen.code == C.DUPLICATE_RANK


@pytest.mark.parametrize("kind", ["rejoin in a loop", "leave and return"])
def test_a_node_that_ends_generation_after_generation_harms_its_own_run_only(
    cluster: Cluster, kind: str
) -> None:
    """T22"""
    server = cluster.server()
    with live_run(cluster, server):
        for _ in range(200 if cluster.full else 60):
            with Raw(server).node("mine", "n") as evil:
                reply = evil.good(join(1), Joined)
                if kind == "rejoin in a loop":
                    for _ in range(5):
                        reply = evil.good(join(1, last=reply.fence), Joined)
                else:
                    evil.good(WorkersStarted(fence=reply.fence, ranks=[0], pids=[1]), Done)
                    evil.good(Leave(kind="failed", detail="x" * 1000), Done)
        with Raw(server).node("other", "n") as other:
            other.good(KvSet(key="k", value=b""), Done)
    assert max(len(line) for line in server.log.splitlines()) < 4096
