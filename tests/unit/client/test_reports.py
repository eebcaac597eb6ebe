"""The log lines of one client."""

import logging

import pytest

from rdzv_client.progress import REPEAT_S
from rdzv_client.reports import Reports
from rdzv_client.session_events import Answered, Event, State, StateChanged, Unreachable
from rdzv_proto.messages import Done, Ended, Fence, Notice, Progress, View

PROGRESS = Progress(joined=1, min_nodes=2, max_nodes=2)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="rdzv")
    return caplog


def said(lines: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in lines.records]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            View(fence=Fence(7, 1), waiting=1, reason="n3 wants in"),
            ("INFO", "rdzv[llama] n3 wants in"),
        ),
        (
            StateChanged(State.SUSPENDED, "it broke"),
            ("WARNING", "rdzv[llama] connection to host:1 lost: it broke"),
        ),
        (
            StateChanged(State.CONNECTED, "rdzv 1", 1.25),
            ("WARNING", "rdzv[llama] connection to host:1 restored after 1.2 s"),
        ),
        (
            Unreachable(5.0, 300.0, "refused"),
            (
                "WARNING",
                "rdzv[llama] server host:1 not reachable for 5 s (giving up after 300 s): refused",
            ),
        ),
        (PROGRESS, ("INFO", "rdzv[llama] 1/2 nodes joined")),
        (Notice(message="mind this"), ("WARNING", "rdzv[llama] mind this")),
    ],
)
def test_what_people_want_to_know_is_a_line(
    lines: pytest.LogCaptureFixture, event: Event, line: tuple[str, str]
) -> None:
    Reports("llama", "host:1").take(0.0, event)
    assert said(lines) == [line]


@pytest.mark.parametrize(
    "event",
    [
        View(fence=Fence(7, 1)),
        View(fence=Fence(7, 1), waiting=1, reason="x", ended=Ended(kind="lost", reason="x")),
        StateChanged(State.CONNECTED, "rdzv 1"),
        StateChanged(State.OVER, "closed"),
        Answered(1, Done()),
    ],
)
def test_what_is_told_elsewhere_is_none(lines: pytest.LogCaptureFixture, event: Event) -> None:
    Reports("llama", "host:1").take(0.0, event)
    assert said(lines) == []


@pytest.mark.parametrize(
    "event",
    [
        View(fence=Fence(7, 1), waiting=1, reason="a\u202eb"),
        StateChanged(State.SUSPENDED, "a\u202eb"),
        Unreachable(5.0, 300.0, "a\u202eb"),
        Progress(joined=1, min_nodes=2, max_nodes=2, waiting_for=["a\u202eb"]),
        Notice(message="a\u202eb"),
    ],
)
def test_what_others_wrote_is_escaped(lines: pytest.LogCaptureFixture, event: Event) -> None:
    Reports("llama", "host:1").take(0.0, event)
    ((_, line),) = said(lines)
    assert "a\\u202eb" in line


def test_a_wait_is_told_again_until_nobody_waits(lines: pytest.LogCaptureFixture) -> None:
    reports = Reports("llama", "host:1")
    dues = [reports.due_at]
    reports.take(0.0, PROGRESS)
    dues.append(reports.due_at)
    reports.tick(REPEAT_S - 1)
    reports.tick(REPEAT_S)
    reports.stop()
    dues.append(reports.due_at)
    reports.tick(REPEAT_S + 1000)
    assert dues == [None, REPEAT_S, None]
    assert said(lines) == [("INFO", "rdzv[llama] 1/2 nodes joined")] * 2
