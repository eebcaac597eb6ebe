"""B43 and the plug-in's surface: found without a line of user code, wrong settings named."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdzv_proto import PROTOCOL_VERSION
from tests.e2e.conftest import Cluster
from tests.e2e.kit.wait import until

SCRIPTS = Path(sys.executable).parent


@pytest.mark.torch
def test_b43a_the_real_torchrun_finds_the_backend_without_a_line_of_user_code(
    cluster: Cluster,
) -> None:
    server = cluster.server(command=[str(SCRIPTS / "rdzv-server")])
    agents = [cluster.agent(server, "b43a", "2", "gloo", real=True) for _ in range(2)]
    for agent in agents:
        assert agent.wait(60) == 0
        assert agent.lines("all_reduce")[-1]["good"]


@pytest.mark.torch
def test_the_environment_can_say_everything(cluster: Cluster) -> None:
    """Kubernetes operators inject PET_*; the command line stays `torchrun train.py`."""
    server = cluster.server()
    script = cluster.folder / "train.py"
    script.write_text("import os; print('RANK', os.environ['RANK'], os.environ['WORLD_SIZE'])\n")
    environment = {
        "PET_RDZV_BACKEND": "rdzv", "PET_RDZV_ENDPOINT": server.endpoint, "PET_RDZV_ID": "pet",
        "PET_NNODES": "2", "PET_RDZV_CONF": "join_timeout=30", "TMPDIR": str(cluster.folder),
    }  # fmt: skip
    jobs = [
        subprocess.Popen(
            [str(SCRIPTS / "torchrun"), str(script)], stdout=subprocess.PIPE, text=True,
            stderr=subprocess.STDOUT, env=os.environ | environment,
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [job.communicate(timeout=60)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    assert sorted(re.findall(r"RANK (\d) 2", "".join(said))) == ["0", "1"]


@pytest.mark.torch
def test_b43b_a_broken_dependency_is_named_with_the_package(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "msgspec.py").write_text("raise ImportError('broken', name='msgspec')\n")
    server = cluster.server()
    agent = cluster.agent(
        server, "b43b", "1", real=True, environment={"PYTHONPATH": str(tmp_path / "broken")}
    )
    assert agent.wait(60) != 0
    last = agent.log.rstrip().splitlines()[-1]
    assert "package rdzv" in last
    assert "'msgspec' is missing or broken" in last


def test_b43c_a_client_of_a_newer_protocol_is_refused_with_both_versions(cluster: Cluster) -> None:
    server = cluster.server()
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
        sock.sendall(b"RDZV" + bytes((PROTOCOL_VERSION + 1, 0, 0, 0)))
        data = b""
        while piece := sock.recv(4096):
            data += piece
    assert time.monotonic() - began < 2
    text = data.decode(errors="replace")
    assert f"version {PROTOCOL_VERSION + 1}" in text
    assert f"version {PROTOCOL_VERSION} " in text


@pytest.mark.torch
def test_b43d_an_unknown_conf_key_names_the_nearest_known_one(cluster: Cluster) -> None:
    server = cluster.server()
    agent = cluster.agent(server, "b43d", "1", conf={"last_cal_timeout": "5"})
    assert agent.wait(20) != 0
    last = agent.log.rstrip().splitlines()[-1]
    assert "'last_cal_timeout'" in last
    assert "did you mean 'last_call_timeout'" in last


@pytest.mark.torch
def test_a_policy_that_disagrees_is_refused_at_once_with_both_values(cluster: Cluster) -> None:
    server = cluster.server()
    first = cluster.agent(server, "policy", "2:3", "sleep=300")
    until(lambda: len(server.members("policy")) == 1, 20, "the first is there")
    second = cluster.agent(server, "policy", "2:4", "sleep=300")
    until(lambda: server.log_lines("policy_mismatch"), 10, "the second asks")
    asked = time.monotonic()
    assert second.wait(5) != 0
    assert time.monotonic() - asked < 2
    last = second.log.rstrip().splitlines()[-1]
    assert "max_nodes: the run has 3" in last
    assert "asks for 4" in last
    assert first.code is None


@pytest.mark.torch
def test_workers_attach_to_the_generation_of_their_agent(cluster: Cluster) -> None:
    server = cluster.server()
    script = cluster.folder / "attach.py"
    script.write_text(
        "import json, sys\n"
        "from rdzv_client import Client\n"
        "with Client.from_env() as client:\n"
        "    g = client.generation\n"
        "    total = g.kv.add('workers')\n"
        "    if total == g.world_size:\n"
        "        g.kv.set('all', 'here')\n"
        "    g.kv.wait(['all'], timeout=30)\n"
        "    row = {'rank': g.rank, 'world': g.world_size, 'fence': str(g.fence)}\n"
        "with open(sys.argv[1], 'a') as file:\n"
        "    file.write(json.dumps(row) + '\\n')\n"
    )
    agents = [cluster.agent(server, "attach", "2", nproc=2, script=str(script)) for _ in range(2)]
    for agent in agents:
        assert agent.wait(60) == 0, agent.log
    rows = [json.loads(line) for a in agents for line in a.worker_log_path.read_text().splitlines()]
    assert sorted(row["rank"] for row in rows) == [0, 1, 2, 3]
    assert {row["world"] for row in rows} == {4}
    assert len({row["fence"] for row in rows}) == 1


# --- rdzv status ----------------------------------------------------------------------------------


def status(endpoint: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    done = subprocess.run(
        [str(SCRIPTS / "rdzv"), "--server", endpoint, "status", *arguments],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    return done, time.monotonic() - began


@pytest.fixture
def foreign_port() -> Iterator[int]:
    """A port where somebody listens who never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                held.append(listener.accept()[0])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()
    for sock in held:
        sock.close()


