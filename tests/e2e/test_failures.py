"""B11, B12, B16, B17, B18: nodes die, fail, are replaced, and die in the middle of a rendezvous."""

import time

import pytest

from tests.e2e.conftest import Cluster
from tests.e2e.kit.agents import LEASE_S, Agent
from tests.e2e.kit.wait import stays, until

pytestmark = pytest.mark.torch


def world_of(agents: list[Agent], size: int, timeout_s: float, *, event: str = "start") -> None:
    for agent in agents:
        agent.in_world(size, timeout_s, event=event)


def test_b11a_survivors_of_a_killed_node_restart_their_workers_and_stay(cluster: Cluster) -> None:
    server = cluster.server()
    agents = [cluster.agent(server, "b11", "2:3", "sleep=300") for _ in range(3)]
    world_of(agents, 3, 30)
    victim = agents.pop()
    began = time.monotonic()
    victim.kill_group()
    for agent in agents:
        line = agent.in_world(2, 5)
        assert line["at"] - began < 5
    assert sorted(agent.lines()[-1]["RANK"] for agent in agents) == ["0", "1"]
    assert all(agent.code is None for agent in agents)
    (lost,) = server.log_lines("node_lost")
    assert "last_heard_s_ago=" in lost
    assert "its connection closed" in lost


def test_b12_the_node_with_rank_0_dies_five_times(cluster: Cluster) -> None:
    server, run = cluster.server(), "b12"
    work = ("gloo", "sleep=300")

    def start() -> Agent:
        return cluster.agent(server, run, "2:4", *work, restarts=10)

    agents = [start() for _ in range(4)]
    world_of(agents, 4, 40, event="all_reduce")
    for _ in range(5):
        generation = server.generation(run)
        old = {(a.lines()[-1]["MASTER_ADDR"], a.lines()[-1]["MASTER_PORT"]) for a in agents}
        (victim,) = [a for a in agents if a.lines()[-1]["RANK"] == "0"]
        agents.remove(victim)
        began = time.monotonic()
        victim.kill_group()
        status = server.live(run, 3, 10, above=generation)
        assert time.monotonic() - began < 10
        pids = [a.pid for a in agents]
        world_of(agents, 3, 15, event="all_reduce")
        masters = {(a.lines()[-1]["MASTER_ADDR"], a.lines()[-1]["MASTER_PORT"]) for a in agents}
        assert len(masters) == 1
        assert not masters & old, "a fresh port, never the dead one's"
        assert [a.pid for a in agents] == pids
        assert status.fence is not None
        agents.append(start())
        server.live(run, 4, 10 + 3, above=status.fence.generation)
        world_of(agents, 4, 20, event="all_reduce")
        assert all(a.lines("all_reduce")[-1]["good"] for a in agents)
    for agent in agents:
        assert agent.code is None
        assert "Traceback" not in _ours(agent.log)


def test_b16a_a_node_that_fails_for_good_does_not_end_the_others(cluster: Cluster) -> None:
    server = cluster.server()
    good = [cluster.agent(server, "b16a", "2:3", "sleep=300") for _ in range(2)]
    bad = cluster.agent(server, "b16a", "2:3", "sleep=1", "exit=7")
    world_of([*good, bad], 3, 30)
    assert bad.wait(20) != 0
    began = time.monotonic()
    for agent in good:
        assert agent.in_world(2, 5)["at"] - began < 5
    assert all(agent.code is None for agent in good)
    status = server.run("b16a")
    assert status is not None
    assert status.ended is not None
    assert "failed with exit code 7" in status.ended.reason
    fresh = cluster.agent(server, "b16a", "2:3", "sleep=300")
    world_of([*good, fresh], 3, 15)


def test_b16b_a_node_whose_script_is_missing_does_not_end_the_others(cluster: Cluster) -> None:
    server = cluster.server()
    good = [cluster.agent(server, "b16b", "2:3", "sleep=300") for _ in range(2)]
    bad = cluster.agent(server, "b16b", "2:3", script="/nonexistent/train.py")
    assert bad.wait(30) != 0
    world_of(good, 2, 10)
    assert all(agent.code is None for agent in good)
    assert server.run("b16b") is not None


def test_b16c_too_few_after_a_failure_ends_the_rest_with_the_reason(cluster: Cluster) -> None:
    server = cluster.server()
    good = [cluster.agent(server, "b16c", "3", "sleep=300") for _ in range(2)]
    bad = cluster.agent(server, "b16c", "3", "sleep=1", "exit=7")
    world_of([*good, bad], 3, 30)
    assert bad.wait(20) != 0
    began = time.monotonic()
    for agent in good:
        assert agent.wait(10) != 0
        assert time.monotonic() - began < 10
        assert "exit code 7" in agent.log
        assert "2 of min 3" in agent.log
        assert (
            agent.log.rstrip()
            .splitlines()[-1]
            .startswith("torch.distributed.elastic.rendezvous.api.RendezvousClosedError")
            or "RendezvousClosedError" in agent.log
        )


