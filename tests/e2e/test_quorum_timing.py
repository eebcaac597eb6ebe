"""B07, B08, B44: last call, piecemeal restarts, scale-up."""

import pytest

from tests.e2e.conftest import Cluster
from tests.e2e.kit.wait import until


def test_b07a_a_late_node_is_let_in_by_one_more_generation(cluster: Cluster) -> None:
    server = cluster.server()
    first = [cluster.node(server, "b07a", min_nodes=2, max_nodes=4, name=f"n{i}") for i in (1, 2)]
    until(lambda: len(server.members("b07a")) == 2, 10, "two nodes are there")
    third = cluster.node(server, "b07a", min_nodes=2, max_nodes=4, name="n3")
    lines = [node.joined(3, 10) for node in (*first, third)]
    assert {line["number"] for line in lines} == {1}
    fourth = cluster.node(server, "b07a", min_nodes=2, max_nodes=4, name="n4")
    joined = fourth.joined(4, 10)
    for node in (*first, third):
        told = node.wait_for("waiting", 5)
        assert told["at"] - fourth.wait_for("started", 5)["at"] < 1.5
        assert node.joined(4, 5)["number"] == 2
    assert joined["number"] == 2
    assert not any(node.all("refused") for node in cluster.nodes)


@pytest.mark.torch
def test_b44_a_node_joins_a_live_run_whose_rank_0_stays(cluster: Cluster) -> None:
    server = cluster.server()
    a1 = cluster.agent(server, "b44", "1:3", "gloo", "sleep=120", restarts=3)
    a1.in_world(1, 20, event="all_reduce")
    pid = a1.pid
    a2 = cluster.agent(server, "b44", "1:3", "gloo", "sleep=120", restarts=3)
    server.live("b44", 2, 10, above=1)
    for agent in (a1, a2):
        assert agent.in_world(2, 15, event="all_reduce")["good"]
    assert a1.lines()[-1]["RANK"] == "0"
    assert a1.pid == pid
    assert server.generation("b44") == 2
