"""The workers' store on the server: unmodified torchrun jobs, with `worker_store=server` and with
torch's own c10d backend pointed at `--tcpstore`."""

import json
import os
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.conftest import need_root
from tests.e2e.kit.agents import ROOT, Agent
from tests.e2e.kit.netns import Net
from tests.e2e.kit.processes import MARKER
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until
from tests.ports import free_port

if TYPE_CHECKING:
    from tests.e2e.conftest import Cluster

pytestmark = pytest.mark.torch

KIT = Path(__file__).parent / "kit"
COLLECTIVES, RESTART = str(KIT / "collectives.py"), str(KIT / "restart.py")


def torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


PARTS = ["all_reduce", "new_group", "monitored_barrier", "device_mesh", "all_gather_object", "ddp"]
if not torch_version().startswith("2.6."):  # whose FSDP needs a GPU
    PARTS.append("fsdp")

SERVED: dict[str, Any] = {"conf": {"worker_store": "server"}}
PLAIN: dict[str, Any] = {"conf": {"is_host": "false"}, "backend": "c10d"}
"""torch's own backend, whose store is then the server's main port."""


def pair(
    cluster: "Cluster", server: Server | str, run: str, *work: str, **options: Any
) -> list[Agent]:
    """A job on two nodes."""
    return [cluster.agent(server, run, "2", *work, **options) for _ in range(2)]


def good(agents: list[Agent], event: str) -> list[bool]:
    return [row["good"] for agent in agents for row in agent.lines(event)]


def test_workers_meet_in_the_store_of_the_server(cluster: "Cluster") -> None:
    server = cluster.server()
    agents = pair(cluster, server, "served", "gloo", nproc=2, **SERVED)
    assert [agent.wait(60) for agent in agents] == [0, 0], agents[0].log
    assert good(agents, "all_reduce") == [True] * 4
    for agent in agents:
        assert {row["MASTER_ADDR"] for row in agent.lines()} == {"127.0.0.1"}
        assert "workers' store: the server. MASTER_ADDR=127.0.0.1 MASTER_PORT=" in agent.log
    (port,) = {row["MASTER_PORT"] for agent in agents for row in agent.lines()}
    assert f"port={port}" in server.log_lines("store_opened")[0]
    until(lambda: server.log_lines("store_closing"), 10, "the store ends with its generation")


def test_everything_that_torch_builds_on_a_store_works(cluster: "Cluster") -> None:
    server = cluster.server()
    agents = pair(cluster, server, "all", *PARTS, nproc=2, script=COLLECTIVES, **SERVED)
    assert [agent.wait(120) for agent in agents] == [0, 0], agents[0].log
    assert {name: good(agents, name) for name in PARTS} == dict.fromkeys(PARTS, [True] * 4)


def test_torch_s_own_backend_works_with_a_server_that_speaks_tcpstore(cluster: "Cluster") -> None:
    server = cluster.server("--tcpstore")
    agents = pair(cluster, server, "plain", *PARTS, nproc=2, script=COLLECTIVES, **PLAIN)
    assert [agent.wait(120) for agent in agents] == [0, 0], agents[0].log
    assert {name: good(agents, name) for name in PARTS} == dict.fromkeys(PARTS, [True] * 4)
    assert server.log_lines("tcpstore_opened")
    until(lambda: server.log_lines("tcpstore_closed"), 10, "the store is emptied behind them")


def test_a_second_job_of_torch_s_own_backend_finds_nothing_of_the_first(cluster: "Cluster") -> None:
    server = cluster.server("--tcpstore")
    for attempt in range(2):
        agents = pair(cluster, server, "same-id", "gloo", name=f"j{attempt}", **PLAIN)
        assert [agent.wait(60) for agent in agents] == [0, 0], agents[0].log
        assert good(agents, "all_reduce") == [True, True]
        count = attempt + 1
        until(
            lambda count=count: len(server.log_lines("tcpstore_closed")) == count,  # type: ignore[misc]
            10, "the store is emptied",
        )  # fmt: skip


def test_without_the_flag_such_a_client_is_refused_with_a_hint(cluster: "Cluster") -> None:
    server = cluster.server()
    with socket.create_connection(("127.0.0.1", server.port), 5) as client:
        client.sendall(bytes.fromhex("00cef7853c"))
        assert client.recv(1) == b""
    until(lambda: "--tcpstore" in server.log, 5, "the hint")


