import os
import resource
import shutil
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rdzv_server.storage import mounts, sqlite
from rdzv_server.storage.acked import AckedFile
from rdzv_server.storage.base import Changes, StorageError
from rdzv_server.storage.database import Database
from rdzv_server.storage.schema import Schema
from rdzv_server.storage.sqlite import SqliteStore
from tests.unit.server.storage.kit import NAME, crashed, flip, held, opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store, records = opened(tmp_path / "data")
    assert records == {}
    yield store
    store.close()


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, after: bool) -> None:
    """A method raises a fault of the disk, once, before or after it did its work."""
    original = getattr(owner, name)

    def failing(*arguments: object) -> object:
        monkeypatch.setattr(owner, name, original)
        if after:
            original(*arguments)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(owner, name, failing)


def test_s26_what_was_committed_is_there_again(store: SqliteStore, tmp_path: Path) -> None:
    store.commit({b"a": b"1", b"b": b"", b"\0": b"\xff" * 5000})
    store.commit({b"a": b"2", b"b": None, b"nothing": None})
    store.close()
    assert held(tmp_path / "data") == {b"a": b"2", b"\0": b"\xff" * 5000}


def test_s26_what_was_committed_survives_a_crash(store: SqliteStore, tmp_path: Path) -> None:
    store.commit({b"a": b"1"})
    store.commit({b"b": b"2"})
    assert held(crashed(tmp_path / "data", tmp_path / "copy")) == {b"a": b"1", b"b": b"2"}


def test_large_values_and_many_changes_are_taken(store: SqliteStore, tmp_path: Path) -> None:
    wanted: dict[bytes, bytes | None] = {b"kv/%d" % number: b"x" * 50 for number in range(3000)}
    wanted[b"large"] = os.urandom(8 << 20)
    store.commit(wanted)
    store.commit({b"large": os.urandom(8 << 20)})
    store.commit({b"large": wanted[b"large"]})
    store.close()
    assert held(tmp_path / "data") == wanted


Steps = st.lists(
    st.one_of(
        st.dictionaries(
            st.sampled_from([b"", b"a", b"run/a", b"run/b", b"kv\0c", b"\xff\xff"]),
            st.none() | st.binary(max_size=40) | st.integers(4000, 9000).map(bytes),
            max_size=5,
        ),
        st.sampled_from(["reopen", "crash", "tidy", "fault", "late fault"]),
    ),
    max_size=25,
)


@given(Steps)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_s26_a_store_is_a_dictionary_that_survives(steps: list[Changes | str]) -> None:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(dir=memory) as name, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sqlite, "TIDY_BYTES", 1)
        directory = Path(name) / "0"
        store, _ = opened(directory)
        model: dict[bytes, bytes] = {}
        for index, step in enumerate(steps, 1):
            if step == "tidy":
                store.tidy()
            elif step in ("fault", "late fault"):
                fail_once(monkeypatch, AckedFile, "write", after=step == "late fault")
                with pytest.raises(StorageError):
                    store.commit({b"a": b"%d" % index})
                store.commit({b"a": b"%d" % index})
                model[b"a"] = b"%d" % index
            elif isinstance(step, str):
                old = directory
                if step == "crash":
                    directory = crashed(directory, Path(name) / str(index))
                store.close()
                store, records = opened(directory)
                assert records == model
                if old != directory:
                    shutil.rmtree(old)
            else:
                store.commit(step)
                for key, value in step.items():
                    if value is None:
                        model.pop(key, None)
                    else:
                        model[key] = value
        store.close()
        assert held(directory) == model


def test_calls_may_come_from_another_thread(store: SqliteStore, tmp_path: Path) -> None:
    thread = threading.Thread(target=lambda: store.commit({b"a": b"1"}))
    thread.start()
    thread.join()
    store.close()
    assert held(tmp_path / "data") == {b"a": b"1"}


def test_a_second_server_is_refused_and_told_where(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"in use by another server .process {os.getpid()}"):
        SqliteStore(tmp_path / "data" / NAME)
    store.commit({b"a": b"1"})


