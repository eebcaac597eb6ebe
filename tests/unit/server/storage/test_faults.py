import errno
import sqlite3
from pathlib import Path

import pytest

from rdzv_server.storage import faults
from rdzv_server.storage.base import Cause


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (errno.ENOSPC, "full"),
        (errno.EDQUOT, "full"),
        (errno.EIO, "io"),
        (errno.EROFS, "access"),
        (errno.EACCES, "access"),
        (errno.EMFILE, "io"),
    ],
)
def test_errors_of_the_system_have_their_cause(number: int, cause: Cause, tmp_path: Path) -> None:
    error = faults.translate(OSError(number, "so it is"), str(tmp_path / "a.db"), "write it")
    assert error.cause == cause
    assert str(error).startswith(f"{tmp_path}/a.db: cannot write it: so it is: ")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("database or disk is full", "full"),
        ("disk I/O error", "io"),
        ("database disk image is malformed", "corrupt"),
        ("malformed database schema (x)", "corrupt"),
        ("file is not a database", "corrupt"),
        ("database is locked", "busy"),
        ("attempt to write a readonly database", "access"),
        ("unable to open database file", "access"),
        ("no such table: records", "corrupt"),
    ],
)
def test_errors_of_sqlite_have_their_cause_without_a_code_as_well(
    text: str, cause: Cause, tmp_path: Path
) -> None:
    error = faults.translate(sqlite3.OperationalError(text), str(tmp_path / "a.db"), "read it")
    assert error.cause == cause


def test_the_code_of_sqlite_counts_more_than_its_words(tmp_path: Path) -> None:
    error = sqlite3.OperationalError("something else")
    vars(error)["sqlite_errorcode"] = 13 | 256  # as Python 3.11 and later set it
    assert faults.translate(error, str(tmp_path / "a.db"), "write it").cause == "full"


def test_a_failure_without_any_room_left_is_for_want_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nothing:
        f_bavail = 0

    monkeypatch.setattr("os.statvfs", lambda _: Nothing())
    error = faults.translate(
        sqlite3.OperationalError("disk I/O error"), str(tmp_path / "a"), "open"
    )
    assert error.cause == "full"


def test_damage_is_told_with_what_to_do() -> None:
    assert "rdzv-server --repair" in str(faults.corrupt("a.db", "it is damaged"))
    assert faults.lost("a.db", "2 acknowledged commits are lost").cause == "lost"
