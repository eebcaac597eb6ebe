from rdzv_server.storage.base import RecordStore, StorageError
from rdzv_server.storage.sqlite import SqliteStore


def test_a_failure_says_why_to_people_and_to_programs() -> None:
    error = StorageError("rdzv.db: cannot write it: the disk is full", "full")
    assert str(error) == "rdzv.db: cannot write it: the disk is full"
    assert error.cause == "full"


def test_sqlite_is_a_store() -> None:
    store: type[RecordStore] = SqliteStore
    assert store is SqliteStore
