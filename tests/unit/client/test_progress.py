"""The line people read while a job waits."""

import pytest

from rdzv_client.progress import REPEAT_S, ProgressLine, line
from rdzv_proto.messages import Progress


def progress(joined: int, low: int, high: int, **more: object) -> Progress:
    return Progress(joined=joined, min_nodes=low, max_nodes=high, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "left_s", "expected"),
    [
        (
            progress(3, 4, 4, waiting_for=["node-7"]),
            12.0,
            "rdzv[llama] 3/4 nodes joined · waiting for node-7 · 12 s left",
        ),
        (progress(1, 2, 2), None, "rdzv[llama] 1/2 nodes joined"),
        (progress(1, 2, 4), 599.6, "rdzv[llama] 1/4 nodes joined · min 2 · 600 s left"),
        (
            progress(1, 2, 4, reason="1 of min 2 joined"),
            None,
            "rdzv[llama] 1/4 nodes joined · min 2",
        ),
        (
            progress(1, 3, 8, waiting_for=["b", "c"], reason="1 of min 3"),
            30.2,
            "rdzv[llama] 1/8 nodes joined · waiting for b, c · min 3 · 30 s left",
        ),
        (
            progress(3, 2, 4, reason="last call: 27 s"),
            27.0,
            "rdzv[llama] 3/4 nodes joined · last call: 27 s · 27 s left",
        ),
        (
            progress(3, 2, 4, waiting_for=["d"], reason="last call"),
            0.0,
            "rdzv[llama] 3/4 nodes joined · waiting for d · 0 s left",
        ),
        (progress(3, 2, 4), None, "rdzv[llama] 3/4 nodes joined"),
        (
            progress(4, 2, 4, standby=True, reason="4 of max 4 are in"),
            None,
            "rdzv[llama] standby: 4 nodes are running (max 4) · 4 of max 4 are in",
        ),
        (progress(4, 2, 4, standby=True), None, "rdzv[llama] standby: 4 nodes are running (max 4)"),
    ],
)
def test_the_line_says_who_is_here_who_is_missing_and_how_long(
    told: Progress, left_s: float | None, expected: str
) -> None:
    assert line("llama", told, left_s) == expected


def test_every_change_is_shown_with_the_time_left() -> None:
    shown = ProgressLine("llama")
    told = progress(1, 2, 2, left_ms=90_000)
    assert shown.take(100.0, told) == "rdzv[llama] 1/2 nodes joined · 90 s left"
    told = progress(1, 2, 2, waiting_for=["b"], left_ms=80_000)
    assert shown.take(110.0, told).endswith("waiting for b · 80 s left")


def test_an_unchanged_line_is_repeated_every_thirty_seconds_counting_down() -> None:
    shown = ProgressLine("llama")
    shown.take(100.0, progress(1, 2, 2, left_ms=50_000))
    assert shown.due_at == 100 + REPEAT_S == 130
    assert shown.tick(129.9) is None
    assert shown.tick(130.0) == "rdzv[llama] 1/2 nodes joined · 20 s left"
    assert shown.tick(130.1) is None
    assert shown.tick(170.0) == "rdzv[llama] 1/2 nodes joined · 0 s left"


def test_a_wait_without_limit_shows_no_time() -> None:
    shown = ProgressLine("llama")
    assert "left" not in shown.take(100.0, progress(4, 2, 4, standby=True))


def test_nothing_is_due_before_there_is_progress_and_after_the_wait() -> None:
    shown = ProgressLine("llama")
    assert shown.due_at is None
    assert shown.tick(100.0) is None
    shown.take(100.0, progress(1, 2, 2))
    shown.stop()
    assert shown.due_at is None
    assert shown.tick(1000.0) is None


def test_a_second_wait_starts_anew() -> None:
    shown = ProgressLine("llama")
    shown.take(100.0, progress(1, 2, 2, left_ms=1000))
    shown.stop()
    assert shown.take(200.0, progress(1, 2, 2)) == "rdzv[llama] 1/2 nodes joined"
    assert shown.due_at == 230


def test_a_wait_that_ends_while_its_line_is_being_made_harms_nobody() -> None:
    shown = ProgressLine("llama")
    shown.take(100.0, progress(1, 2, 2))

    class Now(float):
        """The other thread's `stop` comes when the time has just been compared."""

        def __lt__(self, other: float) -> bool:
            earlier = float(self) < other
            shown.stop()
            return earlier

    shown.tick(Now(200.0))
