"""The systemd unit: required directives, what systemd says of it, its command really started."""

import contextlib
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.deploy import TOKEN, UNIT, clean, command, directives, flags, help_of, run, tool
from tests.e2e.kit.wait import until

TEXT = UNIT.read_text()
ALL = directives(TEXT)

REQUIRED = {
    "Type": "notify",
    "NotifyAccess": "main",
    "WatchdogSec": "30",
    "LimitCORE": "0",
    "StateDirectory": "rdzv",
    "StateDirectoryMode": "0700",
    "EnvironmentFile": "-/etc/rdzv/rdzv.env",
    "ExecReload": "/bin/sh -c 'kill -HUP $MAINPID'",
    "Restart": "on-failure",
    "DynamicUser": "yes",
    "PrivateUsers": "yes",
    "CapabilityBoundingSet": "",
    "AmbientCapabilities": "",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "ProtectProc": "invisible",
    "ProtectControlGroups": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces": "yes",
    "LockPersonality": "yes",
    "MemoryDenyWriteExecute": "yes",
    "SystemCallArchitectures": "native",
}

RELOAD = signal.SIGHUP
"""What ExecReload sends."""

EXPOSURE_MAX = 15
"""In tenths: 1.5, where the unit has 1.1. Above 2 systemd no longer calls a unit OK."""


def the(key: str) -> str:
    """The only value of a key in [Service]."""
    values = ALL[f"Service.{key}"]
    assert len(values) == 1, f"{key}: {values}"
    return values[0]


