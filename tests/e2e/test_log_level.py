"""The log level of a server that runs: a file, and SIGHUP."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Cluster
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until


def hup(server: Server, event: str, count: int = 1) -> str:
    """SIGHUP, and wait for a line; returns it."""
    server.signal(signal.SIGHUP)
    until(
        lambda: len(server.log_lines(event)) == count, 5,
        lambda: f"{count} × {event}: {server.log}",
    )  # fmt: skip
    return server.log_lines(event)[-1]


def test_sighup_changes_the_level_of_a_running_server_and_a_bad_one_changes_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "log-level"
    server = cluster.server("--log-level-file", str(path))
    node = cluster.node(server, "levels", min_nodes=1, max_nodes=1)
    node.joined(1, 20)
    server.live("levels", 1, 5)
    assert server.log_lines("ready"), "info is the default"
    assert not server.log_lines("connection_opened")

    path.write_text("debug\n")
    assert "was=info now=debug" in hup(server, "log_level")
    server.members("levels")
    for event in ("connection_opened", "connection_welcomed", "connection_closed"):
        until(lambda e=event: server.log_lines(e), 5, event)  # type: ignore[misc]
        assert all("peer=" in line for line in server.log_lines(event))
    assert "protocol=1" in server.log_lines("connection_welcomed")[0]

    path.write_text("warning\n")
    assert "was=debug now=warning" in hup(server, "log_level", 2)
    before = server.log
    other = cluster.node(server, "more", min_nodes=1, max_nodes=1)
    other.joined(1, 20)
    other.kill()
    until(lambda: "event=node_lost" in server.log, 10, "what somebody should look at is told")
    since = server.log[len(before) :]
    assert "level=info" not in since
    assert "level=debug" not in since

    path.write_text("loud\n")
    line = hup(server, "reload_failed")
    assert f"log level file {path}: 'loud' is no level" in line
    assert "what was there before stays in force" in line
    assert server.run("levels") is not None, "it serves on"

    path.unlink()
    assert "was=warning now=info" in hup(server, "log_level", 3)
    assert not node.all("ended")


@pytest.mark.parametrize("given", ["flag", "variable"])
def test_a_server_does_not_start_with_a_level_that_is_none(tmp_path: Path, given: str) -> None:
    path = tmp_path / "log-level"
    path.write_text("verbose")
    flags = ["--log-level-file", str(path)] if given == "flag" else []
    variables = {} if flags else {"RDZV_LOG_LEVEL_FILE": str(path)}
    done = subprocess.run(
        [sys.executable, "-m", "rdzv_server", "--port", "0", *flags],
        capture_output=True, text=True, timeout=20, check=False, env=os.environ | variables,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        f"rdzv-server: log level file {path}: 'verbose' is no level; it must be debug, info, warning, error\n"
    )