def test_t20_all_files_are_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store, _ = opened(tmp_path / "data")
        store.commit({b"a": b"1"})
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "data").iterdir()}
    finally:
        os.umask(before)
    store.close()
    assert modes == dict.fromkeys([NAME, *(f"{NAME}-{x}" for x in ("wal", "shm", "acked", "lock"))], 0o600)  # fmt: skip
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


@pytest.mark.parametrize("ending", ["", "-wal", "-acked", "-lock"])
def test_t20_links_are_refused(tmp_path: Path, ending: str) -> None:
    opened(tmp_path / "data")[0].close()
    path = tmp_path / "data" / f"{NAME}{ending}"
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="symbolic link") as caught:
        opened(tmp_path / "data")
    assert caught.value.cause == "access"
    assert not (tmp_path / "elsewhere").exists()


def test_a_network_file_system_is_refused_unless_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "file_system", lambda *_: "nfs4")
    with pytest.raises(StorageError, match="network file system"):
        SqliteStore(tmp_path / NAME)
    SqliteStore(tmp_path / NAME, force_network_fs=True).close()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=str(tmp_path / "file")):
        SqliteStore(tmp_path / "file" / NAME)


def test_an_old_library_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(StorageError, match=r"3\.37 or later") as caught:
        SqliteStore(tmp_path / NAME)
    assert caught.value.cause == "unsupported"