@contextlib.contextmanager
def started(
    environment: dict[str, str] | None = None,
) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The unit's command on a free port: the process, and what its READY line says."""
    program, *arguments = shlex.split(the("ExecStart"))
    process = subprocess.Popen(
        [command(Path(program).name), *arguments, "--port", "0"],
        env=clean() | (environment or {}),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("READY "), line
        yield process, dict(part.split("=", 1) for part in line.split()[1:])
    finally:
        process.kill()
        process.communicate()


def systemd_analyze(
    *words: str, folder: Path, drop_in: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run it on the unit, with a program that is installed here in place of the one in /opt."""
    analyze = tool("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze, which is not installed (Debian package systemd)")
    program = shlex.split(the("ExecStart"))[0]
    unit = folder / UNIT.name
    unit.write_text(TEXT.replace(program, command(Path(program).name)))
    if drop_in:
        beside = folder / f"{UNIT.name}.d"
        beside.mkdir()
        (beside / TOKEN.name).write_text(drop_in)
    return run(analyze, *words, unit)


def test_the_unit_has_every_required_directive() -> None:
    said = {key: ALL.get(f"Service.{key}") for key in REQUIRED}
    assert said == {key: [value] for key, value in REQUIRED.items()}


def test_system_calls_are_those_of_a_service_less_the_privileged_ones() -> None:
    assert ALL["Service.SystemCallFilter"] == ["@system-service", "~@privileged @resources"]


def test_the_unit_is_started_at_boot_once_the_network_is_up() -> None:
    assert ALL["Install.WantedBy"] == ["multi-user.target"]
    assert ALL["Unit.After"] == ALL["Unit.Wants"] == ["network-online.target"]


def test_the_limit_of_descriptors_fits_thousands_of_nodes() -> None:
    assert int(the("LimitNOFILE")) >= 65536


def test_a_wrong_option_is_given_up_on_before_the_start_limit_forgets_it() -> None:
    starts = int(ALL["Unit.StartLimitBurst"][0])
    assert starts * int(the("RestartSec")) < int(ALL["Unit.StartLimitIntervalSec"][0])


def test_every_flag_of_the_command_exists() -> None:
    program = shlex.split(the("ExecStart"))[0]
    assert program == "/opt/rdzv/bin/rdzv-server"
    for flag in flags(the("ExecStart")):
        assert flag in help_of("rdzv-server"), flag


def test_the_unit_sets_no_option_by_itself() -> None:
    assert "Service.Environment" not in ALL
    assert flags(the("ExecStart")) == set()


@pytest.mark.parametrize("drop_in", ["", TOKEN.read_text()], ids=["alone", "with a token"])
def test_systemd_verifies_the_unit_without_a_word(tmp_path: Path, drop_in: str) -> None:
    # An unknown key is only a warning with exit code 0: any output is a fault.
    ran = systemd_analyze("verify", folder=tmp_path, drop_in=drop_in)
    assert (ran.stdout + ran.stderr).strip() == ""
    assert ran.returncode == 0


def test_a_fault_in_the_drop_in_is_seen(tmp_path: Path) -> None:
    ran = systemd_analyze("verify", folder=tmp_path, drop_in="[Service]\nNoSuchKey=yes\n")
    assert "NoSuchKey" in ran.stderr


def test_the_drop_in_gives_the_token_and_the_right_to_read_it_and_nothing_else() -> None:
    assert directives(TOKEN.read_text()) == {
        "Service.SupplementaryGroups": ["rdzv"],
        "Service.Environment": ["RDZV_TOKEN_FILE=/etc/rdzv/token"],
    }


@pytest.mark.parametrize("drop_in", ["", TOKEN.read_text()], ids=["alone", "with a token"])
def test_systemd_calls_the_exposure_low(tmp_path: Path, drop_in: str) -> None:
    words = ("security", "--no-pager", "--offline=true", f"--threshold={EXPOSURE_MAX}")
    ran = systemd_analyze(*words, folder=tmp_path, drop_in=drop_in)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr.strip() == ""


def test_the_command_listens_on_loopback_and_ends_with_0_on_sigterm() -> None:
    with started() as (process, ready):
        assert ready["host"] == "127.0.0.1"
        process.terminate()
        assert process.wait(30) == 0


def test_a_silent_client_does_not_hold_the_command_until_systemd_kills_it() -> None:
    with (
        started() as (process, ready),
        socket.create_connection(("127.0.0.1", int(ready["port"]))),
    ):
        before = time.monotonic()
        process.terminate()
        assert process.wait(30) == 0
        assert time.monotonic() - before < int(the("TimeoutStopSec")) / 2


def test_a_reload_exchanges_the_token_and_the_command_runs_on(tmp_path: Path) -> None:
    old, new, both = tmp_path / "old", tmp_path / "new", tmp_path / "both"
    for path in (old, new):
        path.touch(0o600)
        path.write_text(run(command("rdzv"), "token", "new").stdout)
    both.touch(0o640)
    both.write_text(old.read_text())
    with started({"RDZV_TOKEN_FILE": str(both)}) as (process, ready):

        def good(token: Path) -> bool:
            words = ("--server", f"127.0.0.1:{ready['port']}", "status")
            named = {"RDZV_TOKEN_FILE": str(token)}
            return run(command("rdzv"), *words, environment=named).returncode == 0

        assert good(old)
        assert not good(new)
        both.write_text(old.read_text() + new.read_text())
        process.send_signal(RELOAD)
        until(lambda: good(new), 10, "the second token is in force")
        assert good(old)
        both.write_text(new.read_text())
        process.send_signal(RELOAD)
        until(lambda: not good(old), 10, "the first token is not in force any more")
        assert good(new)
        assert process.poll() is None


class Systemd:
    """The other end of the socket that systemd gives a service."""

    def __init__(self, folder: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(str(folder / "notify"))
        self.sock.settimeout(30)
        self.environment = {"NOTIFY_SOCKET": str(folder / "notify")}

    def until(self, line: str) -> list[str]:
        """Messages up to the one with that line; the last one's lines."""
        while True:
            lines = self.sock.recv(4096).decode().split("\n")
            if line in lines:
                return lines

    def until_silent(self, duration_s: float) -> None:
        """Messages until there is none for so long. The time limit of the test is the deadline."""
        self.sock.settimeout(duration_s)
        with contextlib.suppress(TimeoutError):
            while self.sock.recv(4096):
                pass
        self.sock.settimeout(30)

    def said_nothing(self) -> bool:
        self.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            return not self.sock.recv(4096)
        return True


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(tmp_path)
    yield made
    made.sock.close()


def test_when_the_command_says_that_it_is_ready_both_ports_answer(systemd: Systemd) -> None:
    with started(systemd.environment) as (_, ready):
        lines = systemd.until("READY=1")
        assert any(ready["port"] in line for line in lines if line.startswith("STATUS="))
        with socket.create_connection(("127.0.0.1", int(ready["port"])), 1):
            pass
        assert urlopen(f"http://127.0.0.1:{ready['http_port']}/readyz", timeout=5).status == 200


def test_a_command_that_refuses_to_start_never_says_that_it_is_ready(systemd: Systemd) -> None:
    refused = run(command("rdzv-server"), "--host", "0.0.0.0", environment=systemd.environment)
    assert refused.returncode == 2
    assert systemd.said_nothing()


def test_the_command_tells_of_a_reload_and_of_its_end(systemd: Systemd) -> None:
    with started(systemd.environment) as (process, _):
        systemd.until("READY=1")
        process.send_signal(RELOAD)
        lines = systemd.until("RELOADING=1")
        assert any(line.startswith("MONOTONIC_USEC=") for line in lines)
        systemd.until("READY=1")
        process.terminate()
        systemd.until("STOPPING=1")
        assert process.wait(30) == 0


def test_the_command_keeps_the_watchdog_content_and_stops_when_it_stands_still(
    systemd: Systemd,
) -> None:
    with started(systemd.environment | {"WATCHDOG_USEC": "400000"}) as (process, _):
        for _ in range(3):
            systemd.until("WATCHDOG=1")
        process.send_signal(signal.SIGSTOP)
        systemd.until_silent(1.0)
        process.send_signal(signal.SIGCONT)
        systemd.until("WATCHDOG=1")


def test_a_reload_without_any_file_changes_nothing() -> None:
    with started() as (process, ready):
        process.send_signal(RELOAD)
        ran = run(command("rdzv"), "--server", f"127.0.0.1:{ready['port']}", "status")
        assert ran.returncode == 0, ran.stderr
        assert process.poll() is None
