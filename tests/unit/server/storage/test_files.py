import os
import stat
from pathlib import Path

import pytest

from rdzv_server.storage import files
from rdzv_server.storage.base import StorageError
from rdzv_server.storage.files import Files, Lock


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_the_directory_is_made_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files.prepare_directory(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert mode(tmp_path / "a" / "b") == 0o700


def test_a_directory_that_is_there_keeps_its_rights(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o750)
    files.prepare_directory(tmp_path / "a")
    assert mode(tmp_path / "a") == 0o750


def test_a_file_in_the_place_of_the_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot make the data directory"):
        files.prepare_directory(tmp_path / "a")


def test_a_second_server_is_told_who_the_first_is(tmp_path: Path) -> None:
    lock = Lock(Files(tmp_path / "rdzv.db"))
    with pytest.raises(StorageError) as caught:
        Lock(Files(tmp_path / "rdzv.db"))
    assert caught.value.cause == "owned"
    assert f"{tmp_path}/rdzv.db is in use by another server (process {os.getpid()})" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)
    lock.release()
    Lock(Files(tmp_path / "rdzv.db")).release()


def test_a_lock_file_without_a_number_is_told_as_well(tmp_path: Path) -> None:
    lock = Lock(Files(tmp_path / "rdzv.db"))
    (tmp_path / "rdzv.db-lock").write_bytes(b"?")
    with pytest.raises(StorageError, match="another server: stop"):
        Lock(Files(tmp_path / "rdzv.db"))
    lock.release()


def test_the_lock_goes_although_a_child_has_a_copy(tmp_path: Path) -> None:
    lock = Lock(Files(tmp_path / "rdzv.db"))
    copy = os.dup(lock._fd)
    lock.release()
    Lock(Files(tmp_path / "rdzv.db")).release()
    os.close(copy)


def test_t20_files_are_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        lock = Lock(Files(tmp_path / "rdzv.db"))
        os.close(files.create(str(tmp_path / "new")))
    finally:
        os.umask(before)
    lock.release()
    assert mode(tmp_path / "rdzv.db-lock") == 0o600
    assert mode(tmp_path / "new") == 0o600
    (tmp_path / "open").write_bytes(b"")
    (tmp_path / "open").chmod(0o644)
    assert files.check(str(tmp_path / "open"))
    assert mode(tmp_path / "open") == 0o600


def test_t20_links_and_other_things_are_refused(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "rdzv.db-lock").symlink_to("target")
    with pytest.raises(StorageError, match="is a symbolic link"):
        files.check(str(tmp_path / "link"))
    with pytest.raises(StorageError, match="is a symbolic link"):
        Lock(Files(tmp_path / "rdzv.db"))
    with pytest.raises(StorageError, match="not a plain file"):
        files.check(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a plain file"):
        files.check(str(tmp_path / "pipe"))
    assert not files.check(str(tmp_path / "nothing"))


def test_t20_files_of_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"")
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StorageError, match="belongs to user") as caught:
        files.check(str(tmp_path / "a"))
    assert caught.value.cause == "access"


def test_s28_settling_writes_every_byte_again_and_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom((2 << 20) + 5)
    path = tmp_path / "a"
    path.write_bytes(data)
    written: list[tuple[int, int]] = []
    synced: list[int] = []
    pwrite, fsync = os.pwrite, os.fsync

    def seen_write(fd: int, data: bytes, at: int) -> int:
        written.append((at, len(data)))
        return pwrite(fd, data, at)

    def seen_sync(fd: int) -> None:
        synced.append(fd)
        fsync(fd)

    monkeypatch.setattr("os.pwrite", seen_write)
    monkeypatch.setattr("os.fsync", seen_sync)
    files.settle(str(path))
    assert written == [(0, 1 << 20), (1 << 20, 1 << 20), (2 << 20, 5)]
    assert len(synced) == 1
    assert path.read_bytes() == data
    files.settle(str(tmp_path / "nothing"))


def test_s28_a_short_write_is_finished_or_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = files.create(str(tmp_path / "a"))
    pwrite = os.pwrite
    monkeypatch.setattr("os.pwrite", lambda fd, b, at: pwrite(fd, b[: (len(b) + 1) // 2], at))
    files.write_at(fd, b"a", 0)
    with pytest.raises(OSError, match="short write"):
        files.write_at(fd, b"abcdefgh", 0)
    os.close(fd)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    (tmp_path / "a.tmp").write_bytes(b"left over")
    files.replace(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
