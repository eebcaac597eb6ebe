"""The command line of the server: one line and an exit code for whatever is wrong with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rdzv_server import cli
from rdzv_server.cli import Duration, command
from rdzv_server.config import Config

RUN = [sys.executable, "-m", "rdzv_server"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *arguments], capture_output=True, text=True, timeout=20, check=False,
        env=os.environ | environment,
    )  # fmt: skip


def test_an_unknown_flag_names_the_nearest_known_one() -> None:
    result = CliRunner().invoke(command, ["--prot", "5"])
    assert result.exit_code == 2
    assert "--port" in result.output


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--port", "70000"), ("--port", "x"), ("--reconnect-grace", "5q"), ("--log-format", "xml")],
)
def test_a_wrong_value_names_the_flag(flag: str, value: str) -> None:
    result = CliRunner().invoke(command, [flag, value])
    assert result.exit_code == 2
    assert flag in result.output


@pytest.mark.parametrize(
    "ports", ["29600", "29700-29600", "0-10", "29600-70000", "a-b", "29600-29700-29800", "-5-10"]
)
def test_a_wrong_range_of_store_ports_is_one_line(ports: str) -> None:
    result = run("--port", "0", f"--store-ports={ports}")
    assert result.returncode == 2
    assert result.stderr == (
        f"rdzv-server: --store-ports {ports}: must be LOW-HIGH with 1 <= LOW <= HIGH <= 65535, as in "
        "29600-29699\n"
    )


@pytest.mark.parametrize(
    ("text", "ports"),
    [("", (0, 0)), ("29600-29699", (29600, 29699)), (" 1 - 65535 ", (1, 65535)), ("5-5", (5, 5))],
)
def test_a_range_of_store_ports(text: str, ports: tuple[int, int]) -> None:
    assert Config(store_ports=text).store_port_range() == ports


def test_a_wrong_value_in_the_environment_names_the_variable() -> None:
    result = CliRunner().invoke(command, [], env={"RDZV_PORT": "abc"})
    assert result.exit_code == 2
    assert "RDZV_PORT" in result.output


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("10s", 10), ("2m", 120), ("1h", 3600), ("1.5", 1.5)]
)
def test_durations_are_written_as_people_write_them(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


def test_t1_a_wider_bind_is_refused_and_the_refusal_names_the_way_out() -> None:
    result = run("--host", "0.0.0.0", "--port", "0")
    assert result.returncode == 2
    assert "--insecure-no-auth" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_address_of_another_machine_is_one_line() -> None:
    result = run("--host", "192.0.2.1", "--port", "0", "--insecure-no-auth")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("rdzv-server: cannot listen on 192.0.2.1:")
    assert "Traceback" not in result.stderr


def test_without_its_extra_it_says_which_command_is_missing(tmp_path: Path) -> None:
    (tmp_path / "structlog.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'structlog'\", name='structlog')\n"
    )
    result = run("--port", "0", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert result.returncode == 2
    assert result.stderr == 'rdzv-server needs the server extra: pip install "rdzv[server]"\n'


def test_without_uvloop_it_runs_on_asyncio_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "uvloop.py").write_text("raise ImportError('no uvloop here')\n")
    path = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    refused = run("--port", "0", "--loop", "uvloop", **path)
    assert refused.returncode == 2
    assert "uvloop is not installed" in refused.stderr
    with subprocess.Popen(
        [*RUN, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | path,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline().startswith("READY ")
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "event=uvloop_missing" in errors


def test_a_kubernetes_service_link_is_ignored_and_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RDZV_PORT", "tcp://10.96.0.7:29500")
    cli._ignore_kubernetes_links()
    assert "RDZV_PORT" not in os.environ
    assert "enableServiceLinks: false" in capsys.readouterr().err


def test_the_help_shows_each_flag_with_its_variable() -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    for option in command.params:
        if option.name not in ("version", "help"):
            assert str(option.envvar) in text, option.name
