from pathlib import Path

import pytest

from rdzv_server.storage import acked, files, schema
from rdzv_server.storage.base import StorageError
from rdzv_server.storage.database import Database
from rdzv_server.storage.files import Files
from rdzv_server.storage.integrity import Meta


@pytest.fixture
def all_files(tmp_path: Path) -> Files:
    found = Files(tmp_path / "rdzv.db")
    meta = schema.create(found, found.database, 1, ())
    files.replace(found.acked, acked.content(meta))
    return found


def opened(all_files: Files) -> tuple[Database, Meta]:
    database = Database(all_files)
    meta = database.read_meta()
    database.read_records(meta)
    database.start_writing(meta)
    return database, meta


def commit(database: Database, before: Meta, key: bytes, value: bytes) -> Meta:
    after = database.begin(before, {key: value}, 1)
    database.end(after)
    return after


def content(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.match("*-shm")}


def test_s28_abandoned_files_stay_as_they_are(all_files: Files, tmp_path: Path) -> None:
    database, meta = opened(all_files)
    meta = commit(database, meta, b"a", b"1")
    before = content(tmp_path)
    assert before["rdzv.db-wal"]
    database.begin(meta, {b"b": b"2"}, 1)
    database.abandon()
    after = content(tmp_path)
    assert after == before
    database, meta = opened(all_files)
    assert database.read_records(meta) == {b"a": b"1"}
    database.abandon()
    database.abandon()


def test_an_orderly_end_leaves_no_log(all_files: Files, tmp_path: Path) -> None:
    database, meta = opened(all_files)
    commit(database, meta, b"a", b"1")
    database.close()
    assert sorted(content(tmp_path)) == ["rdzv.db", "rdzv.db-acked"]
    assert not Path(all_files.shm).exists()


def test_the_log_starts_anew_after_it_was_brought_in(all_files: Files) -> None:
    database, meta = opened(all_files)
    sizes = []
    for number in range(40):
        meta = commit(database, meta, b"a", b"%d" % number)
        database.checkpoint()
        sizes.append(Path(all_files.wal).stat().st_size)
    assert max(sizes) == sizes[0]
    database.close()


def test_a_refusal_changes_nothing(all_files: Files, tmp_path: Path) -> None:
    database, meta = opened(all_files)
    for number in range(5):
        meta = commit(database, meta, b"a", b"%d" % number)
    database.abandon()
    data = bytearray(Path(all_files.wal).read_bytes())
    data[10_000] ^= 1
    Path(all_files.wal).write_bytes(data)
    before = content(tmp_path)
    database = Database(all_files)
    with pytest.raises(
        StorageError, match=r"4 acknowledged commits, 2 to 5, are lost.*byte \d+ of"
    ):
        database.read_meta()
    database.abandon()
    assert content(tmp_path) == before


def test_a_database_that_is_not_there_is_lost(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="it is missing"):
        Database(Files(tmp_path / "rdzv.db"))


def test_what_is_no_database_is_named(all_files: Files) -> None:
    Path(all_files.database).write_bytes(b"x" * 8192)
    with pytest.raises(StorageError, match="file is not a database") as caught:
        Database(all_files)
    assert caught.value.cause == "corrupt"


def test_writing_begins_only_on_what_was_verified(all_files: Files) -> None:
    database, meta = opened(all_files)
    commit(database, meta, b"a", b"1")
    database.abandon()
    database = Database(all_files)
    with pytest.raises(StorageError, match="while the server started"):
        database.start_writing(meta)
    database.abandon()
