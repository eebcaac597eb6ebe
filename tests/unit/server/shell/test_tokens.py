import os
from pathlib import Path

import pytest

from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token
from rdzv_server.shell.tokens import TokenBook

A, B = Token(EVERYTHING, b"a" * 32), Token(EVERYTHING, b"b" * 32)
JOIN = Grant(Scope.JOIN, "llama")


def write(path: Path, *tokens: Token) -> Path:
    path.write_text("".join(f"{token.text()}\n" for token in tokens))
    path.chmod(0o600)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "token"


def test_a_master_token_stands_for_all_that_is_derived_from_it(path: Path) -> None:
    book = TokenBook(write(path, A))
    assert book.secret(A.key, EVERYTHING) == (A.secret, True)
    assert book.secret(A.key, JOIN) == (A.derive(JOIN).secret, True)


def test_a_derived_token_in_the_file_stands_for_itself_only(path: Path) -> None:
    book = TokenBook(write(path, A.derive(JOIN)))
    assert book.secret(A.key, JOIN) == (A.derive(JOIN).secret, True)
    for grant in (EVERYTHING, Grant(Scope.JOIN, "other"), Grant(Scope.READ, "llama")):
        secret, known = book.secret(A.key, grant)
        assert not known
        assert secret not in (A.secret, A.derive(grant).secret, A.derive(JOIN).secret)


def test_two_tokens_are_valid_during_a_rotation(path: Path) -> None:
    book = TokenBook(write(path, A, B))
    assert book.keys == [A.key, B.key]
    for token in (A, B):
        assert book.secret(token.key, JOIN) == (token.derive(JOIN).secret, True)


def test_an_unknown_key_gets_a_secret_that_nobody_knows(path: Path) -> None:
    one, other = TokenBook(write(path, A)), TokenBook(path)
    secret, known = one.secret(B.key, JOIN)
    assert not known
    assert secret != B.derive(JOIN).secret
    assert secret != other.secret(B.key, JOIN)[0]


def test_a_removed_token_is_out_of_force_after_a_reload(path: Path) -> None:
    book = TokenBook(write(path, A, B))
    write(path, B)
    assert book.secret(A.key, JOIN)[1]
    book.reload()
    assert not book.secret(A.key, JOIN)[1]
    assert book.secret(B.key, JOIN)[1]


def test_a_bad_file_leaves_the_tokens_of_before_in_force(path: Path) -> None:
    book = TokenBook(write(path, A))
    path.write_text("rubbish\n")
    with pytest.raises(ValueError, match="line 1"):
        book.reload()
    assert book.secret(A.key, JOIN)[1]


def test_t20_a_file_that_is_missing_or_open_to_others_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match=f"cannot read token file {path}.*rdzv token new > {path}"):
        TokenBook(path)
    write(path, A).chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        TokenBook(path)


def test_a_pipe_in_its_place_is_refused_and_holds_up_nobody(path: Path) -> None:
    os.mkfifo(path, 0o600)
    with pytest.raises(ValueError, match="no ordinary file"):
        TokenBook(path)


def test_a_secret_mounted_through_links_is_read(path: Path, tmp_path: Path) -> None:
    """As orchestrators mount them: the name is a link into a folder that is exchanged."""
    (tmp_path / "..data").mkdir()
    write(tmp_path / "..data" / "token", A)
    path.symlink_to("..data/token")
    assert TokenBook(path).keys == [A.key]