def test_b43e_status_says_within_seconds_what_is_there(cluster: Cluster, foreign_port: int) -> None:
    server = cluster.server()
    nodes = [cluster.node(server, "job", min_nodes=2, name=f"n{i}") for i in (1, 2)]
    for node in nodes:
        node.joined(2, 10)
    done, took = status(server.endpoint)
    assert done.returncode == 0
    assert took < 3
    for word in ("rdzv 0.", "protocol 1", "round trip", "run job · live", "n1", "participant",
                 "2 of max 2 nodes joined"):  # fmt: skip
        assert word in done.stdout, done.stdout
    server.stop()
    for endpoint, word in (
        (server.endpoint, "Connection refused"),
        (f"127.0.0.1:{foreign_port}", "does not answer: is it rdzv?"),
    ):
        done, took = status(endpoint)
        assert done.returncode == 1
        assert took < 5
        assert word in done.stderr
        assert endpoint in done.stderr
        assert "Traceback" not in done.stderr


def test_status_as_json_has_every_key(cluster: Cluster) -> None:
    server = cluster.server()
    cluster.node(server, "job", min_nodes=1, name="n1").joined(1, 10)
    done, _ = status(server.endpoint, "job", "-o", "json")
    document = json.loads(done.stdout)
    assert document["server"]["address"] == server.endpoint
    (run,) = document["runs"]
    assert run["phase"] == "live"
    assert run["fence"][1] == 1
    assert run["reason"] == "1 of max 1 nodes joined"
    (member,) = run["members"]
    assert {"node_id", "name", "state", "group_rank", "incarnation_age_ms", "address"} <= set(
        member
    )
    assert (member["name"], member["group_rank"]) == ("n1", 0)


def test_status_of_an_unknown_run_is_an_error(cluster: Cluster) -> None:
    done, _ = status(cluster.server().endpoint, "nope")
    assert done.returncode == 1
    assert "there is no run 'nope'" in done.stderr


def test_a_stopped_server_tells_its_clients_and_exits_0(cluster: Cluster) -> None:
    server = cluster.server()
    nodes = [cluster.node(server, "job", min_nodes=2, name=f"n{i}") for i in (1, 2)]
    for node in nodes:
        node.joined(2, 10)
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 5
    for node in nodes:
        until(lambda n=node: "shutting down" in n.log_path.read_text(), 5, "it logs why")  # type: ignore[misc]
    assert "event=stopped" in server.log
