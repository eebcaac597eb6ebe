"""The level of the log and the file that names it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import structlog

from rdzv_server.config import Config
from rdzv_server.shell import log
from rdzv_server.shell.levels import BYTES_MAX, LevelError, Levels
from rdzv_server.shell.reload import Reloads

Level = Literal["debug", "info", "warning", "error"]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    log.set_up("text", "info")
    structlog.reset_defaults()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log-level"


def levels(path: Path, otherwise: Level = "info") -> Levels:
    return Levels(Config(log_level=otherwise, log_level_file=str(path)))


def heard() -> list[str]:
    """Levels whose events are written."""
    with structlog.testing.capture_logs() as lines:
        structlog.configure(wrapper_class=structlog.get_config()["wrapper_class"])
        for level in log.LEVELS:
            log.event("x", level)
    return [line["log_level"] for line in lines]


ALL = ["debug", "info", "warning", "error"]


@pytest.mark.parametrize("level", ALL)
def test_without_a_file_the_flag_counts(level: Level) -> None:
    made = Levels(Config(log_level=level))
    assert made.reloadable() == []
    assert log.level() == level
    assert heard() == ALL[ALL.index(level) :]
    made.reload()
    assert log.level() == level


@pytest.mark.parametrize("text", ["warning", "warning\n", "  WARNING \n", "\nwarning"])
def test_the_file_counts_from_the_start(path: Path, text: str) -> None:
    path.write_text(text)
    levels(path, "debug")
    assert log.level() == "warning"
    assert heard() == ["warning", "error"]


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_no_file_or_nothing_in_it_leaves_it_to_the_flag(path: Path, text: str | None) -> None:
    if text is not None:
        path.write_text(text)
    made = levels(path, "error")
    assert log.level() == "error"
    path.write_text("debug")
    made.reload()
    assert log.level() == "debug"
    path.unlink()
    made.reload()
    assert log.level() == "error"


def test_a_change_is_told_once_if_either_level_lets_it_through(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = levels(path, "info")
    for now, told in (
        ("debug", "was=info now=debug"),
        ("debug", ""),
        ("warning", "was=debug now=warning"),
        ("error", ""),
        ("info", "was=error now=info"),
    ):
        path.write_text(now)
        made.reload()
        err = capsys.readouterr().err
        assert told in err
        assert err.count("\n") == bool(told), err
        assert log.level() == now


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loud", "'loud'"),
        ("info debug", "'info debug'"),
        ("x" * 10_000, repr("x" * BYTES_MAX)),
        ("a\nlevel=error", "level=error"),
        ("\x1b[31m", "31m"),
        (b"\xff\xfe", "\ufffd"),
    ],
)
def test_what_is_no_level_stops_a_start_and_is_one_line_at_a_reload(
    path: Path, capsys: pytest.CaptureFixture[str], text: str | bytes, shown: str
) -> None:
    made = levels(path, "warning")
    reloads = Reloads(made.reloadable())
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    reloads.changed()
    assert log.level() == "warning", "that of before stays"
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    for part in ("event=reload_failed", str(path), shown, "is no level; it must be debug, info"):
        assert part in err
    assert "what was there before stays in force" in err
    reloads.changed()
    assert not capsys.readouterr().err, "the same file is not told again"
    with pytest.raises(LevelError, match="is no level"):
        levels(path)


def test_what_is_no_file_is_refused_and_a_pipe_holds_nobody_up(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(LevelError, match="that is no ordinary file"):
        levels(path)
    with pytest.raises(LevelError, match="that is no ordinary file"):
        levels(path.parent)
    with pytest.raises(LevelError, match="Not a directory"):
        levels(path / "below")


def test_a_look_that_nobody_wants_is_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("text", "info")
    log.debug("seen", peer="p")
    assert not capsys.readouterr().err
    log.set_level("debug")
    log.debug("seen", peer="p")
    assert "event=seen" in capsys.readouterr().err
