import os
from pathlib import Path

import pytest

from rdzv_server.storage import files, repair, sqlite
from rdzv_server.storage.base import StorageError
from rdzv_server.storage.repair import Report
from rdzv_server.storage.schema import Schema
from tests.unit.server.storage.kit import NAME, crashed, flip, held, opened

RECORDS = {b"run/a": b"Q" * 100, b"run/b": b"R" * 100, b"kv\0a/x": b"S" * 100, b"epoch": b"7"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    store, _ = opened(tmp_path / "data")
    store.commit(RECORDS)
    store.close()
    return tmp_path / "data"


def mend(directory: Path) -> Report:
    return repair.repair(directory / NAME)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_s27_a_repair_keeps_what_is_whole_and_says_what_it_dropped(data: Path) -> None:
    flip(data / NAME, (data / NAME).read_bytes().index(b"R" * 100) + 20)
    damaged = (data / NAME).read_bytes()
    with pytest.raises(StorageError, match="--repair"):
        opened(data)
    report = mend(data)
    assert (report.kept, report.dropped) == ({"epoch": 1, "kv": 1, "run": 1}, {"run": 1})
    assert (report.missing, report.lost_commits, report.unread) == (0, 0, 0)
    assert held(data) == {key: value for key, value in RECORDS.items() if key != b"run/b"}
    saved = data / f"{NAME}.damaged-1"
    assert str(saved) in report.saved_as
    assert saved.read_bytes() == damaged
    assert str(report).splitlines()[:2] == [
        f"{data / NAME}: kept 3 records (epoch 1, kv 1, run 1)",
        "damaged and dropped: 1 record (run 1)",
    ]


def test_s27_a_repair_cuts_the_log_where_it_is_damaged(data: Path, tmp_path: Path) -> None:
    store, _ = opened(data)
    for number in range(8):
        store.commit({b"epoch": b"%d" % number, b"other/%d" % number: b""})
    copy = crashed(data, tmp_path / "copy")
    store.close()
    flip(copy / f"{NAME}-wal", 32 + 2 * 5 * 4120 + 100)
    report = mend(copy)
    assert report.lost_commits == 3
    assert report.missing == 0
    assert held(copy)[b"epoch"] == b"4"
    assert f"{NAME}-wal.damaged-1" in names(copy)
    assert "acknowledged commits that are lost: 3" in str(report)


@pytest.mark.parametrize("what", ["missing", "damaged", "foreign"])
def test_a_repair_makes_the_file_with_the_number_anew(
    data: Path, tmp_path: Path, what: str
) -> None:
    path = data / f"{NAME}-acked"
    if what == "missing":
        path.unlink()
    elif what == "damaged":
        path.write_bytes(b"rubbish")
    else:
        opened(tmp_path / "other")[0].close()
        path.write_bytes((tmp_path / "other" / path.name).read_bytes())
    with pytest.raises(StorageError):
        opened(data)
    report = mend(data)
    assert report.kept == {"epoch": 1, "kv": 1, "run": 2}
    assert held(data) == RECORDS


def test_a_second_repair_keeps_the_files_of_the_first(data: Path) -> None:
    mend(data)
    mend(data)
    assert {f"{NAME}.damaged-1", f"{NAME}.damaged-2"} <= set(names(data))
    assert held(data) == RECORDS
    assert all((data / name).stat().st_mode & 0o777 == 0o600 for name in names(data))


def test_a_repaired_database_goes_on(data: Path) -> None:
    mend(data)
    store, _ = opened(data)
    store.commit({b"epoch": b"8"})
    store.close()
    assert held(data) == {**RECORDS, b"epoch": b"8"}


@pytest.mark.parametrize("step", range(9))
def test_an_interrupted_repair_is_refused_by_the_server_and_resumed(
    data: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at the n-th rename or sync of the directory."""
    calls = 0

    class KilledError(Exception):
        pass

    with monkeypatch.context() as patched:
        for owner, name in ((os, "rename"), (files, "sync_directory")):

            def counted(*arguments: object, original: object = getattr(owner, name)) -> None:
                nonlocal calls
                calls += 1
                if calls > step:
                    raise KilledError
                original(*arguments)  # type: ignore[operator]

            patched.setattr(owner, name, counted)
        try:
            mend(data)
        except KilledError:
            pass
        else:
            assert calls == step
    if (data / f"{NAME}-repaired").exists():
        with pytest.raises(StorageError, match="a repair was interrupted"):
            opened(data)
        report = mend(data)
        assert report.resumed
        assert report.kept == {"epoch": 1, "kv": 1, "run": 2}
        assert "interrupted" in str(report)
    assert held(data) == RECORDS


def test_a_running_server_keeps_its_database(data: Path) -> None:
    store, _ = opened(data)
    with pytest.raises(StorageError, match="in use by another server"):
        mend(data)
    store.close()


def test_nothing_is_made_where_nothing_is(tmp_path: Path) -> None:
    for directory in (tmp_path / "none", tmp_path):
        with pytest.raises(StorageError, match="there is no database"):
            mend(directory)


def test_a_later_version_is_left_alone(tmp_path: Path) -> None:
    store = sqlite.SqliteStore(tmp_path / NAME, layout=Schema(2))
    store.load()
    store.close()
    with pytest.raises(StorageError, match="schema version 2") as caught:
        mend(tmp_path)
    assert caught.value.cause == "newer"
    assert f"{NAME}.damaged-1" not in names(tmp_path)


def test_a_full_disk_leaves_the_old_files(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files, "sync", full)
        with pytest.raises(StorageError) as caught:
            mend(data)
    assert caught.value.cause == "full"
    assert held(data) == RECORDS
