"""What all commands share: credentials, and how lines are printed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rdzv_client import cli
from rdzv_client.cli_options import say
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token
from rdzv_proto.messages import (
    Authenticate,
    CloseRun,
    HelloAdmin,
    HelloNode,
    KvSet,
    MemberStatus,
    RunStatus,
)
from tests.unit.client.certificates import NAMES, Authority, digest, server_context
from tests.unit.client.fake_server import FakeServer

MASTER = Token(EVERYTHING, b"s" * 32)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "TOKEN_FILE", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME"):
        monkeypatch.delenv(f"RDZV_{name}", raising=False)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(token=MASTER) as running:
        running.runs = {"llama": RunStatus(run="llama", phase="live", reason="2 of 2 joined")}
        yield running


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(MASTER.text())
    return path


def only(path: Path, scope: Scope, run: str = "") -> None:
    """Leave only a token that allows less."""
    path.write_text(MASTER.derive(Grant(scope, run)).text())


def at(server: FakeServer, *arguments: str, **environment: str) -> Result:
    words = ("--server", server.address, "--timeout", "10", *arguments)
    return CliRunner().invoke(cli.command, words, prog_name="rdzv", env=environment)


def test_the_help_names_options_and_variables() -> None:
    text = CliRunner().invoke(cli.command, ["--help"], prog_name="rdzv").output
    for name in ("token-file", "tls-ca", "tls-cert", "tls-key", "tls-server-name"):
        assert f"--{name}" in text
        assert f"RDZV_{name.replace('-', '_').upper()}" in text


def test_a_token_is_taken_from_the_option_or_the_variable(
    server: FakeServer, token_file: Path
) -> None:
    for result in (
        at(server, "--token-file", str(token_file), "status"),
        at(server, "status", RDZV_TOKEN_FILE=str(token_file)),
    ):
        assert result.exit_code == 0, result.output
        assert "run llama" in result.output


def test_without_one_the_error_is_one_line_that_says_what_is_missing(server: FakeServer) -> None:
    result = at(server, "status")
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert "demands authentication; this client has no token" in line
    assert "RDZV_TOKEN_FILE" in line


def test_a_token_for_one_run_is_enough_to_look_at_what_it_may(
    server: FakeServer, token_file: Path
) -> None:
    only(token_file, Scope.JOIN, "llama")
    for words in (["status"], ["status", "llama"]):
        assert at(server, "--token-file", str(token_file), *words).exit_code == 0
    result = at(server, "--token-file", str(token_file), "status", "bert")
    assert result.exit_code == 2
    assert "allows read for run bert; there is: join for run llama" in result.output


def test_closing_needs_more_than_looking(server: FakeServer, token_file: Path) -> None:
    only(token_file, Scope.JOIN)
    refused = at(server, "--token-file", str(token_file), "close", "llama", "--yes")
    assert refused.exit_code == 2
    assert "no token in it allows admin for run llama" in refused.output
    only(token_file, Scope.ADMIN, "llama")
    assert at(server, "--token-file", str(token_file), "close", "llama", "--yes").exit_code == 0
    assert [ask.run for ask in server.all(CloseRun)] == ["llama"]


def test_keys_need_a_token_that_may_join(server: FakeServer, token_file: Path) -> None:
    only(token_file, Scope.READ)
    words = ("--token-file", str(token_file), "kv", "set", "llama", "k", "v")
    assert at(server, *words).exit_code == 2
    only(token_file, Scope.JOIN, "llama")
    assert at(server, *words).exit_code == 0
    assert server.all(KvSet)
    assert [answer.scope for answer in server.all(Authenticate)] == ["join"]


def test_a_wrong_file_is_one_line_and_wrong_usage(server: FakeServer, token_file: Path) -> None:
    token_file.chmod(0o644)
    result = at(server, "--token-file", str(token_file), "status")
    assert result.exit_code == 2
    assert result.output.startswith("rdzv: token file")
    assert f"chmod 600 {token_file}" in result.output
    assert server.all(HelloAdmin) == []


def test_all_of_tls_can_be_said_on_the_command_line(tmp_path: Path, token_file: Path) -> None:
    ca = Authority(tmp_path)
    leaf = ca.issue("rdzv.example")
    own = ca.client()
    with FakeServer(token=MASTER, tls=server_context(leaf, ca), certificate=digest(leaf)) as server:
        result = at(
            server, "--token-file", str(token_file), "--tls-ca", ca.file, "--tls-cert",
            own.tls_cert, "--tls-key", own.tls_key, "--tls-server-name", "rdzv.example", "status",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        assert at(server, "barrier", "llama", "b", "--count", "1", **own.environment() | {
            "RDZV_TOKEN_FILE": str(token_file), "RDZV_TLS_SERVER_NAME": "rdzv.example",
        }).exit_code == 0  # fmt: skip
        assert len(server.all(HelloNode)) == 1


def test_a_certificate_that_is_refused_is_one_line(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    with FakeServer(tls=server_context(ca.issue(*NAMES, valid=False))) as server:
        result = at(server, "--tls-ca", ca.file, "status")
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert "the server's certificate has expired" in line


# --- what others wrote ------------------------------------------------------------------------


def test_lines_stay_lines_and_hide_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\x1b[2Jb\nc\u202ed – ·")
    assert capsys.readouterr().out == "a\\x1b[2Jb\nc\\u202ed – ·\n"
    say("e\rf", err=True)
    assert capsys.readouterr().err == "e\\rf\n"


def test_names_and_reasons_are_escaped_on_the_terminal_and_whole_in_json(
    server: FakeServer, token_file: Path
) -> None:
    server.runs = {"r\u202en": RunStatus(run="r\u202en", phase="live", reason="be\u2066cause")}
    server.members = [MemberStatus(node_id="n\u200e1", name="n\u202e", state="participant")]
    shown = at(server, "--token-file", str(token_file), "status").output
    assert "r\\u202en" in shown
    assert "be\\u2066cause" in shown
    assert "n\\u200e1" in shown
    assert "\u202e" not in shown
    found = json.loads(at(server, "--token-file", str(token_file), "status", "-o", "json").stdout)
    assert found["runs"][0]["run"] == "r\u202en"


def test_keys_are_escaped_one_by_one(server: FakeServer, token_file: Path) -> None:
    server.values = {"a\nb": b"1\x1b[2J", "c": b"2"}
    server.revisions = {"a\nb": 1, "c": 2}
    words = ("--token-file", str(token_file), "kv", "list", "llama", "--values")
    lines = at(server, *words).output.splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["a\\nb", "1", "5", "1\\x1b[2J"]
    found = json.loads(at(server, *words, "-o", "json").stdout)
    assert found[0]["key"] == "a\nb"
