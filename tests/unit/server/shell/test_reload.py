from pathlib import Path

import pytest

from rdzv_server.shell import log
from rdzv_server.shell.reload import Reloadable, Reloads


class Thing:
    def __init__(self, path: Path) -> None:
        self.path, self.content, self.loads = path, "", 0
        self.load()

    def load(self) -> None:
        if not self.path.exists():
            raise ValueError("it is gone")
        self.content, self.loads = self.path.read_text(), self.loads + 1


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, object]]]:
    seen: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(log, "event", lambda name, level="info", **more: seen.append((name, more)))
    return seen


@pytest.fixture
def thing(tmp_path: Path) -> Thing:
    (tmp_path / "f").write_text("1")
    return Thing(tmp_path / "f")


@pytest.fixture
def reloads(thing: Thing) -> Reloads:
    return Reloads([Reloadable("thing", [thing.path], thing.load)])


Lines = list[tuple[str, dict[str, object]]]


def test_a_changed_file_is_taken_anew_once(thing: Thing, reloads: Reloads, lines: Lines) -> None:
    thing.path.write_text("22")
    reloads.changed()
    reloads.changed()
    assert (thing.content, thing.loads) == ("22", 2)
    assert [event for event, _ in lines] == ["reloaded"]


def test_nothing_changed_nothing_read(thing: Thing, reloads: Reloads, lines: Lines) -> None:
    reloads.changed()
    assert thing.loads == 1
    assert not lines


def test_a_file_that_was_exchanged_is_noticed_whatever_its_time(
    thing: Thing, reloads: Reloads, lines: Lines
) -> None:
    import os

    new = thing.path.with_name("new")
    new.write_text("2")
    found = thing.path.stat()
    os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))
    new.replace(thing.path)
    reloads.changed()
    assert thing.content == "2"


def test_a_signal_takes_everything_anew(thing: Thing, reloads: Reloads, lines: Lines) -> None:
    reloads.all()
    assert thing.loads == 2


def test_what_cannot_be_read_is_logged_and_nothing_changes(
    thing: Thing, reloads: Reloads, lines: Lines
) -> None:
    thing.path.unlink()
    reloads.changed()
    reloads.changed()
    assert thing.content == "1"
    ((event, fields),) = lines
    assert event == "reload_failed"
    assert fields["reason"] == "it is gone"
    thing.path.write_text("3")
    reloads.changed()
    assert thing.content == "3"
