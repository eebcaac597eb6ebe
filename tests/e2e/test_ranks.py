"""B27, B28, B29: rank order, stable ranks, more nodes than the maximum."""

import random

import pytest

from tests.e2e.conftest import Cluster
from tests.e2e.kit.nodes import Node
from tests.e2e.kit.wait import stays, until

NAMES = ("node7", "node8", "node66", "node70")


def test_b27a_ranks_follow_the_natural_order_of_names(cluster: Cluster) -> None:
    server = cluster.server()
    shuffled = random.Random(27)
    for attempt in range(20 if cluster.full else 4):
        order = list(NAMES)
        shuffled.shuffle(order)
        nodes = {n: cluster.node(server, f"b27-{attempt}", min_nodes=4, name=n) for n in order}
        assert [nodes[n].joined(4, 10)["rank"] for n in NAMES] == [0, 1, 2, 3]
        for node in nodes.values():
            node.end()


def test_b27b_hints_decide_exactly(cluster: Cluster) -> None:
    server = cluster.server()
    wished = {"node7": 3, "node8": 0, "node66": 2, "node70": 1}
    nodes = [
        cluster.node(server, "b27b", min_nodes=4, name=name, rank=rank)
        for name, rank in wished.items()
    ]
    assert [node.joined(4, 10)["rank"] for node in nodes] == list(wished.values())


@pytest.mark.torch
def test_b27b_the_documented_flag_for_a_hint_is_rdzv_conf_rank(cluster: Cluster) -> None:
    server = cluster.server()
    agents = [
        cluster.agent(server, "b27bt", "2", "sleep=300", conf={"rank": str(1 - i)})
        for i in range(2)
    ]
    assert [agent.in_world(2, 30)["GROUP_RANK"] for agent in agents] == ["1", "0"]


def test_b27c_one_hint_twice_is_refused_at_once_with_both_names(cluster: Cluster) -> None:
    server = cluster.server()
    first = cluster.node(server, "b27c", min_nodes=3, name="node7", rank=1)
    until(lambda: len(server.members("b27c")) == 1, 10, "the first is there")
    second = cluster.node(server, "b27c", min_nodes=3, name="node8", rank=1)
    refused = second.wait_for("refused", 10)
    assert refused["at"] - second.wait_for("started", 1)["at"] < 2
    assert refused["error"] == "DuplicateRank"
    assert "node7" in refused["message"]
    assert "node8" in refused["message"]
    assert not first.all("refused")


@pytest.mark.torch
def test_b27d_torchrun_s_node_rank_is_torchrun_s_own_warning(cluster: Cluster) -> None:
    server = cluster.server()
    agent = cluster.agent(server, "b27d", "1", "sleep=0.1", more=["--node-rank", "1"])
    assert agent.wait(30) == 0
    assert "node_rank is only used for static" in agent.log


def test_b28_ranks_stay_with_their_nodes(cluster: Cluster) -> None:
    server = cluster.server()
    rules = {"min_nodes": 3, "max_nodes": 4}
    world = [cluster.node(server, "b28", name=f"n{i}", **rules) for i in range(4)]
    for node in world:
        node.joined(4, 10)
    for round_ in range(10 if cluster.full else 3):
        world.sort(key=lambda node: node.rank)
        victim = world.pop(2)
        generation = world[0].number
        victim.kill()
        assert [n.joined(3, 8, above=generation)["rank"] for n in world] == [0, 1, 2]
        new = cluster.node(server, "b28", name=f"new{round_}", **rules)
        assert new.joined(4, 10)["rank"] == 3
        assert [n.joined(4, 8)["rank"] for n in world] == [0, 1, 2]
        world.append(new)
    generation = world[0].number
    world.pop(0).kill()
    assert [n.joined(3, 8, above=generation)["rank"] for n in world] == [0, 1, 2]


def test_b28_a_standby_takes_the_vacated_rank(cluster: Cluster) -> None:
    server = cluster.server()
    world = _world_with_standby(cluster, "b28s")
    standby = world.pop()
    victim = next(n for n in world if n.rank == 1)
    world.remove(victim)
    before = {n.name: n.rank for n in world}
    victim.kill()
    assert standby.joined(4, 8)["rank"] == 1
    assert {n.name: n.joined(4, 8, above=1)["rank"] for n in world} == before
    assert server.generation("b28s") == 2


def _world_with_standby(cluster: Cluster, run: str) -> list[Node]:
    """Four participants and, last, one standby."""
    server = cluster.servers[0]
    world = [
        cluster.node(server, run, min_nodes=4, name=f"n{i}", join_timeout_s=10, lease_s=3)
        for i in range(4)
    ]
    for node in world:
        node.joined(4, 10)
    world.append(cluster.node(server, run, min_nodes=4, name="spare", join_timeout_s=10, lease_s=3))
    until(lambda: len(server.members(run)) == 5, 10, "the standby is there")
    return world


def test_b29a_a_standby_restarts_nobody_and_does_not_time_out(cluster: Cluster) -> None:
    server = cluster.server()
    world = _world_with_standby(cluster, "b29a")
    stays(
        lambda: server.generation("b29a") == 1
        and not any(n.all("waiting") or n.all("refused") for n in world),
        cluster.quiet_s(60, 12), "nothing happens for longer than the join timeout",
    )  # fmt: skip
    assert [m.state for m in server.members("b29a")].count("standby") == 1


def test_b29b_a_standby_is_in_when_a_node_dies(cluster: Cluster) -> None:
    cluster.server()
    world = _world_with_standby(cluster, "b29b")
    world[2].kill()
    world[4].joined(4, 8)


def test_b29c_failing_workers_never_cost_an_active_node_its_place(cluster: Cluster) -> None:
    server = cluster.server()
    run, rounds = "b29c", 50 if cluster.full else 6
    world = _world_with_standby(cluster, run)
    active, standby = world[:4], world[4]
    chosen = random.Random(29)
    for round_ in range(rounds):
        node = chosen.choice(active)
        node.do("join")  # what an agent does when its worker fails and restarts are left
        for other in active:
            other.joined(4, 8, above=round_ + 1)
        assert server.generation(run) == round_ + 2
        assert not standby.all("joined")
    assert [m.state for m in server.members(run)].count("standby") == 1
    assert not any(n.all("refused") for n in world)


def test_b29d_agents_started_twice_per_node_are_pointed_out(cluster: Cluster) -> None:
    server = cluster.server()
    nodes = [cluster.node(server, "b29d", min_nodes=2, name=f"h{i % 2}") for i in range(4)]
    until(lambda: len(server.members("b29d")) == 4, 10, "all four are there")
    until(lambda: server.log_lines("agents_share_a_node"), 5, "a warning")
    assert server.run("b29d").participants == 2  # type: ignore[union-attr]
    stays(lambda: len(server.log_lines("agents_share_a_node")) == 1, 1, "one warning only")
    assert sum(bool(node.all("joined")) for node in nodes) == 2
