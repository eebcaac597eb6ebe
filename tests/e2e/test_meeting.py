"""B33, B34, and workers at barriers: nobody is counted twice, and a timeout says who is missing."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import Cluster
from tests.e2e.kit.agents import LEASE_S
from tests.e2e.kit.nodes import Node
from tests.e2e.kit.proxy import Proxy
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import stays, until

PAUSING = Path(__file__).parent / "kit" / "pausing.py"


def world(cluster: Cluster, server: Server | str, run: str, size: int) -> list[Node]:
    """Nodes of one generation, by group rank."""
    nodes = [
        cluster.node(server, run, min_nodes=size, name=f"c{i}", rejoin=False)
        for i in range(1, size + 1)
    ]
    for node in nodes:
        node.joined(size, 20)
    return sorted(nodes, key=lambda node: node.rank)


@contextmanager
def never_more_than(server: Server, run: str, barrier: str, members: int) -> Iterator[list[int]]:
    """Watch in the status how many have arrived; more than there are members is an error."""
    over, seen = threading.Event(), list[int]()

    def watch() -> None:
        while not over.wait(0.02):
            seen.append(server.arrived(run, barrier))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield seen
    finally:
        over.set()
        watching.join()
    assert seen
    assert max(seen) <= members


def test_b33_a_member_that_retries_counts_once_and_a_stranger_not_at_all(cluster: Cluster) -> None:
    server = cluster.server()
    proxy = Proxy("127.0.0.1", server.port)
    try:
        others = [
            cluster.node(server, "b33", min_nodes=3, max_nodes=3, name=f"c{i}") for i in (2, 3)
        ]
        c1 = cluster.node(proxy.endpoint, "b33", min_nodes=3, max_nodes=3, name="c1")
        c2, c3 = others
        (fence,) = {node.joined(3, 20)["fence"] for node in (c1, c2, c3)}
        stranger = cluster.node(server, "b33", min_nodes=3, max_nodes=3, name="stranger")
        until(lambda: len(server.members("b33")) == 4, 20, "the stranger stands by")
        with never_more_than(server, "b33", "b", 3) as seen:
            arrivals = [c1.start("barrier", name="b", timeout=60)]
            until(lambda: server.arrived("b33", "b") == 1, 10, "c1 is there")
            proxy.drop()
            until(lambda: " restored after " in c1.log, 10, "c1 is back")
            arrivals.append(c2.start("barrier", name="b", timeout=60))
            until(lambda: server.arrived("b33", "b") == 2, 10, "c2 is there")
            refused = stranger.ask("strange_barrier", name="b", fence=fence, timeout=10)
            assert refused["error"] == "NotAMember"
            assert stranger.node_id in refused["message"]
            stays(lambda: server.arrived("b33", "b") == 2, 2.0, "c1 twice and c2 are two of three")
            assert not c1.ended(arrivals[0])
            assert not c2.ended(arrivals[1])
            told_at = time.monotonic()
            arrivals.append(c3.start("barrier", name="b", timeout=60))
            lines = [n.outcome(a, 10) for n, a in zip((c1, c2, c3), arrivals, strict=True)]
        assert all(line["good"] and line["round"] == 1 for line in lines)
        assert all(line["at"] >= told_at for line in lines), "nobody before c3 came"
        assert {1, 2} <= set(seen)
        assert server.generation("b33") == 1
    finally:
        proxy.close()


def test_b33_after_a_kill_of_all_the_count_starts_at_0(cluster: Cluster) -> None:
    server = cluster.server()
    first = world(cluster, server, "b33r", 3)
    for node in first[:2]:
        node.start("barrier", name="b", timeout=60)
    until(lambda: server.arrived("b33r", "b") == 2, 10, "two of three are there")
    for node in first:
        node.kill()
    second = world(cluster, server, "b33r", 3)
    assert server.inside("b33r").barriers == []
    early = [node.start("barrier", name="b", timeout=60) for node in second[:2]]
    until(lambda: server.arrived("b33r", "b") == 2, 10, "two of the new three are there")
    stays(lambda: not any(n.all("outcome") for n in second), 0.5, "two are not enough")
    early.append(second[2].start("barrier", name="b", timeout=60))
    lines = [node.outcome(tag, 10) for node, tag in zip(second, early, strict=True)]
    assert [line["round"] for line in lines] == [1, 1, 1]


def test_b34a_a_timeout_names_who_is_missing_and_when_it_was_heard(cluster: Cluster) -> None:
    server = cluster.server()
    nodes = world(cluster, server, "b34a", 4)
    missing = nodes.pop(2)
    tags = [node.start("barrier", name="ckpt", timeout=3) for node in nodes]
    lines = [node.outcome(tag, 20) for node, tag in zip(nodes, tags, strict=True)]
    for line in lines:
        assert line["error"] == "BarrierTimeout"
        assert "barrier 'ckpt' of run 'b34a' generation" in line["message"]
        assert "3 of 4" in line["message"]
        assert missing.name in line["message"]
        assert re.search(r"rank 2\b.*alive, last heard [\d.]+ s ago", line["message"])
        assert not any(f"{node.name}," in line["message"] for node in nodes)
        assert line["took"] > 2.5, "from the first arrival, which may be another's"
    assert len({line["message"] for line in lines}) == 1, "one decision"
    assert server.generation("b34a") == 1, "a barrier that failed ends no generation"
    (logged,) = server.log_lines("barrier_failed")
    assert missing.name in logged


def test_b34b_a_member_that_dies_ends_the_barrier_for_all(cluster: Cluster) -> None:
    server = cluster.server()
    nodes = world(cluster, server, "b34b", 4)
    victim = nodes.pop(2)
    tags = [node.start("barrier", name="ckpt", timeout=60) for node in nodes]
    until(lambda: server.arrived("b34b", "ckpt") == 3, 10, "three are there")
    died_at = time.monotonic()
    victim.kill()
    lines = [node.outcome(tag, 20) for node, tag in zip(nodes, tags, strict=True)]
    for line in lines:
        assert line["error"] in ("BarrierBroken", "GenerationEnded")
        assert victim.name in line["message"]
        assert "lost" in line["message"]
        assert line["at"] - died_at < LEASE_S + 1


def test_b34c_a_wait_names_the_key_that_is_missing(cluster: Cluster) -> None:
    server = cluster.server()
    nodes = world(cluster, server, "b34c", 2)
    scopes = ("generation", "run")
    for scope in scopes:
        nodes[0].ask("set", key="k1", value="there", scope=scope)
    tags = [nodes[1].start("wait", keys=["k1", "k2"], timeout=3, scope=s) for s in scopes]
    lines = [nodes[1].outcome(tag, 20) for tag in tags]
    for line in lines:
        assert line["error"] == "WaitTimeout"
        assert "'k2'" in line["message"]
        assert "k1" not in line["message"]
        assert "run 'b34c'" in line["message"]
        assert line["took"] > 2.9
    fence = nodes[1].joined(2, 1)["fence"]
    assert f"generation {fence}" in lines[0]["message"]
    assert "generation" not in lines[1]["message"], "a key of the run belongs to none"


@pytest.mark.torch
def test_workers_of_all_nodes_meet_and_gather(cluster: Cluster) -> None:
    server = cluster.server()
    script = cluster.folder / "meet.py"
    script.write_text(
        "import json, sys\n"
        "from rdzv_client import Client\n"
        "with Client.from_env() as client:\n"
        "    g = client.generation\n"
        "    rounds = [g.barrier('x', payload=f'{r}/{g.rank}', timeout=60) for r in (1, 2)]\n"
        "    pair = g.barrier('pair', members=[0, 3], timeout=60) if g.rank in (0, 3) else None\n"
        "    vote = g.barrier('vote', vote=g.rank != 2, timeout=60)\n"
        "    row = {'rank': g.rank, 'rounds': [m.round for m in rounds],\n"
        "           'payloads': [[p.decode() for p in m.payloads] for m in rounds],\n"
        "           'pair': pair is not None and pair.round,\n"
        "           'committed': vote.committed, 'against': vote.against}\n"
        "with open(sys.argv[1], 'a') as file:\n"
        "    file.write(json.dumps(row) + '\\n')\n"
    )
    agents = [cluster.agent(server, "meet", "2", nproc=2, script=str(script)) for _ in range(2)]
    for agent in agents:
        assert agent.wait(60) == 0, agent.log
    rows = [json.loads(line) for a in agents for line in a.worker_log_path.read_text().splitlines()]
    assert sorted(row["rank"] for row in rows) == [0, 1, 2, 3]
    for row in rows:
        assert row["rounds"] == [1, 2]
        assert row["payloads"] == [[f"{r}/{i}" for i in range(4)] for r in (1, 2)]
        assert row["pair"] == (1 if row["rank"] in (0, 3) else False)
        assert (row["committed"], row["against"]) == (False, [2])


@pytest.mark.torch
def test_a_worker_that_stood_still_beyond_its_lease_loses_its_wait_and_not_its_generation(
    cluster: Cluster,
) -> None:
    """For its agent and for everybody else nothing has happened; it was told that the generation had ended."""
    server = cluster.server()
    agents = [
        cluster.agent(server, "pause", "2", restarts=0, script=str(PAUSING)) for _ in range(2)
    ]
    found = until(
        lambda: [row for agent in agents for row in agent.lines("waits")], 60, "rank 0 waits"
    )
    pid = found[0]["pid"]
    until(lambda: server.arrived("pause", "alone") == 1, 20, "the server sees it wait")
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: not server.arrived("pause", "alone"), 4 * LEASE_S, "the server gives it up")
    finally:
        os.kill(pid, signal.SIGCONT)
    for agent in agents:
        assert agent.wait(60) == 0, agent.log
    (lost,) = [row for agent in agents for row in agent.lines("lost")]
    assert not lost["ended"]
    assert "lost" in lost["reason"]
    met = [row for agent in agents for row in agent.lines("met")]
    assert [row["ended"] for row in met] == [False, False]
    assert len(met) == 2, "nobody was restarted"
