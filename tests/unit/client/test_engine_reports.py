"""What the engine says to the log, and that its own faults leave nobody waiting."""

import logging
import re
import threading

import pytest

from rdzv_client import progress
from rdzv_proto.messages import (
    AnyReply,
    Ended,
    Error,
    KvGet,
    Notice,
    Progress,
    View,
    ViewChanged,
)
from tests.e2e.kit.wait import until
from tests.unit.client.driver import JOIN
from tests.unit.client.fake_server import FENCE, PATIENCE_S, FakeServer
from tests.unit.client.inbox import Inbox, engine_to

GET = KvGet(fence=FENCE, key="k")


def test_notices_and_progress_are_logged(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rdzv")
    with engine_to(server.address) as made:
        made.wait_connected(PATIENCE_S)
        server.push(Notice(message="give each job its own id"))
        server.push(Progress(joined=1, min_nodes=2, max_nodes=2, left_ms=30_000))
        until(lambda: len(caplog.records) == 2, PATIENCE_S, "two lines")
        made.progress_over()
        assert made.handout.reports.due_at is None
    notice, line = caplog.records[:2]
    assert (notice.levelname, notice.getMessage()) == (
        "WARNING", "rdzv[llama] give each job its own id",
    )  # fmt: skip
    assert (line.levelname, line.getMessage()) == (
        "INFO", "rdzv[llama] 1/2 nodes joined · 30 s left",
    )  # fmt: skip


def test_an_unchanged_progress_line_is_repeated_while_the_wait_lasts(
    server: FakeServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "REPEAT_S", 0.02)
    caplog.set_level(logging.INFO, logger="rdzv")
    with engine_to(server.address) as made:
        made.wait_connected(PATIENCE_S)
        server.push(Progress(joined=1, min_nodes=2, max_nodes=2))
        until(lambda: len(caplog.records) >= 3, PATIENCE_S, "three lines")
    assert {r.getMessage() for r in caplog.records} == {"rdzv[llama] 1/2 nodes joined"}


def test_who_waits_is_said_while_the_generation_lives(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rdzv")
    seen: list[View] = []
    with engine_to(server.address, on_view=seen.append) as made:
        made.wait_connected(PATIENCE_S)
        for view in (
            View(fence=FENCE),
            View(fence=FENCE, waiting=1, reason="node c came"),
            View(fence=FENCE, waiting=1, ended=Ended(kind="lost", reason="b")),
        ):
            server.push(ViewChanged(view=view))
        until(lambda: len(seen) == 3, PATIENCE_S, "three views")
    assert [record.getMessage() for record in caplog.records] == ["rdzv[llama] node c came"]


def test_a_waiting_count_without_a_reason_makes_no_line(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rdzv")
    with engine_to(server.address) as made:
        made.wait_connected(PATIENCE_S)
        server.push(ViewChanged(view=View(fence=FENCE, waiting=1)))
        until(lambda: made.view.waiting, PATIENCE_S, "the view")
    assert caplog.records == []


def test_a_fault_of_the_library_is_reported_and_leaves_nobody_waiting(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(reply: AnyReply) -> None:
        raise ZeroDivisionError("nobody's fault")

    server.on(KvGet, None)
    with engine_to(server.address) as made:
        made.wait_connected(PATIENCE_S)
        inbox = Inbox()
        made.submit(GET, inbox)
        made.submit(JOIN, broken)
        reply = inbox.wait()
        assert isinstance(reply, Error)
        assert re.fullmatch(
            r"internal error of the rdzv client library: ZeroDivisionError: nobody's fault "
            r"\(test_engine_reports\.py:\d+\)",
            reply.message,
        )
        assert reply.action.startswith("Please report it")
    assert server.peers[-1].gone.wait(PATIENCE_S)
    assert "please report it" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_view_listener_that_raises_leaves_nobody_waiting(server: FakeServer) -> None:
    def broken(view: View) -> None:
        raise ZeroDivisionError

    server.on(KvGet, None)
    with engine_to(server.address, on_view=broken) as made:
        made.wait_connected(PATIENCE_S)
        inbox = Inbox()
        made.submit(GET, inbox)
        server.push(ViewChanged(view=View(fence=FENCE)))
        until(lambda: inbox.replies or not made._thread.is_alive(), PATIENCE_S, "an end")
        made.stop()
        assert inbox.replies


def test_a_view_that_is_told_again_comes_last_only_if_it_is_the_newest(server: FakeServer) -> None:
    """The maker of a generation reads a view, and before it can use it the thread tells a newer one."""
    newer = View(fence=FENCE, waiting=1)
    seen: list[View] = []
    told = threading.Event()

    def listener(view: View) -> None:
        if threading.current_thread() is threading.main_thread():
            if not told.is_set():
                server.push(ViewChanged(view=newer))
                assert told.wait(PATIENCE_S)
            seen.append(view)
        else:
            seen.append(view)
            told.set()

    with engine_to(server.address, on_view=listener) as made:
        made.wait_connected(PATIENCE_S)
        made.tell_view()
        assert seen == [newer, View(), newer]
