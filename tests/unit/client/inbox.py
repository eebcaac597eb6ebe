"""What tests of the engine and its clients need: an engine, replies, ports, signals."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rdzv_client.access import Access
from rdzv_client.calls import Waiter
from rdzv_client.credentials import Credentials
from rdzv_client.endpoint import parse
from rdzv_client.engine import Engine
from rdzv_proto.auth import Grant, Scope
from rdzv_proto.messages import AnyReply, Join, View
from tests.unit.client.driver import HELLO
from tests.unit.client.fake_server import PATIENCE_S, FakeServer


def new_engine(
    *endpoints: str,
    connect_timeout_s: float = PATIENCE_S,
    reconnect_timeout_s: float = PATIENCE_S,
    on_view: Callable[[View], None] = lambda view: None,
    credentials: Credentials = Credentials(),  # noqa: B008 (frozen)
) -> Engine:
    """One of which nothing was asked yet."""
    return Engine(
        HELLO,
        parse(",".join(endpoints)),
        Access(credentials, Grant(Scope.JOIN, HELLO.run)),
        connect_timeout_s=connect_timeout_s,
        reconnect_timeout_s=reconnect_timeout_s,
        on_view=on_view,
    )


@contextmanager
def engine_to(*endpoints: str, **more: Any) -> Iterator[Engine]:
    """One that connects, until the end of the block; arguments as of `new_engine`."""
    made = new_engine(*endpoints, **more)
    made.start()
    try:
        yield made
    finally:
        made.stop()


class Inbox:
    """Takes replies of one request."""

    def __init__(self) -> None:
        self.replies: list[AnyReply] = []
        self._there = threading.Event()

    def __call__(self, reply: AnyReply) -> None:
        self.replies.append(reply)
        self._there.set()

    def wait(self) -> AnyReply:
        assert self._there.wait(PATIENCE_S), "no reply"
        return self.replies[0]


def signal_in_join(monkeypatch: pytest.MonkeyPatch, server: FakeServer, number: int) -> None:
    """The signal arrives while a join waits, and its request is at the server.

    From within the waiting thread: a signal from outside may come just before the thread blocks,
    and then nothing wakes it.
    """
    wait, signals = Waiter.wait, [number]

    def interrupted(waiter: Waiter, timeout_s: float | None) -> bool:
        if signals:
            server.wait_for(Join)
            signal.raise_signal(signals.pop())
        return wait(waiter, timeout_s)

    server.on(Join, None)
    monkeypatch.setattr(Waiter, "wait", interrupted)
