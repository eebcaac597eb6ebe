"""The thread that owns the socket: calls, callbacks and its end, against a server in this process."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rdzv_client import dial
from rdzv_client.endpoint import Endpoint
from rdzv_client.engine import Engine
from rdzv_client.tls import Tls
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyReply,
    Done,
    Ended,
    Error,
    HelloNode,
    Join,
    Joined,
    KvGet,
    KvSet,
    KvValue,
    Leave,
    View,
    ViewChanged,
)
from tests.e2e.kit.wait import until
from tests.unit.client.driver import JOIN
from tests.unit.client.fake_server import FENCE, PATIENCE_S, FakeServer
from tests.unit.client.inbox import Inbox, engine_to, new_engine

GET = KvGet(fence=FENCE, key="k")


@pytest.mark.parametrize(
    "ask",
    [
        lambda engine: engine.wait_connected(PATIENCE_S),
        lambda engine: engine.submit(GET, Inbox()),
        lambda engine: engine.start(),
    ],
    ids=["wait_connected", "submit", "start"],
)
def test_it_connects_when_it_is_first_asked_for_something_and_once(
    server: FakeServer, ask: Callable[[Engine], object]
) -> None:
    server.values["k"] = b"v"
    made = new_engine(server.address)
    try:
        assert not made._thread.is_alive(), "no thread yet that could look up a name"
        together(lambda: ask(made), 5)
        assert made.wait_connected(PATIENCE_S)
        server.wait_for(HelloNode)
        assert len(server.peers) == 1
    finally:
        made.stop()


def together(call: Callable[[], object], times: int) -> None:
    """Call it on so many threads at once."""
    threads = [threading.Thread(target=call) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)


def test_patience_counts_from_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made = new_engine("127.0.0.1:1", connect_timeout_s=60.0)
    ahead_s = 3600.0
    monkeypatch.setattr("rdzv_client.engine.time", Clock(ahead_s))
    try:
        made.start()
        since = made.session.reconnect.away_since
        assert since >= time.monotonic() + ahead_s - PATIENCE_S
        assert made.session.reconnect.give_up_at == since + 60.0
        assert made.session.failure is None
    finally:
        made.stop()


class Clock:
    """Of a program that did something else first."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s


def test_one_that_was_never_asked_ends_without_a_thread_and_fails_what_comes_later(
    server: FakeServer,
) -> None:
    made = new_engine(server.address)
    made.stop("enough")
    made.stop()
    inbox = Inbox()
    made.submit(GET, inbox)
    reply = inbox.wait()
    assert isinstance(reply, Error)
    assert (reply.code, reply.message) == (ErrorCode.CONNECTION_LOST, "enough")
    assert made.wait_connected(0)
    assert made._thread.ident is None
    assert made._wake_in.fileno() == made._wake_out.fileno() == -1
    assert server.peers == []


def test_a_reply_goes_to_its_callback_once(server: FakeServer) -> None:
    server.values["k"] = b"v"
    with engine_to(server.address) as made:
        first, second = Inbox(), Inbox()
        made.submit(GET, first)
        made.submit(JOIN, second)
        assert first.wait() == KvValue(value=b"v")
        assert isinstance(second.wait(), Joined)
    assert len(first.replies) == len(second.replies) == 1


def test_what_is_submitted_before_there_is_a_connection_is_sent_when_there_is(
    server: FakeServer,
) -> None:
    gate = threading.Event()
    server.values["k"] = b"v"
    welcome = server.welcome

    def wait_then_welcome(hello: HelloNode) -> AnyReply:
        gate.wait(PATIENCE_S)
        return welcome(hello)

    server.on(HelloNode, wait_then_welcome)
    with engine_to(server.address) as made:
        inbox = Inbox()
        made.submit(GET, inbox)
        server.wait_for(HelloNode)
        assert not made.wait_connected(0)
        gate.set()
        assert made.wait_connected(PATIENCE_S)
        assert inbox.wait() == KvValue(value=b"v")


def test_a_reply_that_nobody_wants_any_more_is_not_delivered(server: FakeServer) -> None:
    server.on(KvGet, None)
    with engine_to(server.address) as made:
        made.wait_connected(PATIENCE_S)
        unwanted, wanted = Inbox(), Inbox()
        request_id = made.submit(GET, unwanted)
        made.forget(request_id)
        server.wait_for(KvGet)
        server.peers[-1].send(request_id, KvValue(value=b"late"))
        made.submit(JOIN, wanted)
        wanted.wait()
        assert made.handout.callbacks == {}, "nothing is kept for it either"
    assert unwanted.replies == []


def test_stop_fails_what_is_pending_closes_the_connection_and_ends_the_thread(
    server: FakeServer,
) -> None:
    server.on(Join, None)
    with engine_to(server.address) as made:
        inbox = Inbox()
        made.submit(JOIN, inbox)
        server.wait_for(Join)
        made.stop("enough")
        reply = inbox.wait()
        assert isinstance(reply, Error)
        assert (reply.code, reply.message) == (ErrorCode.CONNECTION_LOST, "enough")
        assert server.peers[-1].gone.wait(PATIENCE_S)
        until(lambda: not made._thread.is_alive(), PATIENCE_S, "end of the thread")