@pytest.mark.parametrize("name", ["begin", "end"])
def test_s28_a_failed_commit_is_none_and_the_next_one_goes_on(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store.commit({b"a": b"1"})

    def failing(*_: object) -> None:
        raise StorageError("no", "io")

    with monkeypatch.context() as patched:
        patched.setattr(Database, name, failing)
        for _ in range(3):
            with pytest.raises(StorageError):
                store.commit({b"a": b"2"})
        assert held(crashed(tmp_path / "data", tmp_path / "copy")) == {b"a": b"1"}
    store.commit({b"b": b"2"})
    store.close()
    assert held(tmp_path / "data") == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("after", [False, True])
def test_s28_a_failed_commit_that_got_through_counts_once(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    store.commit({b"a": b"1"})
    fail_once(monkeypatch, AckedFile, "write", after=after)
    with pytest.raises(StorageError, match=r"rdzv\.db-acked: cannot write it") as caught:
        store.commit({b"b": b"2"})
    assert caught.value.cause == "io"
    store.commit({b"b": b"2"})
    assert store._meta is not None
    assert store._meta.number == 2
    store.commit({b"b": b"2"})
    assert store._meta.number == 3
    store.close()
    assert held(tmp_path / "data") == {b"a": b"1", b"b": b"2"}


def test_s28_what_got_through_stays_when_other_changes_follow(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, AckedFile, "write", after=False)
    with pytest.raises(StorageError):
        store.commit({b"a": b"1"})
    store.commit({b"a": b"2", b"b": b"2"})
    assert store._meta is not None
    assert store._meta.number == 2
    store.close()
    assert held(tmp_path / "data") == {b"a": b"2", b"b": b"2"}


def test_s28_nothing_is_written_on_files_that_are_not_what_was_acknowledged(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit({b"a": b"1"})
    old = crashed(tmp_path / "data", tmp_path / "old")
    store.commit({b"a": b"2"})
    with monkeypatch.context() as patched:
        fail_once(patched, Database, "begin", after=False)
        with pytest.raises(OSError, match="Input"):
            store.commit({b"a": b"3"})
    for path in old.iterdir():
        shutil.copyfile(path, tmp_path / "data" / path.name)
    with pytest.raises(StorageError, match="it holds commit 1, and 2 was the last") as caught:
        store.commit({b"a": b"3"})
    assert caught.value.cause == "lost"


def test_s28_a_short_write_is_no_commit(store: SqliteStore, tmp_path: Path) -> None:
    """The kernel writes up to the limit, and says so."""
    store.commit({b"a": b"1"})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_001, before[1]))
    try:
        for _ in range(2):
            with pytest.raises(StorageError) as caught:
                store.commit({b"a": bytes(30_000)})
            assert caught.value.cause == "io"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    store.commit({b"b": b"2"})
    store.close()
    assert held(tmp_path / "data") == {b"a": b"1", b"b": b"2"}


def test_s28_a_foreign_lock_is_told_and_outlived(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store._database is not None
    assert store._database._writer is not None
    store._database._writer.execute("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(tmp_path / "data" / NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="end the other program") as caught:
        store.commit({b"a": b"1"})
    assert caught.value.cause == "busy"
    other.close()
    store.commit({b"a": b"1"})


def test_a_change_by_another_program_is_noticed(store: SqliteStore, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "data" / NAME, isolation_level=None)
    other.execute("UPDATE meta SET number = 5, seal = zeroblob(16)")
    other.close()
    with pytest.raises(StorageError, match="another program changed it"):
        store.commit({b"a": b"1"})


def test_a_mistake_of_the_caller_leaves_no_trace(store: SqliteStore, tmp_path: Path) -> None:
    store.commit({b"a": b"1"})
    with pytest.raises(TypeError):
        store.commit({b"b": b"2", b"c": "text"})  # type: ignore[dict-item]
    store.commit({b"d": b"4"})
    store.close()
    assert held(tmp_path / "data") == {b"a": b"1", b"d": b"4"}


def test_s27_a_torn_log_starts_with_what_was_whole(store: SqliteStore, tmp_path: Path) -> None:
    store.commit({b"a": b"1"})
    before = crashed(tmp_path / "data", tmp_path / "before")
    store.commit({b"a": b"2"})
    torn = crashed(tmp_path / "data", tmp_path / "torn")
    shutil.copyfile(before / f"{NAME}-acked", torn / f"{NAME}-acked")
    with open(torn / f"{NAME}-wal", "r+b") as file:
        file.truncate(os.path.getsize(before / f"{NAME}-wal") + 4200)
    assert held(torn) == {b"a": b"1"}


def test_s27_a_log_that_is_shorter_than_acknowledged_is_refused(
    store: SqliteStore, tmp_path: Path
) -> None:
    for number in range(4):
        store.commit({b"a": b"%d" % number})
    copy = crashed(tmp_path / "data", tmp_path / "copy")
    flip(copy / f"{NAME}-wal", 10_000)
    with pytest.raises(StorageError) as caught:
        opened(copy)
    for words in ("acknowledged commits", f"{NAME}-wal can be read up to byte", "--repair"):
        assert words in str(caught.value)
    assert caught.value.cause == "lost"


def test_s27_a_flipped_bit_in_a_value_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    store.commit({b"run/a": b"Q" * 100})
    store.close()
    path = tmp_path / "data" / NAME
    flip(path, path.read_bytes().index(b"Q" * 100) + 50)
    with pytest.raises(StorageError, match=r"record 1 of 1 \(a 'run'\) does not match") as caught:
        opened(tmp_path / "data")
    assert str(path) in str(caught.value)
    assert caught.value.cause == "corrupt"


@pytest.mark.parametrize("name", [NAME, f"{NAME}-acked"])
def test_s27_a_missing_file_is_not_taken_for_a_new_database(
    store: SqliteStore, tmp_path: Path, name: str
) -> None:
    store.commit({b"a": b"1"})
    store.close()
    (tmp_path / "data" / name).unlink()
    with pytest.raises(StorageError, match="missing"):
        opened(tmp_path / "data")


def test_s27_a_log_without_its_database_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    store.commit({b"a": b"1"})
    copy = crashed(tmp_path / "data", tmp_path / "copy")
    (copy / NAME).unlink()
    (copy / f"{NAME}-acked").unlink()
    with pytest.raises(StorageError, match="its write-ahead log is there"):
        opened(copy)


def test_s27_an_older_copy_of_the_database_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    store.commit({b"a": b"1"})
    old = crashed(tmp_path / "data", tmp_path / "old")
    store.commit({b"a": b"2"})
    now = crashed(tmp_path / "data", tmp_path / "now")
    shutil.copyfile(now / f"{NAME}-acked", old / f"{NAME}-acked")
    with pytest.raises(StorageError, match="acknowledged commit 2 is lost"):
        opened(old)


def test_a_crash_while_the_database_was_made_is_no_damage(tmp_path: Path) -> None:
    opened(tmp_path / "data")[0].close()
    (tmp_path / "data" / NAME).unlink()
    assert held(tmp_path / "data") == {}


def test_a_later_version_is_refused_with_both_numbers(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / NAME, layout=Schema(3))
    store.load()
    store.close()
    before = files_of(tmp_path)
    with pytest.raises(
        StorageError,
        match=r"version 3, and this server knows versions up to 1: start the later version .*, or put back",
    ) as c:
        opened(tmp_path)
    assert c.value.cause == "newer"
    assert files_of(tmp_path) == before, "and nothing was touched"
    later = SqliteStore(tmp_path / NAME, layout=Schema(3))
    assert later.load() == {}, "the later server starts on it as before"
    later.close()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_version_too_old_to_be_brought_forward_is_refused_with_the_way_out(
    tmp_path: Path, version: int
) -> None:
    store = SqliteStore(tmp_path / NAME, layout=Schema(version))
    store.load()
    store.close()
    layout = Schema(5, {3: lambda records: {}, 4: lambda records: {}})
    store = SqliteStore(tmp_path / NAME, layout=layout)
    text = (
        f"schema version {version}, and this server brings versions from 3 on forward to 5: start"
    )
    with pytest.raises(StorageError, match=text) as c:
        store.load()
    store.close()
    assert c.value.cause == "older"


def files_of(directory: Path) -> list[bytes]:
    """What is stored: without the log, which is empty, and its index, which readers make as well."""
    return [(directory / name).read_bytes() for name in (NAME, f"{NAME}-acked")]


def test_older_versions_are_brought_forward_in_one_commit(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    store.commit({b"old/a": b"1", b"old/b": b"2"})
    store.close()

    def rename(records: dict[bytes, bytes]) -> Changes:
        gone = dict.fromkeys(records)
        return {**gone, **{key.replace(b"old", b"new"): value for key, value in records.items()}}

    layout = Schema(3, {1: rename, 2: lambda records: {b"count": b"%d" % len(records)}})
    for migrated in ((1, 3), None):
        store = SqliteStore(tmp_path / NAME, layout=layout)
        assert store.load() == {b"new/a": b"1", b"new/b": b"2", b"count": b"2"}
        assert store.migrated == migrated
        assert store._meta is not None
        assert (store._meta.schema, store._meta.number) == (3, 2), "commit 2 is all of it"
        store.close()


def test_what_one_migration_makes_the_next_may_take_away(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    store.commit({b"a": b"1"})
    store.close()
    layout = Schema(
        4, {1: lambda r: {b"b": b"2", b"c": b"3"}, 2: lambda r: {b"b": None}, 3: lambda r: {b"c": b"4"}}
    )  # fmt: skip
    for _ in range(2):
        store = SqliteStore(tmp_path / NAME, layout=layout)
        assert store.load() == {b"a": b"1", b"c": b"4"}
        store.close()


def test_the_log_stays_bounded_without_anybody_tidying(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_LOG_BYTES_MAX", 200_000)
    for number in range(200):
        store.commit({b"a": bytes([number]) * 5000})
    assert os.path.getsize(tmp_path / "data" / f"{NAME}-wal") < 400_000


def test_a_log_that_cannot_be_brought_in_is_nobodys_failed_commit(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_LOG_BYTES_MAX", 1)

    def failing(*_: object, **__: object) -> None:
        raise StorageError("no", "full")

    monkeypatch.setattr(Database, "checkpoint", failing)
    store.commit({b"a": b"1"})
    store.commit({b"b": b"2"})
    store.close()
    assert held(crashed(tmp_path / "data", tmp_path / "copy")) == {b"a": b"1", b"b": b"2"}


def test_closing_twice_is_closing_once(store: SqliteStore) -> None:
    assert store.name == "sqlite"
    store.close()
    store.close()
