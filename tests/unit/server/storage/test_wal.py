import sqlite3
from pathlib import Path

import pytest

from rdzv_server.storage import wal

FRAME = 24 + 4096


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Of five commits, one frame each."""
    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    connection.execute("CREATE TABLE t (x)")
    connection.execute("PRAGMA journal_mode = WAL")
    for number in range(5):
        connection.execute("INSERT INTO t VALUES (?)", (number,))
    copy = tmp_path / "copy-wal"
    copy.write_bytes((tmp_path / "a.db-wal").read_bytes())
    connection.close()
    return copy


def test_a_whole_log_is_readable_to_its_end(log: Path) -> None:
    data = log.read_bytes()
    assert wal.readable(data) == len(data) == 32 + 5 * FRAME
    assert wal.damage(str(log)) == ""


@pytest.mark.parametrize(
    ("at", "end"),
    [(0, 0), (13, 0), (30, 0), (32, 32), (40, 32), (32 + FRAME + 100, 32 + FRAME), (32 + 3 * FRAME, 32 + 3 * FRAME)],
)  # fmt: skip
def test_s27_the_place_of_damage_is_found(log: Path, at: int, end: int) -> None:
    data = bytearray(log.read_bytes())
    data[at] ^= 4
    log.write_bytes(data)
    assert wal.readable(bytes(data)) == end
    assert wal.damage(str(log)) == f": {log} can be read up to byte {end} of {len(data)}"


def test_a_log_that_is_cut_ends_at_its_last_whole_frame(log: Path) -> None:
    assert wal.readable(log.read_bytes()[: 32 + 2 * FRAME + 7]) == 32 + 2 * FRAME
    assert wal.readable(b"") == 0


def test_the_pages_of_whole_commits_are_read(log: Path) -> None:
    data = log.read_bytes()
    pages, count = wal.pages(data)
    assert count == 2
    assert pages == {2: data[-4096:]}
    older, _ = wal.pages(data[:-1])
    assert older == {2: data[-FRAME - 4096 : -FRAME]}
    assert wal.pages(b"") == ({}, 0)


def test_no_log_is_no_damage(tmp_path: Path) -> None:
    assert wal.damage(str(tmp_path / "none")) == ""
    (tmp_path / "empty").write_bytes(b"")
    assert wal.damage(str(tmp_path / "empty")) == ""