def test_stop_may_be_called_again_and_by_several_threads(server: FakeServer) -> None:
    with engine_to(server.address) as made:
        made.wait_connected(PATIENCE_S)
        together(made.stop, 5)
        made.stop()
        assert not made._thread.is_alive()


def test_stop_may_be_called_from_a_callback(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    with engine_to(server.address) as made:
        made.submit(JOIN, lambda reply: made.stop())
        until(lambda: not made._thread.is_alive(), PATIENCE_S, "end of the thread")
    assert caplog.records == []


def test_a_request_leaves_though_the_engines_thread_is_busy(server: FakeServer) -> None:
    busy, gate = threading.Event(), threading.Event()

    def block(view: View) -> None:
        busy.set()
        gate.wait(PATIENCE_S)

    server.values["k"] = b"v"
    with engine_to(server.address, on_view=block) as made:
        made.wait_connected(PATIENCE_S)
        server.push(ViewChanged(view=View(fence=FENCE)))
        assert busy.wait(PATIENCE_S)
        made.submit(GET, Inbox())
        server.wait_for(KvGet)
        assert not gate.is_set()
        gate.set()


def test_after_stop_a_request_is_answered_at_once(server: FakeServer) -> None:
    with engine_to(server.address) as made:
        made.stop()
        inbox = Inbox()
        made.submit(JOIN, inbox)
        assert isinstance(inbox.replies[0], Error)


def test_a_request_too_large_is_refused_in_the_callers_thread(server: FakeServer) -> None:
    with engine_to(server.address) as made:
        with pytest.raises(ValueError, match="exceed the limit"):
            made.submit(KvSet(fence=FENCE, key="k", value=bytes(2 << 20)), Inbox())
        inbox = Inbox()
        made.submit(JOIN, inbox)
        inbox.wait()
        assert len(server.peers) == 1


def test_a_server_that_does_not_read_blocks_nobody_and_misses_nothing(server: FakeServer) -> None:
    gate = threading.Event()

    def slow(ask: KvSet) -> Done:
        gate.wait(PATIENCE_S)
        return Done()

    server.on(KvSet, slow)
    with engine_to(server.address) as made:
        made.wait_connected(PATIENCE_S)
        value = bytes(1 << 20)
        inboxes = [Inbox() for _ in range(16)]
        for number, inbox in enumerate(inboxes):
            made.submit(KvSet(fence=FENCE, key=f"k{number}", value=value), inbox)
        assert all(not inbox.replies for inbox in inboxes)
        gate.set()
        for inbox in inboxes:
            assert inbox.wait() == Done()
    assert [m.key for m in server.all(KvSet)] == [f"k{number}" for number in range(16)]


def test_the_own_address_on_the_connection_is_known(server: FakeServer) -> None:
    with engine_to(server.address) as made:
        made.wait_connected(PATIENCE_S)
        assert made.local_host == "127.0.0.1"


def test_views_reach_the_listener_and_can_be_read_at_any_time(server: FakeServer) -> None:
    seen: list[View] = []
    with engine_to(server.address, on_view=seen.append) as made:
        assert made.view == View()
        inbox = Inbox()
        made.submit(JOIN, inbox)
        inbox.wait()
        ended = View(fence=FENCE, waiting=1, ended=Ended(kind="lost", reason="b"))
        server.push(ViewChanged(view=ended))
        until(lambda: len(seen) == 2, PATIENCE_S, "two views")
        assert seen == [View(fence=FENCE), ended]
        assert made.view == ended


def test_after_an_interrupt_in_the_middle_of_sending_a_new_connection_repeats_the_request(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts = [KeyboardInterrupt()]

    class Interrupted(socket.socket):
        """The signal's handler runs when `send` has returned to the interpreter."""

        def send(self, data: Any, flags: int = 0) -> int:
            sent = super().send(data, flags)
            if threading.current_thread() is threading.main_thread() and interrupts:
                raise interrupts.pop()
            return sent

    opened = dial.connect

    def open_interrupted(to: Endpoint, patience_s: float, tls: Tls | None) -> socket.socket:
        return Interrupted(fileno=opened(to, patience_s, tls).detach())

    monkeypatch.setattr(dial, "connect", open_interrupted)
    server.on(
        Join, None
    )  # an answer that nobody reads would turn the connection's end into a reset
    with engine_to(server.address) as made:
        made.wait_connected(PATIENCE_S)
        with monkeypatch.context() as asleep:  # the thread comes later than the next request
            asleep.setattr(made, "_wake", lambda: None)
            with pytest.raises(KeyboardInterrupt):
                made.submit(JOIN, Inbox())
        for hellos in (1, 2):  # the second is sent on the second connection, after the Join there
            server.wait_for(HelloNode, hellos)
            inbox = Inbox()
            made.submit(Leave(kind="drained"), inbox)
            assert inbox.wait() == Done()
    asked = [request_id for request_id, message in server.got if isinstance(message, Join)]
    assert len(server.peers) == 2, "what the first connection carried is not known"
    assert len(asked) <= 2, "at most once per connection"
    assert len(set(asked)) == 1, "under one id, so that the server does it once"
