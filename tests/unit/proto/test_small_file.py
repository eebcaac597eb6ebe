"""Reading a small file: what it is comes with what it holds, and nothing holds the reader up."""

import os
import stat
from pathlib import Path

import pytest

from rdzv_proto import small_file


def test_what_it_holds_comes_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    path.chmod(0o640)
    content, mode = small_file.read(path, 100)
    assert (content, stat.S_IMODE(mode)) == (b"0123456789", 0o640)
    assert small_file.read(str(path), 4)[0] == b"0123"


@pytest.mark.timeout(10)
def test_what_is_no_ordinary_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    content, mode = small_file.read(tmp_path / "fifo", 100)
    assert content == b""
    assert stat.S_ISFIFO(mode)
    content, mode = small_file.read(tmp_path, 100)
    assert content == b""
    assert stat.S_ISDIR(mode)


def test_one_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        small_file.read(tmp_path / "none", 100)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    small_file.read(tmp_path, 100)
    assert len(os.listdir("/proc/self/fd")) == before
