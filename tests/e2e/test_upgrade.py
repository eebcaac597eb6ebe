"""S34, B13: the server is upgraded under running jobs, and taken back; clients of both versions stay.

The next version is one that exists in the tests only: see tests/nextversion.py.
"""

import json
import shutil
import subprocess
import sys

import pytest

from rdzv_proto.messages import Fence
from tests.e2e.conftest import Cluster
from tests.e2e.kit.keys import rdzv
from tests.e2e.kit.nodes import Node
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until
from tests.nextversion import MIGRATED

NEXT = "tests.e2e.kit.nextserver"
NOW = "rdzv_server"
RUN = "upgrade"


def durable(cluster: Cluster) -> Server:
    return cluster.server("--data-dir", str(cluster.folder / "state"))


def world(cluster: Cluster, server: Server) -> list[Node]:
    """Two nodes of this version and one that speaks the next one as well."""
    options = {"min_nodes": 3, "max_nodes": 3, "lease_s": 20}
    nodes = [cluster.node(server, RUN, name=f"now{i}", **options) for i in (1, 2)]
    nodes.append(cluster.next_node(server, RUN, name="next", **options))
    for node in nodes:
        node.joined(3, 30)
    return nodes


def spoken(server: Server) -> dict[str, int]:
    """Protocol version of each node that is connected."""
    rows = server.members(RUN)
    return {row.name: row.protocol for row in rows if row.state == "participant"}


def all_speak(server: Server, next_speaks: int) -> None:
    wanted = {"now1": 1, "now2": 1, "next": next_speaks}
    until(lambda: spoken(server) == wanted, 20, lambda: f"{wanted}: {spoken(server)}")


def undisturbed(server: Server, nodes: list[Node], fence: str) -> None:
    """The same sessions in the same generation."""
    assert {node.wait_for("joined", 5)["fence"] for node in nodes} == {fence}
    assert not any(node.all("ended") or len(node.all("joined")) > 1 for node in nodes)
    run = server.run(RUN)
    assert run is not None
    assert str(run.fence) == fence
    assert "node_lost" not in server.log


def meet(nodes: list[Node], name: str) -> None:
    """A barrier of all, and a key: each request in the version of its node."""
    tags = [node.start("barrier", name=name, payload=node.name, timeout=30) for node in nodes]
    ends = [node.outcome(tag, 20) for node, tag in zip(nodes, tags, strict=True)]
    assert all(end["good"] for end in ends), ends
    assert len({tuple(end["payloads"]) for end in ends}) == 1
    nodes[-1].ask("set", key=name, value="by the next")
    assert nodes[0].ask("get", key=name)["value"] == "by the next"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_s34_b13_jobs_do_not_notice_that_protocol_and_schema_of_the_server_are_upgraded(
    cluster: Cluster, way: str
) -> None:
    server = durable(cluster)
    nodes = world(cluster, server)
    all_speak(server, 1)
    fence = str(nodes[0].wait_for("joined", 5)["fence"])
    nodes[0].ask("set", key="before", value="kept")
    early = [n.start("barrier", name="across", payload=n.name, timeout=120) for n in nodes[1:]]
    until(lambda: server.arrived(RUN, "across") == 2, 5, "two wait at the barrier")

    if way == "stopped":
        assert server.stop() == 0
    else:
        server.kill()
    server.become(NEXT, "--next-schema")
    server.start()
    all_speak(server, 2)
    (line,) = server.log_lines("state_migrated")
    assert "was=1 now=2" in line
    assert all(row.client.endswith(MIGRATED) for row in server.members(RUN)), "sessions of before"

    last = nodes[0].start("barrier", name="across", payload="now1", timeout=30)
    ends = [n.outcome(tag, 20) for n, tag in zip(nodes, [last, *early], strict=True)]
    assert all(sorted(end["payloads"]) == ["next", "now1", "now2"] for end in ends), ends
    assert nodes[2].ask("get", key="before")["value"] == "kept"
    meet(nodes, "after")
    undisturbed(server, nodes, fence)

    shown = rdzv(server.endpoint, "status", RUN).stdout
    print(shown)
    assert " · protocol 1 to 2 (1 with this client) · " in shown
    assert "protocol 1 (now1, now2) · 1 × rdzv" in shown
    document = json.loads(rdzv(server.endpoint, "status", RUN, "-o", "json").stdout)
    told = document["server"]
    assert (told["protocol_min"], told["protocol"], told["protocol_spoken"]) == (1, 2, 1)
    versions = {row["name"]: row["protocol"] for row in document["runs"][0]["members"]}
    assert versions == {"now1": 1, "now2": 1, "next": 2}


@pytest.mark.timeout(180)
def test_s34_an_upgrade_that_keeps_the_schema_can_be_taken_back_under_running_jobs(
    cluster: Cluster,
) -> None:
    server = durable(cluster)
    nodes = world(cluster, server)
    fence = str(nodes[0].wait_for("joined", 5)["fence"])
    for program, version in ((NEXT, 2), (NOW, 1), (NEXT, 2)):
        assert server.stop() == 0
        server.become(program)
        server.start()
        all_speak(server, version)
        meet(nodes, f"on {program}{len(server.log)}")
    undisturbed(server, nodes, fence)


def test_a_schema_that_was_upgraded_is_refused_by_the_server_of_before_in_one_line(
    cluster: Cluster,
) -> None:
    server = durable(cluster)
    server.stop()
    server.become(NEXT, "--next-schema")
    server.start()
    epoch = server.ready["epoch"]
    server.stop()
    folder = cluster.folder / "state"
    old = subprocess.run(
        [sys.executable, "-m", NOW, "--port", "0", "--data-dir", str(folder)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert old.returncode == 2
    (line,) = [one for one in old.stderr.splitlines() if one.startswith("rdzv-server: ")]
    assert f"{folder}/rdzv.db has schema version 2, and this server knows versions up to 1" in line
    assert "Traceback" not in old.stderr
    server.start()
    assert server.ready["epoch"] == epoch, "the later server goes on as if nothing had been"


def test_s2_a_copy_from_before_an_upgrade_goes_on_in_a_new_epoch(cluster: Cluster) -> None:
    """What README says of the way back."""
    server = durable(cluster)
    node = cluster.node(server, RUN, min_nodes=1, max_nodes=1)
    first = node.joined(1, 20)
    node.ask("set", key="k", value="kept", scope="run")
    assert server.stop() == 0
    folder, copy = cluster.folder / "state", cluster.folder / "copy"
    shutil.copytree(folder, copy)
    server.become(NEXT, "--next-schema")
    server.start()
    server.live(RUN, 1, 10)
    assert server.stop() == 0

    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    repair = [sys.executable, "-m", NOW, "--repair", "--data-dir", str(folder)]
    assert subprocess.run(repair, capture_output=True, timeout=30, check=False).returncode == 0
    server.become(NOW)
    server.start()
    again = node.wait_for("joined", 20, count=2)
    assert Fence(*map(int, again["fence"].split("."))) > Fence(*map(int, first["fence"].split(".")))
    assert node.ask("get", key="k", scope="run")["value"] == "kept"


def test_s34_a_node_without_a_version_in_common_is_refused_with_those_of_both(
    cluster: Cluster,
) -> None:
    server = cluster.server()
    node = cluster.next_node(server, RUN, min_nodes=1, max_nodes=1, only_next=True)
    refused = node.wait_for("refused", 20)
    assert refused["error"] == "Unsupported"
    assert (
        "the client speaks protocol version 2, this server version 1 (rdzv " in refused["message"]
    )
    assert "Upgrade the older side" in refused["message"]
