"""B38, B39 and the dead end of the exit barrier: how jobs end."""

import signal
import time

import pytest

from tests.e2e.conftest import Cluster
from tests.e2e.kit.agents import QUIET_S, SHORT_LEASE, Agent
from tests.e2e.kit.wait import stays, until

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("first", [0, 3], ids=["rank 0 first", "rank 0 last"])
def test_b38a_nodes_that_finish_at_different_times_all_succeed(
    cluster: Cluster, first: int
) -> None:
    server = cluster.server()
    times = [1.0, 3.0, 6.0, 10.0] if cluster.full else [0.5, 1.0, 2.0, 3.5]
    if first:
        times.reverse()
    agents = [
        cluster.agent(server, "b38a", "2:4", f"sleep={s}", conf={"rank": str(i)})
        for i, s in enumerate(times)
    ]
    for agent in agents:
        agent.in_world(4, 30)
    until(lambda: all(agent.lines("exit") for agent in agents), 30, "the last worker has finished")
    last = max(agent.lines("exit")[-1]["at"] for agent in agents)
    for agent in agents:
        assert agent.wait(10) == 0
    assert time.monotonic() - last < 3
    for agent in agents:
        assert "exit barrier" not in agent.log
        assert agent.starts == 1


def test_b38b_a_finished_node_that_is_gone_is_no_scale_down(cluster: Cluster) -> None:
    server = cluster.server()
    early = cluster.agent(server, "b38b", "2:4", "sleep=1", conf=SHORT_LEASE)
    rest = [cluster.agent(server, "b38b", "2:4", "sleep=20", conf=SHORT_LEASE) for _ in range(3)]
    for agent in (early, *rest):
        agent.in_world(4, 30)
    until(lambda: server.log_lines("node_finished"), 10, "it waits in the exit barrier")
    early.signal(signal.SIGTERM)
    early.wait(10)
    stays(lambda: server.generation("b38b") == 1, cluster.quiet_s(18, QUIET_S), "0 bumps")
    assert [agent.starts for agent in rest] == [1, 1, 1]
    assert all(agent.code is None for agent in rest)


def test_b39a_a_terminated_agent_saves_and_leaves_and_the_others_go_on(cluster: Cluster) -> None:
    server = cluster.server()
    save_s = 8 if cluster.full else 2
    agents = [cluster.agent(server, "b39a", "2:3", "sleep=300") for _ in range(2)]
    leaving = cluster.agent(server, "b39a", "2:3", "sleep=300", f"save={save_s}")
    for agent in (*agents, leaving):
        agent.in_world(3, 30)
    leaving.signal(signal.SIGTERM)
    leaving.wait(save_s + 10)
    gone = time.monotonic()
    assert leaving.lines("saved")
    for agent in agents:
        assert agent.in_world(2, 5)["at"] - gone < 3
    status = server.run("b39a")
    assert status is not None
    assert status.ended is not None
    assert status.ended.kind == "drained"
    back = cluster.agent(server, "b39a", "2:3", "sleep=300")
    back.in_world(3, 15)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_b39b_an_agent_that_waits_is_gone_at_once(cluster: Cluster, number: signal.Signals) -> None:
    server = cluster.server()
    agent = cluster.agent(server, "b39b", "4")
    until(lambda: len(server.members("b39b")) == 1, 20, "it waits")
    agent.signal(number)
    code = agent.wait(2)
    assert code == -signal.SIGTERM if number == signal.SIGTERM else code != 0
    until(lambda: not server.members("b39b"), 0.5, "its entry is gone")
    assert "drained" in server.log_lines("node_left")[0]


def test_b39c_all_terminated_at_once_end_without_restarts(cluster: Cluster) -> None:
    server = cluster.server()
    save_s = 8 if cluster.full else 2
    agents = [cluster.agent(server, "b39c", "2:3", "sleep=300", f"save={save_s}") for _ in range(3)]
    for agent in agents:
        agent.in_world(3, 30)
    for agent in agents:
        agent.signal(signal.SIGTERM)
    for agent in agents:
        agent.wait(save_s + 3)
    for agent in agents:
        assert agent.starts == 1
        assert len(agent.lines("saved")) == 1
        assert "rdzv_client/torch/handler.py" not in agent.log
    until(lambda: not server.members("b39c"), 3, "nobody is left")


def test_the_dead_end_of_the_exit_barrier_ends_on_both_nodes_within_seconds(
    cluster: Cluster,
) -> None:
    """One node has finished and waits for the other, whose worker then fails with a restart left.
    Stock torch: the first waits 300 s, the second its join timeout (TORCH.md 3.7)."""
    server = cluster.server()
    done = cluster.agent(server, "dead", "2", "sleep=1", restarts=3)
    late = cluster.agent(server, "dead", "2", "sleep=3", "exit=5", restarts=3)
    for agent in (done, late):
        agent.in_world(2, 30)
    until(lambda: late.lines("exit"), 20, "the late worker fails")
    began = time.monotonic()
    assert done.wait(10) == 0
    assert late.wait(10) != 0
    assert time.monotonic() - began < 10
    assert "finished; 1 of min 2 nodes are left" in late.log


def test_the_death_of_a_peer_releases_a_node_that_has_finished(cluster: Cluster) -> None:
    server = cluster.server()
    done = cluster.agent(server, "dead2", "2", "sleep=1", restarts=3)
    late = cluster.agent(server, "dead2", "2", "sleep=300", restarts=3)
    for agent in (done, late):
        agent.in_world(2, 30)
    until(lambda: server.log_lines("node_finished"), 10, "it waits in the exit barrier")
    late.kill_group()
    assert done.wait(10) == 0


def test_standbys_end_with_their_run_and_exit_0_if_it_succeeded(cluster: Cluster) -> None:
    server = cluster.server()
    agents = [cluster.agent(server, "spare", "2", "sleep=2") for _ in range(2)]
    for agent in agents:
        agent.in_world(2, 30)
    spare = cluster.agent(server, "spare", "2", "sleep=2")
    until(lambda: len(server.members("spare")) == 3, 20, "the standby is there")
    for agent in (*agents, spare):
        assert agent.wait(20) == 0
    assert "all 2 nodes finished" in spare.log
    assert spare.starts == 0


def test_a_killed_agent_s_orphans_do_not_keep_its_place(cluster: Cluster) -> None:
    """SIGKILL of the agent alone: its workers live on (F8), the node is lost all the same."""
    server = cluster.server()
    agents: list[Agent] = [cluster.agent(server, "orphan", "1:2", "sleep=300") for _ in range(2)]
    for agent in agents:
        agent.in_world(2, 30)
    agents[1].signal(signal.SIGKILL)
    agents[0].in_world(1, 8)
    assert agents[1].worker_pids(), "the orphan lives"
