"""B19, B23 (what they say of keys) and B26: nothing of one run is seen by another, and nothing stays."""

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from rdzv_client import Client, Generation
from rdzv_client.errors import GenerationEnded
from tests.e2e.conftest import Cluster
from tests.e2e.kit.nodes import Node
from tests.e2e.kit.processes import MARKER
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import stays, until

MB = 1_000_000


def pair(cluster: Cluster, server: Server, run: str, name: str) -> list[Node]:
    nodes = [cluster.node(server, run, min_nodes=2, name=f"{name}{i}") for i in (1, 2)]
    for node in nodes:
        node.joined(2, 20)
    return nodes


@pytest.mark.parametrize("scope", ["run", "generation"])
@pytest.mark.parametrize("end", ["finished", "killed"])
def test_b19_keys_of_a_run_are_gone_when_it_starts_again(
    cluster: Cluster, scope: str, end: str
) -> None:
    server = cluster.server()
    first = pair(cluster, server, "j1", "a")
    first[0].ask("set", key="k", value="old", scope=scope)
    assert first[1].ask("get", key="k", scope=scope)["value"] == "old"
    for node in first:
        if end == "killed":
            node.kill()
        else:
            node.ask("finished")
            node.ask("leave", kind="finished")
    until(lambda: not server.members("j1"), 20, "all of the first run are gone")
    second = pair(cluster, server, "j1", "b")
    for node in second:
        assert node.ask("get", key="k", scope=scope)["error"] == "WaitTimeout"
        assert node.ask("count", scope=scope)["value"] == 0
    assert second[0].ask("add", key="k", scope=scope)["value"] == 1


def test_b23_keys_and_barriers_of_one_run_are_nothing_to_another(cluster: Cluster) -> None:
    server = cluster.server()
    names = ("success", "failure", "killed", "broken", "steady")
    runs = {run: pair(cluster, server, run, run) for run in names}
    for scope in ("run", "generation"):
        runs["success"][0].ask("set", key="k", value="1", scope=scope)
    held = [nodes[0].start("barrier", name="b", timeout=150) for nodes in runs.values()]
    many = runs["success"][0].start("count_barrier", name="b", count=2, timeout=60)
    until(lambda: all(server.arrived(run, "b") == 1 for run in names), 10, "each waits in its own")
    runs["success"][1].ask("leave", kind="finished")
    runs["success"][0].ask("leave", kind="finished")
    runs["failure"][1].ask("leave", kind="failed", exit_code=1)
    for node in runs["killed"]:
        node.kill()
    runs["broken"][1].do("garbage")
    assert not runs["success"][0].outcome(held[0], 10)["good"]
    assert not runs["success"][0].outcome(many, 10)["good"]
    assert not runs["failure"][0].outcome(held[1], 10)["good"]
    until(lambda: server.log_lines("frame_too_large"), 10, "the server saw the garbage")
    steady = runs["steady"]
    stays(lambda: server.arrived("steady", "b") == 1, cluster.quiet_s(60, 3), "run 5 waits on")
    for scope in ("run", "generation"):
        assert steady[0].ask("check", keys=["k"], scope=scope)["value"] is False
    last = steady[1].start("barrier", name="b", timeout=150)
    assert steady[0].outcome(held[4], 10)["round"] == 1
    assert steady[1].outcome(last, 10)["round"] == 1
    assert server.generation("steady") == 1
    for line in server.log_lines("barrier_failed"):
        assert " run=steady " not in line


@contextmanager
def crowd(cluster: Cluster, server: Server, kind: str, numbers: range) -> Iterator[None]:
    """So many short runs by one process, which is killed at the end."""
    options = {"server": server.endpoint, "kind": kind, "numbers": list(numbers)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.kit.crowd", json.dumps(options)],
        stdout=subprocess.PIPE, text=True, env=os.environ | {MARKER: cluster.marker},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.timeout(600)
def test_b26_short_runs_leave_nothing_behind(cluster: Cluster) -> None:
    server = cluster.server("--run-keep", "10s" if cluster.full else "2s", "--log-level", "warning")
    each, batch = (667, 29) if cluster.full else (60, 20)
    with crowd(cluster, server, "close", range(20)):
        pass
    until(lambda: not server.runs(), 30, "what is allocated once is allocated")
    before = server.rss_bytes()
    for first in range(0, each, batch):
        for kind in ("close", "kill", "half"):
            with crowd(cluster, server, kind, range(first, first + batch)):
                pass
    until(lambda: not server.runs(), 60, f"no run is left: {list(server.runs())[:5]}")
    until(lambda: server.rss_bytes() - before <= 30 * MB, 10, "the memory is given back")


def rejoin(clients: list[Client]) -> list[Generation]:
    """The next generation of them all."""
    threads = [threading.Thread(target=client.join, args=(60,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [client.generation for client in clients if client.generation is not None]


@pytest.mark.timeout(600)
def test_b26_many_generations_of_one_run_do_not_add_up(cluster: Cluster) -> None:
    server = cluster.server("--log-level", "warning")
    generations, block = (500, 100) if cluster.full else (60, 20)
    clients = [
        Client(server.endpoint, run="long", min_nodes=2, name=f"n{i}", last_call_timeout_s=0)
        for i in range(2)
    ]
    with closing(clients[0]), closing(clients[1]):
        worlds: list[list[Generation]] = []
        sizes: list[int] = []
        for number in range(1, generations + 1):
            worlds.append(rejoin(clients))
            world = worlds[-1]
            assert [g.number for g in world] == [number, number]
            keys = [f"{number}/{i}" for i in range(100)]
            world[0].kv.multi_set(keys, [b"x" * 1024] * 100)
            meeting = threading.Thread(target=world[1].barrier, args=(f"b{number}",))
            meeting.start()
            assert world[0].barrier(f"b{number}").round == 1
            meeting.join(10)
            if number % block == 0:
                sizes.append(server.rss_bytes())
        shown = server.inside("long")
        assert (shown.keys, shown.run_keys) == (100, 0), "only the last generation's"
        assert shown.value_bytes < 2 * 100 * 1100
        assert worlds[-1][0].kv.list(f"{generations - 2}/") == []
        with pytest.raises(GenerationEnded):
            worlds[-3][0].kv.get(f"{generations - 2}/0", timeout=0)
        grown = [after - before for before, after in itertools.pairwise(sizes)]
        assert max(grown) < 5 * MB
