import shutil
from pathlib import Path

import pytest

from rdzv_server.storage import salvage
from rdzv_server.storage.files import Files
from rdzv_server.storage.salvage import Found
from tests.unit.server.storage.kit import NAME, crashed, flip, opened

PAGE = 4096

RECORDS = {b"kv\0run-%d/key-%05d" % (n % 7, n): bytes([n % 251]) * 200 for n in range(1000)}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of some 80 pages."""
    directory = tmp_path_factory.mktemp("salvage") / "data"
    store, _ = opened(directory)
    store.commit(RECORDS)
    store.close()
    return directory


@pytest.fixture
def data(closed: Path, tmp_path: Path) -> Path:
    return crashed(closed, tmp_path / "data")


def read(data: Path) -> Found:
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    found = salvage.read(Files(data / NAME))
    after = {path.name: path.read_bytes() for path in data.iterdir()}
    assert all(after[name] == content for name, content in before.items())
    assert set(after) == set(before)
    assert found.records.items() <= RECORDS.items()
    return found


def leaves(data: Path) -> list[int]:
    """The pages that hold records."""
    content = (data / NAME).read_bytes()
    return [n for n in range(2, len(content) // PAGE) if content[n * PAGE] == 10]


def spoil(data: Path, pages: list[int]) -> None:
    with open(data / NAME, "r+b") as file:
        for page in pages:
            file.seek(page * PAGE)
            file.write(b"\xee" * 100)


def test_of_a_whole_database_everything_is_read(data: Path) -> None:
    found = read(data)
    assert found.records == RECORDS
    assert (found.dropped, found.unread, found.doubtful) == ({}, 0, False)
    assert found.meta is not None
    assert found.meta.rows == len(RECORDS)


def test_one_bad_value_costs_one_record(data: Path) -> None:
    key = next(iter(RECORDS))
    flip(data / NAME, (data / NAME).read_bytes().index(key) + len(key) + 100)
    found = read(data)
    assert found.records.keys() == RECORDS.keys() - {key}
    assert found.dropped == {"kv": 1}


@pytest.mark.parametrize("step", [1000, 7, 3, 2, 1])
def test_bad_pages_cost_what_is_in_them(data: Path, step: int) -> None:
    pages = leaves(data)
    bad = pages[3::step]
    content = (data / NAME).read_bytes()
    lost = sum(int.from_bytes(content[n * PAGE + 3 : n * PAGE + 5], "big") for n in bad)
    spoil(data, bad)
    found = read(data)
    assert found.unread == len(bad)
    assert len(found.records) == len(RECORDS) - lost


def test_a_bad_page_within_the_tree_does_not_cost_what_is_below_it(data: Path) -> None:
    content = (data / NAME).read_bytes()
    inner = [n for n in range(2, len(content) // PAGE) if content[n * PAGE] == 2]
    assert inner
    spoil(data, inner)
    found = read(data)
    assert len(found.records) >= len(RECORDS) - 100
    assert found.unread == len(inner)


def test_without_its_first_page_everything_is_read_but_free_pages_are_not_known(data: Path) -> None:
    with open(data / NAME, "r+b") as file:
        file.write(b"\xee" * PAGE)
    found = read(data)
    assert found.records == RECORDS
    assert found.doubtful
    assert found.meta is not None


def test_records_that_were_removed_do_not_come_back(data: Path) -> None:
    gone = list(RECORDS)[100:900]
    store, _ = opened(data)
    store.commit(dict.fromkeys(gone))
    store.close()
    found = read(data)
    assert found.records == {key: RECORDS[key] for key in RECORDS if key not in gone}
    assert found.unread == 0


def test_records_of_many_pages_are_read(data: Path) -> None:
    wanted = {b"l" * (40 * n): bytes([n]) * (900 * n) for n in range(1, 26)}
    store, _ = opened(data)
    store.commit({**wanted, **dict.fromkeys(RECORDS)})
    store.commit({b"m": bytes(3_000_000)})
    store.close()
    found = salvage.read(Files(data / NAME))
    assert found.records == {**wanted, b"m": bytes(3_000_000)}
    assert found.unread == 0
    with open(data / NAME, "r+b") as file:
        file.seek(40 * PAGE)
        file.write(b"\xee" * 10 * PAGE)
    found = salvage.read(Files(data / NAME))
    assert sum(found.dropped.values()) >= 1
    assert found.unread
    assert found.records.items() < {**wanted, b"m": bytes(3_000_000)}.items()


def test_of_rubbish_nothing_is_read(tmp_path: Path, closed: Path) -> None:
    data = crashed(closed, tmp_path / "data")
    (data / NAME).write_bytes(b"\xee" * 20 * PAGE)
    found = salvage.read(Files(data / NAME))
    assert found.records == {}
    assert found.meta is None
    (data / NAME).write_bytes(b"")
    assert salvage.read(Files(data / NAME)).records == {}


def test_a_log_is_read_up_to_its_damage(data: Path, tmp_path: Path) -> None:
    store, _ = opened(data)
    for number in range(5):
        store.commit({b"kv\0run-0/key-00000": b"%d" % number})
    copy = crashed(data, tmp_path / "copy")
    store.close()
    shutil.rmtree(data)
    log = copy / f"{NAME}-wal"
    flip(log, log.stat().st_size - 100)
    found = salvage.read(Files(copy / NAME))
    assert found.meta is not None
    assert found.meta.number == 5
    assert found.records[b"kv\0run-0/key-00000"] == b"3"
