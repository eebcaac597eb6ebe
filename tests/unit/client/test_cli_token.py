"""`rdzv token`: making tokens, and looking at them."""

import os
import pty
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rdzv_client import cli
from rdzv_proto import auth
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token

MASTER = Token(EVERYTHING, b"s" * 32)
COMMAND = [sys.executable, "-m", "rdzv_client", "token", "new"]


@pytest.fixture(autouse=True)
def _no_token_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDZV_TOKEN_FILE", raising=False)


@pytest.fixture
def master(tmp_path: Path) -> Path:
    path = tmp_path / "master"
    path.touch(0o600)
    path.write_text(f"# the newer one comes first\n{MASTER.text()}\n")
    return path


def rdzv(*arguments: object) -> Result:
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(cli.command, words, prog_name="rdzv")


def made(result: Result) -> Token:
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    return auth.parse(line)


def test_a_new_one_is_a_master_token_and_another_one_each_time() -> None:
    first, second = made(rdzv("token", "new")), made(rdzv("token", "new"))
    assert first.master
    assert first.secret != second.secret


def test_a_new_one_is_made_whatever_the_token_file_holds(master: Path) -> None:
    token = made(rdzv("--token-file", master, "token", "new"))
    assert token.master
    assert token.key != MASTER.key


@pytest.mark.parametrize(
    ("words", "grant"),
    [
        (["--run", "llama"], Grant(Scope.JOIN, "llama")),
        (["--run", "llama", "--scope", "read"], Grant(Scope.READ, "llama")),
        (["--run", "llama", "--scope", "admin"], Grant(Scope.ADMIN, "llama")),
        (["--scope", "read"], Grant(Scope.READ)),
        (["--scope", "join"], Grant(Scope.JOIN)),
    ],
)
def test_others_are_derived_from_the_master_token(
    master: Path, words: list[str], grant: Grant
) -> None:
    token = made(rdzv("--token-file", master, "token", "new", *words))
    assert token == MASTER.derive(grant)
    assert made(rdzv("--token-file", master, "token", "new", *words)) == token


def test_a_second_name_for_a_master_token_is_refused(master: Path) -> None:
    result = rdzv("--token-file", master, "token", "new", "--scope", "admin")
    assert result.exit_code == 2
    assert "a token for everything is a master token" in result.output


def test_without_a_master_token_the_error_says_so(master: Path) -> None:
    result = rdzv("token", "new", "--run", "llama")
    assert result.exit_code == 2
    assert "RDZV_TOKEN_FILE" in result.output
    master.write_text(MASTER.derive(Grant(Scope.JOIN)).text())
    result = rdzv("--token-file", master, "token", "new", "--run", "llama")
    assert result.exit_code == 2
    assert f"token file {master}: tokens are derived from a master token" in result.output
    assert "there is only: join for all runs" in result.output


def test_show_tells_what_they_are_good_for_and_nothing_secret(master: Path) -> None:
    derived = MASTER.derive(Grant(Scope.JOIN, "a\u202eb"))
    with master.open("a") as file:
        file.write(derived.text() + "\n")
    result = rdzv("--token-file", master, "token", "show")
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines()]
    assert rows == [
        ["KEY", "SCOPE", "RUN", "KIND"],
        [MASTER.key, "admin", "all", "runs", "master"],
        [MASTER.key, "join", "a\\u202eb", "derived"],
    ]
    for token in (MASTER, derived):
        assert token.text().rpartition(":")[2] not in result.output


def test_show_without_a_file_says_what_is_missing() -> None:
    result = rdzv("token", "show")
    assert result.exit_code == 2
    assert "--token-file" in result.output


# --- where it goes ----------------------------------------------------------------------------


def into(path: Path, flags: int = os.O_TRUNC) -> str:
    """Run it as a shell does with `>` or `>>`; returns what it says on stderr."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    try:
        run = subprocess.run(COMMAND, stdout=file, stderr=subprocess.PIPE, text=True, check=True)
    finally:
        os.close(file)
    return run.stderr


def test_a_file_that_the_shell_made_becomes_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert into(path) == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (token,) = auth.read(path.read_bytes(), path.stat().st_mode, str(path))
    assert token.master


def test_a_file_that_is_added_to_keeps_its_group(tmp_path: Path) -> None:
    path = tmp_path / "token"
    into(path)
    path.chmod(0o640)
    assert into(path, os.O_APPEND) == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert len(auth.read(path.read_bytes(), path.stat().st_mode, str(path))) == 2
    path.chmod(0o644)
    into(path, os.O_APPEND)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_pipe_is_left_as_it_is() -> None:
    run = subprocess.run(COMMAND, capture_output=True, text=True, check=True)
    assert run.stderr == ""
    assert auth.parse(run.stdout.strip()).master


def test_on_a_terminal_it_warns_that_this_is_a_secret() -> None:
    ours, its = pty.openpty()
    try:
        run = subprocess.run(COMMAND, stdout=its, stderr=subprocess.PIPE, text=True, check=True)
        assert "a token is a secret" in run.stderr
        assert os.read(ours, 4096).startswith(b"rdzv1:")
    finally:
        os.close(ours)
        os.close(its)


def test_somebody_elses_file_is_only_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rdzv_client import cli_token

    path = tmp_path / "token"
    path.touch(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with path.open("w") as file:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", file)
            cli_token._guard_stdout()
        assert "chmod 600" in capsys.readouterr().err
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
