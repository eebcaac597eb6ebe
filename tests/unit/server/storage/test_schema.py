import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rdzv_server.storage import schema
from rdzv_server.storage.files import Files
from rdzv_server.storage.integrity import Step, gather
from rdzv_server.storage.schema import DamageError


@pytest.fixture
def path(tmp_path: Path) -> str:
    files = Files(tmp_path / "rdzv.db")
    schema.create(files, files.database, 1, [(b"a", b"1"), (b"b", b"2")])
    return files.database


@pytest.fixture
def connection(path: str) -> Iterator[sqlite3.Connection]:
    with closing(schema.connect(path, writing=True)) as connection:
        yield connection


def test_a_new_database_is_one_file_that_says_everything(
    tmp_path: Path, path: str, connection: sqlite3.Connection
) -> None:
    assert [entry.name for entry in tmp_path.iterdir()] == ["rdzv.db"]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    meta = schema.read_meta(connection)
    assert (meta.schema, meta.number, meta.rows) == (1, 1, 2)
    assert gather(schema.read_rows(connection), meta) == {b"a": b"1", b"b": b"2"}
    assert schema.read_version(connection) == 1


def test_two_databases_have_two_identities(tmp_path: Path) -> None:
    files = Files(tmp_path / "rdzv.db")
    one = schema.create(files, str(tmp_path / "one"), 1, ())
    two = schema.create(files, str(tmp_path / "two"), 1, ())
    assert one.identity != two.identity
    assert one.chain != two.chain


def test_what_an_earlier_attempt_left_is_in_nobodys_way(tmp_path: Path) -> None:
    files = Files(tmp_path / "rdzv.db")
    for name in files.of_new:
        Path(name).write_bytes(b"rubbish")
    schema.create(files, files.new, 1, ())
    assert [entry.name for entry in tmp_path.iterdir()] == ["rdzv.db-new"]


def test_a_connection_for_reading_cannot_write(path: str) -> None:
    with (
        closing(schema.connect(path, writing=False)) as connection,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        connection.execute("DELETE FROM records")


@pytest.mark.parametrize("name", ["with blank", "100%", "what?", "a#b", "ü"])
def test_any_name_will_do(tmp_path: Path, name: str) -> None:
    files = Files(tmp_path / name)
    schema.create(files, files.database, 1, ())
    with closing(schema.connect(files.database, writing=False)) as connection:
        assert schema.read_version(connection) == 1
    assert (tmp_path / name).exists()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE meta SET number = number + 1",
        "UPDATE meta SET rows = -1",
        "UPDATE meta SET chain = x'00'",
        "UPDATE meta SET seal = zeroblob(16)",
        "DELETE FROM meta",
    ],
)
def test_s27_a_changed_description_is_found(connection: sqlite3.Connection, statement: str) -> None:
    connection.execute(statement)
    with pytest.raises(DamageError):
        schema.read_meta(connection)


def test_a_database_without_a_version_is_damaged(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM meta")
    with pytest.raises(DamageError, match="no version"):
        schema.read_version(connection)


def test_a_write_by_somebody_else_is_noticed(connection: sqlite3.Connection) -> None:
    before = schema.read_meta(connection)
    step = Step(before)
    schema.write(connection, step, {b"a": b"other"})
    after = schema.finish(connection, before, step.after())
    assert schema.read_meta(connection) == after
    with pytest.raises(DamageError, match="another program"):
        schema.finish(connection, before, Step(before).after())


def test_s27_the_tables_take_no_other_types(connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT INTO records VALUES ('text', 1, x'00', x'00')")
