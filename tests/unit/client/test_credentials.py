"""The files a client is told of: where their names come from, and what is in the token file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rdzv_client.credentials import Credentials, shown, variable
from rdzv_proto import auth
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token

MASTER = Token(EVERYTHING, b"s" * 32)
JOIN_LLAMA = Grant(Scope.JOIN, "llama")
READ = Grant(Scope.READ)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Makes a token file."""

    def write(*tokens: Token, mode: int = 0o600) -> Path:
        path = tmp_path / "tokens"
        path.write_text("".join(f"{token.text()}\n" for token in tokens))
        path.chmod(mode)
        return path

    return write


def test_what_is_not_given_is_found_in_the_environment() -> None:
    environ = {"RDZV_TOKEN_FILE": "/env/token", "RDZV_TLS_CA": "/env/ca", "RDZV_TLS_CERT": ""}
    found = Credentials.find(environ, token_file="/given/token", tls_server_name=None)
    assert found == Credentials(token_file="/given/token", tls_ca="/env/ca")


def test_the_environment_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN_FILE", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME"):
        monkeypatch.delenv(f"RDZV_{name}", raising=False)
    monkeypatch.setenv("RDZV_TLS_CA", "system")
    assert Credentials.find() == Credentials(tls_ca="system")


def test_paths_stay_the_same_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/nobody")
    made = Credentials(token_file="a/token", tls_ca="~/ca.pem", tls_cert="c", tls_key="k")
    assert made.token_file == str(tmp_path / "a" / "token")
    assert made.tls_ca == "/nobody/ca.pem"
    assert (made.tls_cert, made.tls_key) == (str(tmp_path / "c"), str(tmp_path / "k"))


@pytest.mark.parametrize(
    ("given", "on"),
    [
        ({}, False),
        ({"token_file": "/t"}, False),
        ({"tls_ca": "system"}, True),
        ({"tls_ca": "/ca"}, True),
        ({"tls_cert": "/c"}, True),
    ],
)
def test_tls_is_on_as_soon_as_a_certificate_is_spoken_of(given: dict[str, str], on: bool) -> None:
    assert Credentials(**given).tls is on


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tls_key": "/k", "tls_ca": "/ca"}, "tls_key is given, but not the certificate"),
        ({"tls_server_name": "n"}, "nothing that turns TLS on"),
        ({"tls_server_name": "n", "token_file": "/t"}, "nothing that turns TLS on"),
    ],
)
def test_half_of_something_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Credentials(**given)


def test_they_are_taken_out_of_a_clients_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDZV_TLS_CA", "/env/ca")
    options: dict[str, Any] = {"min_nodes": 2, "token_file": "/t"}
    assert Credentials.take(options) == Credentials(token_file="/t", tls_ca="/env/ca")
    assert options == {"min_nodes": 2}


def test_ready_ones_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDZV_TLS_CA", "/env/ca")
    ready = Credentials(token_file="/t")
    options: dict[str, Any] = {"credentials": ready, "min_nodes": 2}
    assert Credentials.take(options) is ready
    assert options == {"min_nodes": 2}
    with pytest.raises(ValueError, match="credentials and tls_ca exclude each other"):
        Credentials.take({"credentials": ready, "tls_ca": "/ca"})


def test_another_process_finds_the_same() -> None:
    made = Credentials(token_file="/t", tls_ca="/ca", tls_server_name="rdzv")
    environ = made.environment()
    assert environ == {
        "RDZV_TOKEN_FILE": "/t", "RDZV_TLS_CA": "/ca", "RDZV_TLS_CERT": "", "RDZV_TLS_KEY": "",
        "RDZV_TLS_SERVER_NAME": "rdzv",
    }  # fmt: skip
    assert Credentials.find(environ) == made
    assert variable("token_file") == "RDZV_TOKEN_FILE"


# --- the token file ---------------------------------------------------------------------------


def test_without_a_token_file_there_is_no_token() -> None:
    assert Credentials().token(JOIN_LLAMA) is None
    assert Credentials().tokens() == []


def test_the_first_token_that_allows_it_is_used(write: Write) -> None:
    reader, joiner = MASTER.derive(READ), MASTER.derive(JOIN_LLAMA)
    given = Credentials(token_file=str(write(reader, joiner, MASTER)))
    assert given.token(JOIN_LLAMA) == joiner
    assert given.token(READ) == reader
    assert given.token(Grant(Scope.ADMIN, "bert")) == MASTER


def test_where_no_run_is_named_a_token_for_one_run_will_do(write: Write) -> None:
    joiner = MASTER.derive(JOIN_LLAMA)
    assert Credentials(token_file=str(write(joiner))).token(READ) == joiner
    everywhere = MASTER.derive(READ)
    assert Credentials(token_file=str(write(joiner, everywhere))).token(READ) == everywhere


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Grant(Scope.JOIN, "bert"), "allows join for run bert; there is: join for run llama, read for all runs"),
        (Grant(Scope.ADMIN), "allows admin; there is: join for run llama, read for all runs"),
    ],
)  # fmt: skip
def test_what_no_token_allows_is_named_with_what_there_is(
    write: Write, wanted: Grant, words: str
) -> None:
    path = write(MASTER.derive(JOIN_LLAMA), MASTER.derive(READ))
    with pytest.raises(ValueError, match="no token in it") as refused:
        Credentials(token_file=str(path)).token(wanted)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none"
    with pytest.raises(ValueError, match=rf"token file {path}: No such file or directory"):
        Credentials(token_file=str(path)).token(READ)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620])
def test_a_file_that_others_can_read_or_change_is_refused(write: Write, mode: int) -> None:
    path = write(MASTER, mode=mode)
    with pytest.raises(ValueError, match=f"chmod 600 {path}"):
        Credentials(token_file=str(path)).token(READ)


def test_a_pipe_of_that_name_holds_nobody(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    with pytest.raises(ValueError, match="no ordinary file"):
        Credentials(token_file=str(path)).token(READ)


def test_a_folder_of_that_name_is_no_token_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"token file .*: "):
        Credentials(token_file=str(tmp_path)).tokens()


def test_a_damaged_line_is_named_and_not_shown(write: Write) -> None:
    path = write(MASTER)
    path.write_text(MASTER.text()[:-4])
    with pytest.raises(ValueError, match="line 1") as refused:
        Credentials(token_file=str(path)).tokens()
    assert MASTER.text()[-20:-4] not in str(refused.value)


def test_a_file_that_is_far_too_long_is_not_read_to_its_end(write: Write) -> None:
    path = write(MASTER)
    path.write_text("#" * (auth.FILE_BYTES_MAX + 100))
    with pytest.raises(ValueError, match="longer than"):
        Credentials(token_file=str(path)).tokens()


def test_a_run_is_shown_escaped() -> None:
    assert shown(Grant(Scope.JOIN, "a\u202eb")) == "join for run a\\u202eb"
    assert shown(READ) == "read for all runs"
