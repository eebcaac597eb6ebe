"""B11b, B19, B22, B23: the same run id again, old incarnations, several runs, a cut network."""

import time

import pytest

from tests.e2e.conftest import Cluster, need_root
from tests.e2e.kit.agents import LEASE_S, SHORT_LEASE
from tests.e2e.kit.netns import Net
from tests.e2e.kit.proxy import Proxy
from tests.e2e.kit.wait import stays, until


@pytest.mark.root
@pytest.mark.torch
def test_b11b_a_node_behind_a_cut_link_is_lost_one_lease_later(cluster: Cluster) -> None:
    need_root("ip")
    with Net(cluster.marker) as net:
        meeting = net.host(9)
        server = cluster.server(
            "--insecure-no-auth", host="0.0.0.0", prefix=meeting.prefix(), port=29511
        )
        hosts = [net.host(i) for i in (1, 2, 3)]
        agents = [
            cluster.agent(
                f"{meeting.address}:29511", "b11b", "2:3", "sleep=300", real=True,
                prefix=host.prefix(),
            )
            for host in hosts
        ]  # fmt: skip
        for agent in agents:
            agent.in_world(3, 60)
        hosts[2].cut()
        began = time.monotonic()
        for agent in agents[:2]:
            assert agent.in_world(2, LEASE_S + 3)["at"] - began < LEASE_S + 3
        assert sorted(a.lines()[-1]["RANK"] for a in agents[:2]) == ["0", "1"]
        assert all(agent.code is None for agent in agents[:2])
        (lost,) = server.log_lines("node_lost")
        assert "silent for longer than its lease" in lost


def test_b19a_a_finished_run_starts_again_at_once_under_its_id(cluster: Cluster) -> None:
    server = cluster.server()
    first = [cluster.node(server, "j1", min_nodes=2, name=f"a{i}") for i in (1, 2)]
    fences = {node.joined(2, 10)["fence"] for node in first}
    first[0].ask("set", key="k", value="old")
    for node in first:
        node.ask("finished")
        node.ask("leave", kind="finished")
    second = [cluster.node(server, "j1", min_nodes=2, name=f"b{i}") for i in (1, 2)]
    again = {node.joined(2, 5)["fence"] for node in second}
    assert min(_fence(f) for f in again) > max(_fence(f) for f in fences)
    assert second[0].ask("get", key="k")["error"] == "WaitTimeout"
    assert not any(node.all("refused") for node in second)


def test_b19b_a_killed_run_starts_again_without_its_ghosts(cluster: Cluster) -> None:
    server = cluster.server()
    first = [cluster.node(server, "j1", min_nodes=2, name=f"a{i}") for i in (1, 2)]
    for node in first:
        node.joined(2, 10)
    for node in first:
        node.kill()
    began = time.monotonic()
    second = [cluster.node(server, "j1", min_nodes=2, name=f"b{i}") for i in (1, 2)]
    for node in second:
        node.joined(2, LEASE_S + 3)
    assert time.monotonic() - began < LEASE_S + 3
    assert {m.name for m in server.members("j1")} == {"b1", "b2"}


def test_b19c_an_old_agent_that_still_lives_is_shown_with_its_age(cluster: Cluster) -> None:
    server = cluster.server()
    first = [cluster.node(server, "j1", min_nodes=2, name=f"a{i}") for i in (1, 2)]
    for node in first:
        node.joined(2, 10)
    stays(lambda: server.generation("j1") == 1, 1.0, "it lives for a while")
    first[1].kill()
    second = [cluster.node(server, "j1", min_nodes=2, name=f"b{i}") for i in (1, 2)]
    server.live("j1", 2, LEASE_S + 3, above=1)
    until(lambda: len(server.members("j1")) == 3, 10, "all three have come")
    rows = {m.name: m for m in server.members("j1")}
    assert rows["a1"].state == "participant"
    assert rows["a1"].incarnation_age_ms > 1000 + min(
        rows["b1"].incarnation_age_ms, rows["b2"].incarnation_age_ms
    )
    assert [m.state for m in rows.values()].count("standby") == 1
    until(lambda: any(node.all("joined") for node in second), 10, "one of them hears of it")
    assert sum(bool(node.all("joined")) for node in second) == 1


