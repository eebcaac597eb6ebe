"""Token files; what their lines mean is in `test_auth`."""

import os
from pathlib import Path

import pytest

from rdzv_proto import auth, token_file
from rdzv_proto.auth import EVERYTHING, Token

TOKEN = Token(EVERYTHING, b"a" * auth.SECRET_BYTES)


def test_the_tokens_of_a_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(f"# ours\n{TOKEN.text()}\n")
    assert token_file.load(str(path)) == [TOKEN]


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        token_file.load(str(tmp_path / "token"))


def test_a_pipe_is_refused_and_holds_up_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "token", 0o600)
    with pytest.raises(ValueError, match="no ordinary file"):
        token_file.load(str(tmp_path / "token"))


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN.text())
    path.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        token_file.load(str(path))


def test_a_file_that_is_far_too_long_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_bytes(b"#" * (10 * auth.FILE_BYTES_MAX))
    with pytest.raises(ValueError, match="longer than"):
        token_file.load(str(path))
