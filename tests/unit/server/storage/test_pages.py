import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_server.storage.pages import LEAF, Image, _columns, _varint
from tests.unit.server.storage.kit import NAME, crashed, opened

PAGE = 4096


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """With a log, and with free pages."""
    store, _ = opened(tmp_path / "data")
    store.commit({b"a/%d" % n: bytes(3000) for n in range(30)})
    store.commit({b"a/%d" % n: None for n in range(5, 30)})
    copy = crashed(tmp_path / "data", tmp_path / "copy")
    store.close()
    return Image((copy / NAME).read_bytes(), (copy / f"{NAME}-wal").read_bytes())


def test_pages_of_the_log_come_first(image: Image) -> None:
    assert len(image.main) == 3 * PAGE
    assert image.count > 30
    assert image.page(3) != image.main[2 * PAGE :]


def test_free_pages_are_those_that_sqlite_counts(image: Image, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "data" / NAME)) as connection:
        assert len(image.free()) == connection.execute("PRAGMA freelist_count").fetchone()[0] > 10


@pytest.mark.parametrize(("trunk", "count"), [(7, 2), (99999, 1), (3, 0)])
def test_a_damaged_list_of_free_pages_is_not_believed(image: Image, trunk: int, count: int) -> None:
    first = bytearray(image.page(1))
    struct.pack_into(">II", first, 32, trunk, count)
    with pytest.raises(ValueError, match=r"page|many|circle|should be"):
        Image(bytes(first) + bytes(20 * PAGE), b"").free()


def test_a_list_of_free_pages_that_is_a_circle_ends() -> None:
    first, second = bytearray(PAGE), bytearray(PAGE)
    struct.pack_into(">II", first, 32, 2, 1)
    struct.pack_into(">II", second, 0, 2, 0)
    with pytest.raises(ValueError, match="circle"):
        Image(bytes(first + second), b"").free()


def test_there_are_no_pages_beyond_the_end(image: Image) -> None:
    for number in (0, image.count + 1, -1):
        with pytest.raises(ValueError, match="no such page"):
            image.page(number)


@given(st.binary(min_size=8, max_size=600), st.integers(0, 2**16 - 1))
def test_rubbish_is_read_without_a_fault(data: bytes, count: int) -> None:
    page = bytes([LEAF, 0, 0]) + struct.pack(">H", count) + data
    rows = list(Image(bytes(PAGE) + page.ljust(PAGE, data[:1]), b"").cells(2))
    assert len(rows) == min(count, (PAGE - 8) // 2)


def test_columns_of_all_types_are_read() -> None:
    payload = bytes([7, 0, 1, 8, 9, 16, 4]) + b"\xff" + b"ab" + b"\x00\x00\x01\x00"
    assert _columns(payload) == [None, -1, 0, 1, b"ab", 256]
    with pytest.raises(ValueError, match="beyond"):
        _columns(bytes([2, 40]))
    with pytest.raises(ValueError, match="beyond"):
        _columns(bytes([2, 10]))


def test_numbers_of_one_to_nine_bytes_are_read() -> None:
    assert _varint(b"\x05", 0) == (5, 1)
    assert _varint(b"\x81\x00", 0) == (128, 2)
    assert _varint(b"\xff" * 9, 0) == (2**64 - 1, 9)
