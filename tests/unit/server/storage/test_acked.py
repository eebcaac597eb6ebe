from dataclasses import replace
from pathlib import Path

import pytest

from rdzv_server.storage import acked, files
from rdzv_server.storage.acked import Acked, AckedFile
from rdzv_server.storage.base import StorageError
from rdzv_server.storage.integrity import Meta

META = Meta(schema=1, number=7, rows=3, identity=b"i" * 16, chain=b"c" * 16, digest=5)


def after(number: int) -> Meta:
    return replace(META, number=number, chain=bytes([number]) * 16)


@pytest.fixture
def path(tmp_path: Path) -> str:
    name = str(tmp_path / "rdzv.db-acked")
    files.replace(name, acked.content(after(7)))
    return name


def damage(path: str, at: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 16
    Path(path).write_bytes(data)


def write(path: str, *numbers: int) -> None:
    file = AckedFile(path)
    for number in numbers:
        file.write(after(number))
    file.sync()
    file.close()


def test_the_last_number_is_read(path: str) -> None:
    assert acked.read(path) == Acked(7, META.identity, after(7).chain)
    write(path, 8, 9)
    assert acked.read(path) == Acked(9, META.identity, after(9).chain)


def test_s27_less_than_was_acknowledged_is_refused(path: str) -> None:
    last = acked.read(path)
    for number, text in (
        (6, "acknowledged commit 7 is lost"),
        (4, "3 acknowledged commits, 5 to 7"),
    ):
        with pytest.raises(StorageError, match=text) as caught:
            acked.compare(path, last, after(number))
        assert caught.value.cause == "lost"
        assert path in str(caught.value)
    acked.compare(path, last, after(7))
    acked.compare(path, last, after(8))


def test_s27_the_same_number_of_another_history_is_refused(path: str) -> None:
    with pytest.raises(StorageError, match="another one than was acknowledged"):
        acked.compare(path, acked.read(path), replace(after(7), chain=b"x" * 16))
    with pytest.raises(StorageError, match="another database"):
        acked.compare(path, acked.read(path), replace(after(9), identity=b"x" * 16))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    name = str(tmp_path / "none")
    assert acked.read(name) is None
    with pytest.raises(StorageError, match="it is missing"):
        acked.compare(name, None, META)


def test_s27_a_torn_write_is_let_through_since_its_commit_is_there(path: str) -> None:
    write(path, 8, 9)
    damage(path, 512 + 20)  # of 9, an odd number
    last = acked.read(path)
    assert last == Acked(8, META.identity, after(8).chain, whole=False)
    acked.compare(path, last, after(9))
    with pytest.raises(StorageError, match="nobody knows whether commit 9 is lost"):
        acked.compare(path, last, after(8))
    with pytest.raises(StorageError, match="acknowledged commit 8 is lost"):
        acked.compare(path, last, after(7))


def test_a_file_without_a_whole_slot_is_refused(path: str) -> None:
    damage(path, 3)
    damage(path, 512 + 3)
    with pytest.raises(StorageError, match="it is damaged") as caught:
        acked.read(path)
    assert caught.value.cause == "corrupt"


@pytest.mark.parametrize("length", [0, 1, 63, 64, 100, 511, 512, 575])
def test_a_file_that_is_too_short_is_never_whole(path: str, length: int) -> None:
    Path(path).write_bytes(Path(path).read_bytes()[:length])
    if length < 64:
        with pytest.raises(StorageError):
            acked.read(path)
    else:
        last = acked.read(path)
        assert last is not None
        assert not last.whole


def test_a_start_makes_both_slots_whole(path: str) -> None:
    damage(path, 3)
    file = AckedFile(path)
    file.renew(after(12))
    file.close()
    assert acked.read(path) == Acked(12, META.identity, after(12).chain)
    damage(path, 512)
    last = acked.read(path)
    assert last is not None
    assert last.number == 12
