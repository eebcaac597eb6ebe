"""B07, B08, B44: last call, piecemeal restarts, scale-up while a run is live."""

import itertools
import signal

import pytest

from tests.e2e.conftest import Cluster
from tests.e2e.kit.agents import SHORT_LEASE, Agent
from tests.e2e.kit.nodes import Line, Node
from tests.e2e.kit.wait import stays, until


def told(node: Node, after: float) -> float:
    """Seconds from a moment until the node was told that somebody waits. It looks every 20 ms; by
    then the others may have rejoined already, and what it sees is the end of the generation."""

    def first() -> Line | None:
        return next((line for line in node.lines if line["event"] in ("waiting", "ended")), None)

    line = until(first, 5, f"{node.name} is told")
    return float(line["at"]) - after


def test_b07a_a_late_node_is_let_in_by_one_more_generation(cluster: Cluster) -> None:
    server = cluster.server()
    nodes = [cluster.node(server, "b07a", min_nodes=2, max_nodes=4, name=f"n{i}") for i in (1, 2)]
    until(lambda: len(server.members("b07a")) == 2, 10, "two nodes are there")
    nodes.append(cluster.node(server, "b07a", min_nodes=2, max_nodes=4, name="n3"))
    lines = [node.joined(3, 10) for node in nodes]
    assert {line["number"] for line in lines} == {1}
    late = cluster.node(server, "b07a", min_nodes=2, max_nodes=4, name="n4")
    began = late.wait_for("started", 10)["at"]
    joined = late.joined(4, 10)
    for node in nodes:
        assert told(node, began) < 1.5
        assert node.joined(4, 5)["number"] == 2
    last = max(node.last("joined")["at"] for node in nodes)  # type: ignore[index]
    assert joined["number"] == 2
    assert abs(joined["at"] - last) < 1
    assert not any(node.all("refused") for node in cluster.nodes)


def test_b07b_two_newcomers_cost_exactly_one_more_generation(cluster: Cluster) -> None:
    server = cluster.server()
    nodes = [cluster.node(server, "b07b", min_nodes=3, max_nodes=6, name=f"n{i}") for i in range(4)]
    for node in nodes:
        node.joined(4, 10)
    nodes += [cluster.node(server, "b07b", min_nodes=3, max_nodes=6, name=f"m{i}") for i in (1, 2)]
    assert {node.joined(6, 10)["number"] for node in nodes} == {2}
    assert server.generation("b07b") == 2


def test_b07c_all_at_once_take_no_last_call(cluster: Cluster) -> None:
    server = cluster.server()
    nodes = [cluster.node(server, "b07c", min_nodes=2, max_nodes=4, name=f"n{i}") for i in range(4)]
    lines = [node.joined(4, 10) for node in nodes]
    started = max(node.wait_for("started", 1)["at"] for node in nodes)
    assert max(line["at"] for line in lines) - started < 0.5
    assert {line["number"] for line in lines} == {1}


def test_b07d_too_few_for_the_maximum_wait_the_last_call_once(cluster: Cluster) -> None:
    server = cluster.server()
    nodes = [cluster.node(server, "b07d", min_nodes=3, max_nodes=4, name=f"n{i}") for i in range(3)]
    lines = [node.joined(3, 10) for node in nodes]
    started = max(node.wait_for("started", 1)["at"] for node in nodes)
    waited = max(line["at"] for line in lines) - started
    assert 1.8 < waited < 3.5
    assert not any(node.all("refused") for node in nodes)


def test_b08_a_job_restarted_piecemeal_lines_up(cluster: Cluster) -> None:
    """Six nodes, each with a patience of 10 s, started 4 s apart and restarted when they give up.
    In the short form all times are divided by four."""
    scale = 1.0 if cluster.full else 0.25
    server = cluster.server()
    names = [f"n{i}" for i in range(6)]
    attempts = itertools.count()

    def start(name: str) -> Node:
        return cluster.node(
            server, "b08", min_nodes=6, name=f"{name}", node_id=f"{name}-{next(attempts)}",
            join_timeout_s=10 * scale,
        )  # fmt: skip

    current: dict[str, Node] = {}
    for name in names:
        current[name] = start(name)
        current[name].wait_for("started", 10)
        stays(
            lambda: not any(node.all("refused") for node in current.values()),
            3.5 * scale,
            "a newcomer renews the patience of those who wait",
        )

    def together() -> bool:
        for name, node in current.items():
            if node.all("refused"):
                node.end()
                current[name] = start(name)
        return all(node.all("joined") for node in current.values())

    until(together, 15, "all six in one world")
    assert {node.number for node in current.values()} == {1}
    assert len({m.name for m in server.members("b08")}) == len(server.members("b08")) == 6


@pytest.mark.torch
def test_b44_nodes_join_and_leave_a_live_run_whose_rank_0_stays(cluster: Cluster) -> None:
    server = cluster.server()
    work = ("gloo", "sleep=300")
    a1 = cluster.agent(server, "b44", "1:3", *work, restarts=3, conf=SHORT_LEASE)
    a1.in_world(1, 20, event="all_reduce")
    pid = a1.pid
    a2 = cluster.agent(server, "b44", "1:3", *work, restarts=3, conf=SHORT_LEASE)
    _scaled(cluster, [a1, a2], generation=2)
    a3 = cluster.agent(server, "b44", "1:3", *work, restarts=3, conf=SHORT_LEASE)
    _scaled(cluster, [a1, a2, a3], generation=3)
    a3.signal(signal.SIGTERM)
    a3.wait(20)
    _scaled(cluster, [a1, a2], generation=4)
    a4 = cluster.agent(server, "b44", "1:3", *work, restarts=3, conf=SHORT_LEASE)
    _scaled(cluster, [a1, a2, a4], generation=5)
    assert (a1.pid, a1.code) == (pid, None)
    assert {line["RANK"] for line in a1.lines()} == {"0"}


def _scaled(cluster: Cluster, agents: list[Agent], generation: int) -> None:
    """The world of these agents has formed, works, and stays."""
    server = cluster.servers[0]
    server.live("b44", len(agents), 10, above=generation - 1)
    rows = [agent.in_world(len(agents), 20, event="all_reduce") for agent in agents]
    assert all(row["good"] for row in rows)
    assert len({(row["MASTER_ADDR"], row["MASTER_PORT"]) for row in rows}) == 1
    stays(lambda: server.generation("b44") == generation, cluster.quiet_s(5, 1.5), "no further one")
