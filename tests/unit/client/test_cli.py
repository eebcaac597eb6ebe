"""The command `rdzv`: what it prints, and its exit codes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from rdzv_client import cli
from rdzv_proto import __version__
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    BarrierStatus,
    CloseRun,
    Error,
    Fence,
    GenerationStatus,
    ListRuns,
    MemberStatus,
    Policy,
    RunStatus,
    ShowGeneration,
)
from tests.ports import free_port
from tests.unit.client.fake_server import FakeServer

LLAMA = RunStatus(
    run="llama", phase="live", fence=Fence(7, 3), policy=Policy(min_nodes=2, max_nodes=2),
    members=2, participants=2, reason="2 of 2 joined",
)  # fmt: skip
BERT = RunStatus(run="bert", phase="forming", members=1, reason="1 of min 2")


@pytest.fixture(autouse=True)
def _no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDZV_ENDPOINT", raising=False)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        running.members = [
            MemberStatus(node_id=f"n{i}-1", name=f"n{i}", state="participant", group_rank=i)
            for i in range(2)
        ]
        yield running


def rdzv(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli.command, arguments, prog_name="rdzv", input=text)


def at(server: FakeServer, *arguments: str, text: str | None = None) -> Result:
    return rdzv("--server", server.address, "--timeout", "10", *arguments, text=text)


def error_line(result: Result) -> str:
    """The one line of an error; a traceback would be more."""
    (line,) = result.output.splitlines()
    return line


def test_without_a_command_it_shows_the_help() -> None:
    result = rdzv("--help")
    assert result.exit_code == 0
    assert "status" in result.output
    assert "close" in result.output
    assert "RDZV_ENDPOINT" in result.output


def test_the_version_is_that_of_the_package() -> None:
    assert rdzv("--version").output == f"rdzv {__version__}\n"


def test_it_can_be_run_as_a_module() -> None:
    command = [sys.executable, "-m", "rdzv_client", "--version"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == f"rdzv {__version__}\n"


def test_an_unknown_command_is_wrong_usage_and_the_nearest_one_is_named() -> None:
    result = rdzv("stauts")
    assert result.exit_code == 2
    assert "'stauts'" in result.output
    assert "'status'" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nonsense", "status"),
        ("status", "-o", "yaml"),
        ("--timeout", "0", "status"),
        ("--timeout", "soon", "status"),
        ("status", "a", "b"),
        ("close",),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    result = rdzv(*arguments)
    assert result.exit_code == 2
    assert "Error:" in result.output


@pytest.mark.parametrize("where", ["::1:29500", "host:x", ":5", ","])
def test_a_wrong_endpoint_is_one_line_and_exits_with_2(where: str) -> None:
    result = rdzv("--server", where, "status")
    assert result.exit_code == 2
    assert error_line(result).startswith("rdzv: ")
    assert "endpoint" in error_line(result)


def test_an_unreachable_server_is_one_line_and_exits_with_1() -> None:
    where = f"127.0.0.1:{free_port()}"
    result = rdzv("--server", where, "--timeout", "0.2", "status")
    assert result.exit_code == 1
    assert error_line(result).startswith(f"rdzv: cannot reach rdzv-server at {where} for 0.")
    assert "Connection refused" in error_line(result)
    assert "[RDZV-E101]" in error_line(result)


def test_a_server_without_runs(server: FakeServer) -> None:
    result = at(server, "status")
    assert result.exit_code == 0
    first, second, empty, last = result.output.splitlines()
    assert first.startswith(f"server {server.address} · fake 1 · protocol 1")
    assert second.startswith("0 runs")
    assert (empty, last) == ("", "no runs")


def test_several_runs_are_a_table(server: FakeServer) -> None:
    server.runs = {"llama": LLAMA, "bert": BERT}
    lines = at(server, "status").output.splitlines()
    assert lines[3].split() == ["RUN", "STATE", "GEN", "NODES", "SINCE", "WHY"]
    assert [line.split()[0] for line in lines[4:]] == ["bert", "llama"]


@pytest.mark.parametrize("arguments", [("status",), ("status", "llama")])
def test_one_run_is_shown_with_its_members(server: FakeServer, arguments: tuple[str, ...]) -> None:
    server.runs = {"llama": LLAMA} if len(arguments) == 1 else {"llama": LLAMA, "bert": BERT}
    result = at(server, *arguments)
    assert result.exit_code == 0
    assert "run llama · live" in result.output
    assert "why: 2 of 2 joined" in result.output
    assert "n1-1" in result.output
    assert "bert" not in result.output


def test_an_unknown_run_is_one_line_and_exits_with_1(server: FakeServer) -> None:
    server.on(ListRuns, lambda m: Error(code=ErrorCode.UNKNOWN_RUN, message="there is no run 'x'"))
    result = at(server, "status", "x")
    assert result.exit_code == 1
    assert error_line(result).startswith("rdzv: there is no run 'x'. ")


def test_for_programs_there_is_one_json_document(server: FakeServer) -> None:
    server.runs = {"llama": LLAMA, "bert": BERT}
    result = at(server, "status", "-o", "json")
    assert result.exit_code == 0
    data = json.loads(result.output)
    assert data["server"]["address"] == server.address
    assert [run["run"] for run in data["runs"]] == ["bert", "llama"]
    assert [m["node_id"] for m in data["runs"][1]["members"]] == ["n0-1", "n1-1"]
    only = json.loads(at(server, "status", "llama", "--output", "json").output)
    assert [run["run"] for run in only["runs"]] == ["llama"]


def test_the_endpoint_may_come_from_the_environment(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDZV_ENDPOINT", server.address)
    assert rdzv("status").exit_code == 0


def test_close_says_what_it_did(server: FakeServer) -> None:
    result = at(server, "close", "llama", "--yes", "--reason", "maintenance")
    assert result.exit_code == 0
    assert result.output == "run llama is closed\n"
    assert server.all(CloseRun) == [CloseRun(run="llama", detail="maintenance")]


def test_close_without_a_terminal_needs_yes(server: FakeServer) -> None:
    result = at(server, "close", "llama", text="y\n")
    assert result.exit_code == 2
    assert "say --yes" in result.output
    assert server.peers == [], "the server is not even asked"


@pytest.mark.parametrize(("answer", "closed"), [("y", 1), ("n", 0), ("", 0)])
def test_close_asks_on_a_terminal(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, answer: str, closed: int
) -> None:
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True), exit=sys.exit)
    monkeypatch.setattr(cli, "sys", terminal)
    result = at(server, "close", "llama", text=f"{answer}\n")
    assert "End run 'llama' for all its nodes?" in result.output
    assert len(server.all(CloseRun)) == closed
    assert result.exit_code == (0 if closed else 1)


def test_close_of_an_unknown_run_exits_with_1(server: FakeServer) -> None:
    server.on(CloseRun, lambda m: Error(code=ErrorCode.UNKNOWN_RUN, message="there is no run"))
    result = at(server, "close", "x", "--yes")
    assert result.exit_code == 1
    assert "there is no run" in error_line(result)


@pytest.mark.parametrize("reason", ["two\nlines", "x" * 1025])
def test_any_reason_for_closing_can_be_read_by_the_server(server: FakeServer, reason: str) -> None:
    assert at(server, "close", "x", "--yes", "--reason", reason).exit_code in (0, 2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("barrier", "job", "b"),
        ("barrier", "job", "b", "--count", "0"),
        ("kv",),
        ("kv", "get", "job"),
        ("kv", "add", "job", "n", "much"),
        ("kv", "delete", "job"),
        ("kv", "set", "job", "k", "v", "--if-absent", "--if-revision", "3"),
    ],
)
def test_wrong_use_of_barriers_and_keys_exits_with_2(arguments: tuple[str, ...]) -> None:
    assert rdzv(*arguments).exit_code == 2


def test_a_run_is_shown_with_what_goes_on_inside_it(server: FakeServer) -> None:
    server.runs = {"llama": LLAMA}
    row = BarrierStatus(name="ckpt", of="nodes", round=1, arrived=1, needed=2)
    server.inside = GenerationStatus(barriers=[row])
    assert "barrier ckpt (round 1): 1 of 2 nodes" in at(server, "status").output


def test_an_older_server_that_does_not_know_the_question_is_shown_without(
    server: FakeServer,
) -> None:
    server.runs = {"llama": LLAMA}
    server.on(ShowGeneration, lambda m: Error(code=ErrorCode.UNSUPPORTED, message="unknown"))
    result = at(server, "status", "llama")
    assert result.exit_code == 0
    assert "run llama" in result.output
