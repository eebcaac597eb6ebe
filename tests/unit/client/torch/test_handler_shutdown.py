"""How an agent's end is told: finished, failed or drained, and never with an exception."""

import atexit
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Error, Finished, KvAdd, Leave
from tests.e2e.kit.wait import until
from tests.unit.client.fake_server import FENCE, PATIENCE_S, FakeServer
from tests.unit.client.torch.agent import create, rank_0_server

if TYPE_CHECKING:
    from rdzv_client.torch.handler import RdzvHandler

pytestmark = pytest.mark.torch


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with rank_0_server(monkeypatch) as running:
        yield running


@pytest.fixture(autouse=True)
def agent_shuts_down_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The behaviour since torch 2.8, whichever is installed."""
    pytest.importorskip("torch")
    monkeypatch.setattr("rdzv_client.torch.handler.AGENT_SHUTS_DOWN_FIRST", False)


@pytest.fixture
def agent_shuts_down_first(monkeypatch: pytest.MonkeyPatch, agent_shuts_down_last: None) -> None:
    """The behaviour up to torch 2.7."""
    monkeypatch.setattr("rdzv_client.torch.handler.AGENT_SHUTS_DOWN_FIRST", True)


@pytest.fixture
def handler(server: FakeServer) -> Iterator["RdzvHandler"]:
    made = create(server)
    yield made
    made.shutdown()


def test_workers_that_succeed_finish_the_node(server: FakeServer, handler: "RdzvHandler") -> None:
    store = handler.next_rendezvous().store
    store.add("torchelastic/agent/terminal_state/num_members", 1)
    assert server.wait_for(Finished) == Finished(fence=FENCE)
    assert handler.shutdown()
    assert server.wait_for(Leave) == Leave(kind="finished")


def test_finishing_in_a_generation_that_has_ended_is_no_error(
    server: FakeServer, handler: "RdzvHandler"
) -> None:
    refused = Error(code=ErrorCode.STALE_GENERATION, message="7.1 is over")
    store = handler.next_rendezvous().store
    server.on(Finished, lambda m: refused)
    server.on(KvAdd, lambda m: refused)
    assert store.add("torchelastic/agent/terminal_state/num_members", 1) == 0
    assert handler.shutdown()
    assert server.all(Leave) == [Leave(kind="finished")]


@pytest.mark.parametrize("finished", [False, True])
def test_the_end_of_the_interpreter_is_the_last_chance_to_leave(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", registered.append)
    handler = create(server)
    store = handler.next_rendezvous().store
    if finished:
        store.add("torchelastic/agent/terminal_state/num_members", 1)
    for _ in range(2):
        (at_exit,) = registered
        at_exit()
    kind: Literal["finished", "drained"] = "finished" if finished else "drained"
    assert server.all(Leave) == [Leave(kind=kind, detail="the agent ended")]
    assert handler.shutdown() is True


def shut_down_in(handler: "RdzvHandler", error: BaseException | None) -> None:
    """As torch does it: in a `finally`, with the reason in flight."""
    with suppress(BaseException):
        try:
            if error is not None:
                raise error
        finally:
            assert handler.shutdown() is True


@pytest.mark.parametrize(
    ("error", "leave"),
    [
        (None, Leave(kind="finished")),
        (KeyboardInterrupt(), Leave(kind="drained", detail="KeyboardInterrupt")),
        (SystemExit(1), Leave(kind="drained", detail="SystemExit")),
        (RuntimeError("bad\nnews"), Leave(kind="failed", detail="RuntimeError: bad news")),
    ],
)
def test_shutdown_tells_why(
    server: FakeServer, handler: "RdzvHandler", error: BaseException | None, leave: Leave
) -> None:
    handler.next_rendezvous()
    shut_down_in(handler, error)
    assert handler.shutdown() is True
    assert server.all(Leave) == [leave], "once"
    assert server.peers[-1].gone.wait(PATIENCE_S)


def test_shutdown_tells_which_worker_failed_and_how(
    server: FakeServer, handler: "RdzvHandler"
) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    failure = ProcessFailure(local_rank=1, pid=4711, exitcode=7, error_file="/dev/null")
    handler.next_rendezvous()
    shut_down_in(handler, ChildFailedError("train.py", {3: failure}))
    assert server.all(Leave) == [Leave(kind="failed", detail="worker rank 3", exit_code=7)]


def test_a_signal_in_flight_is_no_failure_of_the_workers(
    server: FakeServer, handler: "RdzvHandler"
) -> None:
    from torch.distributed.elastic.multiprocessing.api import SignalException

    handler.next_rendezvous()
    shut_down_in(handler, SignalException("got 15", signal.SIGTERM))
    assert server.all(Leave) == [Leave(kind="drained", detail="SignalException")]


@pytest.mark.usefixtures("agent_shuts_down_first")
def test_an_agent_that_shuts_down_before_it_raises_is_asked_again_for_its_reason(
    server: FakeServer, handler: "RdzvHandler"
) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    failure = ProcessFailure(local_rank=0, pid=4711, exitcode=7, error_file="/dev/null")
    handler.next_rendezvous()
    for _ in range(2):  # when it stops the workers, and when it ends
        assert handler.shutdown() is True
    assert server.all(Leave) == [], "the reason is about to come"
    shut_down_in(handler, ChildFailedError("train.py", {3: failure}))
    assert server.all(Leave) == [Leave(kind="failed", detail="worker rank 3", exit_code=7)]


@pytest.mark.usefixtures("agent_shuts_down_first")
def test_an_agent_that_shuts_down_before_it_raises_and_then_ends_has_failed(
    server: FakeServer, handler: "RdzvHandler"
) -> None:
    handler.next_rendezvous()
    handler.shutdown()
    handler._at_exit()
    assert server.all(Leave) == [Leave(kind="failed", detail="the agent ended")]


@pytest.mark.usefixtures("agent_shuts_down_first")
def test_an_agent_that_shuts_down_after_success_has_its_reason_already(
    server: FakeServer, handler: "RdzvHandler"
) -> None:
    store = handler.next_rendezvous().store
    store.add("torchelastic/agent/terminal_state/num_members", 1)
    handler.shutdown()
    assert server.all(Leave) == [Leave(kind="finished")]


def test_the_end_of_a_forked_child_says_nothing_about_the_node(
    server: FakeServer, handler: "RdzvHandler", monkeypatch: pytest.MonkeyPatch
) -> None:
    token_file = handler._export._path
    handler.next_rendezvous()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        handler._at_exit()
    assert os.path.exists(token_file)
    assert server.all(Leave) == []


def test_shutdown_neither_raises_nor_waits_long_when_the_server_is_gone(
    server: FakeServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rdzv_client.torch import handler as module

    monkeypatch.setattr(module, "LAST_WORDS_S", 0.05)
    handler = create(server)
    handler.next_rendezvous()
    server.stop_listening()
    server.peers[-1].cut()
    session = handler._client.engine.session
    until(lambda: not session.connected_now, PATIENCE_S, "the break")
    assert handler.shutdown() is True
    assert "left without telling the server" in caplog.text


def test_shutdown_before_any_contact_has_nobody_to_tell(server: FakeServer) -> None:
    server.stop_listening()
    assert create(server).shutdown() is True