def _fence(text: str) -> tuple[int, int]:
    epoch, _, generation = text.partition(".")
    return int(epoch), int(generation)


def test_b22a_a_new_process_with_the_node_id_replaces_a_frozen_one(cluster: Cluster) -> None:
    server = cluster.server()
    proxy = Proxy("127.0.0.1", server.port)
    try:
        other = cluster.node(server, "b22", min_nodes=2, name="n1")
        frozen = cluster.node(
            proxy.endpoint, "b22", min_nodes=2, name="n2", node_id="n2", lease_s=60
        )
        other.joined(2, 10)
        frozen.joined(2, 10)
        proxy.freeze()
        began = time.monotonic()
        new = cluster.node(server, "b22", min_nodes=2, name="n2", node_id="n2")
        line = new.joined(2, 10)
        assert line["at"] - began < 3
        generation = server.generation("b22")
        stays(lambda: server.generation("b22") == generation, cluster.quiet_s(10, 1), "settled")
        proxy.drop()
        stays(
            lambda: server.generation("b22") == generation and len(server.members("b22")) == 2,
            cluster.quiet_s(8, 2), "the late close removes nobody",
        )  # fmt: skip
        fenced = frozen.wait_for("refused", 10)
        assert fenced["error"] == "Fenced"
    finally:
        proxy.close()


@pytest.mark.root
@pytest.mark.torch
def test_b22b_two_agents_with_equal_host_name_and_pid_are_two_members(cluster: Cluster) -> None:
    need_root("unshare")
    server = cluster.server()
    twin = [
        "unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc",
        "sh", "-c", 'hostname trainer && exec "$@"', "sh",
    ]  # fmt: skip
    agents = [
        cluster.agent(server, "b22b", "2", "sleep=300", real=True, prefix=twin) for _ in range(2)
    ]
    for agent in agents:
        agent.in_world(2, 60)
    members = server.members("b22b")
    assert [m.name for m in members] == ["trainer", "trainer"]
    assert len({m.node_id for m in members}) == 2
    assert len({m.node_id.rsplit("-", 1)[0] for m in members}) == 1, "equal name and equal pid"


@pytest.mark.torch
def test_b23_the_end_of_other_runs_moves_none(cluster: Cluster) -> None:
    server = cluster.server()
    agents = [cluster.agent(server, "steady", "2", "sleep=300", conf=SHORT_LEASE) for _ in range(2)]
    runs = {
        run: [cluster.node(server, run, min_nodes=2, name=f"{run}{i}") for i in (1, 2)]
        for run in ("success", "failure", "killed", "broken")
    }
    for nodes in runs.values():
        for node in nodes:
            node.joined(2, 10)
    for agent in agents:
        agent.in_world(2, 30)
    pids = [agent.lines()[-1]["pid"] for agent in agents]
    runs["success"][0].ask("set", key="k", value="1")
    for node in runs["success"]:
        node.ask("leave", kind="finished")
    runs["failure"][0].ask("leave", kind="failed", exit_code=1)
    for node in runs["killed"]:
        node.kill()
    runs["broken"][0].do("garbage")
    until(lambda: server.log_lines("frame_too_large"), 5, "the server saw the garbage")
    stays(lambda: server.generation("steady") == 1, cluster.quiet_s(60, 3 * LEASE_S / 5), "0 bumps")
    assert [agent.lines()[-1]["pid"] for agent in agents] == pids
    assert [agent.starts for agent in agents] == [1, 1]
    fresh = cluster.node(server, "fresh", min_nodes=1, name="f")
    fresh.joined(1, 10)
    assert fresh.ask("get", key="k")["error"] == "WaitTimeout"
    listed = server.runs()
    assert {"steady", "success", "failure", "broken", "fresh"} <= set(listed)
    assert listed["success"].phase == "ended"
    for line in server.log.splitlines():
        assert " run=" in line