def test_a_worker_failure_with_restarts_left_is_one_more_generation(cluster: Cluster) -> None:
    server = cluster.server()
    once = str(cluster.folder / "failed-once")
    steady = cluster.agent(server, "again", "2", "sleep=4", restarts=3)
    flaky = cluster.agent(
        server, "again", "2", "sleep=1", "exit=3", f"fail-once={once}", restarts=3
    )
    assert steady.wait(60) == 0
    assert flaky.wait(20) == 0
    status = server.run("again")
    assert status is not None
    assert status.fence is not None
    assert status.fence.generation == 2
    assert flaky.starts == 2
    assert flaky.lines()[-1]["TORCHELASTIC_RESTART_COUNT"] == "1"


def test_b17_a_replacement_makes_the_world_whole_again(cluster: Cluster) -> None:
    server = cluster.server()
    work = ("gloo", "sleep=300")
    a1 = cluster.agent(server, "b17", "2", *work, restarts=3)
    a2 = cluster.agent(server, "b17", "2", *work, restarts=3)
    world_of([a1, a2], 2, 30, event="all_reduce")
    before = a1.lines("all_reduce")[-1]["pid"]
    a2.kill_group()
    until(
        lambda: (s := server.run("b17")) is not None and "1 of min 2" in s.reason,
        LEASE_S + 3, "the survivor waits as 1 of 2",
    )  # fmt: skip
    until(lambda: before not in a1.worker_pids(), LEASE_S + 3, "its worker is stopped")
    a3 = cluster.agent(server, "b17", "2", *work, restarts=3)
    status = server.live("b17", 2, 15, above=1)
    rows = [agent.in_world(2, 20, event="all_reduce", above=n) for agent, n in ((a1, 1), (a3, 0))]
    assert all(row["good"] for row in rows)
    assert rows[0]["MASTER_PORT"] == rows[1]["MASTER_PORT"]
    assert status.fence is not None
    assert rows[0]["RDZV_FENCE"] == rows[1]["RDZV_FENCE"] == str(status.fence)


def test_b17_without_a_replacement_the_survivor_gives_up_in_time(cluster: Cluster) -> None:
    server = cluster.server()
    patience_s = 12.0 if cluster.full else 4.0
    conf = {"join_timeout": str(patience_s)}
    a1 = cluster.agent(server, "b17v", "2", "sleep=300", conf=conf)
    a2 = cluster.agent(server, "b17v", "2", "sleep=300", conf=conf)
    world_of([a1, a2], 2, 30)
    a2.kill_group()
    until(lambda: (s := server.run("b17v")) is not None and "1 of min 2" in s.reason, 8, "1 of 2")
    entered = time.monotonic()
    assert a1.wait(patience_s + 5) != 0
    assert patience_s - 1 < time.monotonic() - entered < patience_s + 3
    assert "1 of min 2" in a1.log


def test_b18a_a_node_that_died_while_waiting_is_not_in_the_world(cluster: Cluster) -> None:
    server = cluster.server()
    c1 = cluster.node(server, "b18a", min_nodes=3, name="c1")
    x = cluster.node(server, "b18a", min_nodes=3, name="x")
    until(lambda: len(server.members("b18a")) == 2, 10, "two are there")
    x.kill()
    c2 = cluster.node(server, "b18a", min_nodes=3, name="c2")
    c2.wait_for("started", 10)
    until(
        lambda: {m.name for m in server.members("b18a")} == {"c1", "c2"}, 5, "the dead one is gone"
    )
    assert server.generation("b18a") == 0
    c3 = cluster.node(server, "b18a", min_nodes=3, name="c3")
    lines = [node.joined(3, 5) for node in (c1, c2, c3)]
    assert sorted(line["rank"] for line in lines) == [0, 1, 2]
    assert max(line["at"] for line in lines) - c3.wait_for("started", 1)["at"] < 1


def test_b18b_a_node_that_dies_right_after_the_rendezvous_hangs_nobody(cluster: Cluster) -> None:
    """Three agents; one is killed in the window of torch's rank exchange, where the others read its
    role from the store and any error would end them (TORCH.md 3.8)."""
    server = cluster.server()
    agents = [cluster.agent(server, "b18b", "3", "sleep=300", restarts=3) for _ in range(2)]
    until(lambda: len(server.members("b18b")) == 2, 30, "two wait")
    # The third stops itself before it can write its role: the window, held open.
    victim = cluster.agent(
        server, "b18b", "3", "sleep=300", restarts=3,
        stop_after_rendezvous=True,
    )  # fmt: skip
    until(lambda: server.generation("b18b") == 1, 20, "the world has formed")
    stays(lambda: not agents[0].lines(), 0.3, "the others are inside the exchange")
    victim.kill_group()
    until(
        lambda: (s := server.run("b18b")) is not None and s.reason.startswith("2 of min 3"),
        LEASE_S + 5, "they wait as 2 of 3",
    )  # fmt: skip
    assert all(agent.code is None for agent in agents)
    agents.append(cluster.agent(server, "b18b", "3", "sleep=300", restarts=3))
    server.live("b18b", 3, 15, above=1)
    world_of(agents, 3, 10)
    assert {line["TORCHELASTIC_RESTART_COUNT"] for a in agents for line in a.lines()} == {"0"}


def _ours(log: str) -> str:
    """The part of a log that speaks of this project's code."""
    return "\n".join(line for line in log.splitlines() if "rdzv_client" in line and "File" in line)