def test_a_restart_never_reads_the_keys_of_the_attempt_before(cluster: "Cluster") -> None:
    server = cluster.server()
    agents = pair(
        cluster, server, "fresh", str(cluster.folder), script=RESTART, restarts=3, **SERVED
    )
    assert [agent.wait(90) for agent in agents] == [0, 0], agents[0].log
    assert not [row for agent in agents for row in agent.lines("init_failed")]
    assert [row["stale"] for agent in agents for row in agent.lines("looked")] == [False]
    rows = [row for agent in agents for row in agent.lines("all_reduce")]
    assert [row["good"] for row in rows if row["again"]] == [True, True]
    first, second = (
        {r["MASTER_PORT"] for r in rows if r["again"] is again} for again in (False, True)
    )
    assert len(first) == len(second) == 1
    assert first != second


@pytest.mark.skipif(torch_version().startswith("2.6."), reason="measured with torch 2.13 and 2.14")
def test_torch_s_own_backend_does_read_them(cluster: "Cluster") -> None:
    """The reason for a store of its own for each generation. If this fails, torch has mended it."""
    port = free_port()
    agents = pair(
        cluster, f"127.0.0.1:{port}", "stale", str(cluster.folder), script=RESTART, restarts=3,
        backend="c10d",
    )  # fmt: skip
    rows = until(lambda: [r for a in agents for r in a.lines("looked")], 60, "a restart looks")
    assert rows[0]["stale"], "the address of the attempt before is still there"


def test_the_store_can_have_a_range_of_ports(cluster: "Cluster") -> None:
    low = free_port()
    server = cluster.server("--store-ports", f"{low}-{low}")
    first = pair(cluster, server, "one", "gloo", "sleep=60", **SERVED)
    until(lambda: good(first, "all_reduce") == [True, True], 60, "the first job runs")
    assert {row["MASTER_PORT"] for agent in first for row in agent.lines()} == {str(low)}
    second = pair(cluster, server, "two", "gloo", **SERVED)
    until(lambda: server.log_lines("store_not_opened"), 20, "the second finds no port")
    status = server.run("two")
    assert status is not None
    assert f"all 1 ports of --store-ports {low}-{low} are in use" in status.reason
    for agent in first:
        agent.kill_group()
    assert [agent.wait(60) for agent in second] == [0, 0], second[0].log
    assert {row["MASTER_PORT"] for agent in second for row in agent.lines()} == {str(low)}


def test_the_end_of_the_server_does_not_stop_running_collectives(cluster: "Cluster") -> None:
    """torch never reconnects a store; what runs goes on without it."""
    server = cluster.server()
    agents = pair(cluster, server, "orphan", "gloo", "sleep=4", conf={
        "worker_store": "server", "reconnect_timeout": "60"})  # fmt: skip
    until(lambda: good(agents, "all_reduce") == [True, True], 60, "the job runs")
    server.kill()
    until(
        lambda: [row["code"] for agent in agents for row in agent.lines("exit")] == [0, 0],
        20, "the workers finish",
    )  # fmt: skip


@pytest.mark.root
def test_a_job_that_is_only_told_master_addr_uses_the_server(cluster: "Cluster") -> None:
    """No launcher, no backend: `MASTER_ADDR=HOST` and torch's `env://`, on hosts of their own."""
    need_root("ip")
    with Net(cluster.marker) as net:
        meeting = net.host(9)
        server = cluster.server(
            "--tcpstore", "--insecure-no-auth", host="0.0.0.0", port=29500, prefix=meeting.prefix()
        )
        said = [cluster.folder / f"rank-{rank}.jsonl" for rank in range(2)]
        logs = [cluster.folder / f"rank-{rank}.log" for rank in range(2)]
        processes = []
        for rank in range(2):
            told = {
                "MASTER_ADDR": meeting.address, "MASTER_PORT": "29500", "RANK": str(rank),
                "WORLD_SIZE": "2", "LOCAL_RANK": "0", "GLOO_SOCKET_IFNAME": "eth0",
                "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", MARKER: cluster.marker,
            }  # fmt: skip
            with open(logs[rank], "w") as log:
                processes.append(
                    subprocess.Popen(
                        [*net.host(rank + 1).prefix(), sys.executable, COLLECTIVES, str(said[rank]),
                         "all_reduce", "new_group", "monitored_barrier"],
                        stdout=log, stderr=log, env=os.environ | told,
                    )
                )  # fmt: skip
        ends = [process.wait(90) for process in processes]
        assert ends == [0, 0], [log.read_text() for log in logs]
        rows = [json.loads(line) for path in said for line in path.read_text().splitlines()]
        good = [row["event"] for row in rows if row.get("good")]
        assert sorted(good) == sorted(["all_reduce", "new_group", "monitored_barrier"] * 2)
        assert server.log_lines("tcpstore_opened")
