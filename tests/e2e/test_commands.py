"""`rdzv barrier` and `rdzv kv` against a real server, as shell scripts use them."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

from rdzv_proto.messages import GenerationStatus
from tests.e2e.conftest import Cluster
from tests.e2e.kit.processes import MARKER
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until

LIMIT_S = 60.0


def command(server: Server, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "rdzv_client", "--server", server.endpoint, *arguments]


def rdzv(server: Server, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(server, *arguments), input=data, capture_output=True, timeout=LIMIT_S, check=False
    )


def started(cluster: Cluster, server: Server, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command(server, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {MARKER: cluster.marker},
    )  # fmt: skip


def arrived(server: Server, run: str) -> int:
    """How many wait at the one barrier of a run."""
    inside: Any = None
    if server.run(run) is not None:
        inside = server._ask(lambda admin: admin.generation(run))
    assert inside is None or isinstance(inside, GenerationStatus)
    return inside.barriers[0].arrived if inside is not None and inside.barriers else 0


def test_scripts_meet_at_a_barrier_again_and_again(cluster: Cluster) -> None:
    server = cluster.server()
    for number in (1, 2):
        waiting = [
            started(cluster, server, "barrier", "job", "start", "--count", "3") for _ in range(2)
        ]
        until(lambda: arrived(server, "job") == 2, LIMIT_S, "two wait")
        last = rdzv(server, "barrier", "job", "start", "--count", "3")
        assert last.returncode == 0
        assert last.stdout.decode() == f"start: all 3 are there (round {number})\n"
        for process in waiting:
            out, error = process.communicate(timeout=LIMIT_S)
            assert (process.returncode, out, error) == (0, last.stdout, b"")


def test_a_barrier_that_times_out_says_who_was_there(cluster: Cluster) -> None:
    server = cluster.server()
    late = rdzv(server, "barrier", "job", "b", "--count", "2", "--timeout", "0.3", "--as", "alice")
    assert late.returncode == 1
    (line,) = late.stderr.decode().splitlines()
    assert "1 of 2 came within 0.3 s" in line
    assert "alice" in line
    assert "RDZV-E009" in line


def test_ctrl_c_at_a_barrier_takes_the_arrival_back(cluster: Cluster) -> None:
    server = cluster.server()
    process = started(cluster, server, "barrier", "job", "b", "--count", "2")
    until(lambda: arrived(server, "job") == 1, LIMIT_S, "it waits")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert b"Traceback" not in error
    until(lambda: arrived(server, "job") == 0, LIMIT_S, "the arrival is withdrawn")


def test_keys_of_a_run_from_the_shell(cluster: Cluster) -> None:
    server = cluster.server()
    raw = bytes(range(256))
    assert rdzv(server, "kv", "set", "job", "raw", "-", data=raw).stdout == b"1\n"
    assert rdzv(server, "kv", "get", "job", "raw").stdout == raw
    assert rdzv(server, "kv", "add", "job", "n", "5").stdout == b"5\n"
    assert rdzv(server, "kv", "add", "job", "n", "--", "-2").stdout == b"3\n"
    assert rdzv(server, "kv", "set", "job", "lr", "0.1", "--if-absent").stdout == b"4\n"
    again = rdzv(server, "kv", "set", "job", "lr", "0.2", "--if-absent")
    assert again.returncode == 1
    assert b"lr was not set: it has revision 4" in again.stderr
    assert rdzv(server, "kv", "set", "job", "lr", "0.3", "--if-revision", "4").stdout == b"5\n"
    rows = json.loads(rdzv(server, "kv", "list", "job", "l", "--values", "-o", "json").stdout)
    assert rows == [{"key": "lr", "revision": 5, "value_bytes": 3, "value": "0.3"}]
    assert rdzv(server, "kv", "delete", "job", "lr", "n", "none").stdout == b"2\n"
    assert [line.split()[0] for line in rdzv(server, "kv", "list", "job").stdout.splitlines()] == [
        b"KEY", b"raw",
    ]  # fmt: skip


def test_a_key_is_waited_for(cluster: Cluster) -> None:
    server = cluster.server()
    waiting = started(cluster, server, "kv", "get", "job", "address", "--wait", "50")
    until(lambda: server.run("job") is not None, LIMIT_S, "it waits")
    rdzv(server, "kv", "set", "job", "address", "10.0.0.4:7000")
    out, error = waiting.communicate(timeout=LIMIT_S)
    assert (out, error) == (b"10.0.0.4:7000", b"")


def test_a_missing_key_and_a_missing_run_are_one_line_each(cluster: Cluster) -> None:
    server = cluster.server()
    rdzv(server, "kv", "set", "job", "k", "v")
    for run, said in (("job", b"has no key 'nope'"), ("jbo", b"there is no run 'jbo'")):
        failed = rdzv(server, "kv", "get", run, "nope")
        assert failed.returncode == 1
        assert said in failed.stderr
        assert len(failed.stderr.splitlines()) == 1
