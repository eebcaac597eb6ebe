"""B13, S26-S29, L7, L12: the server is killed, stopped, started again, short of disk, and damaged."""

import contextlib
import logging
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rdzv_client import Client
from rdzv_client.admin import Admin
from tests.e2e.conftest import Cluster, need_root
from tests.e2e.kit.agents import LEASE_S, Agent
from tests.e2e.kit.herdload import HerdLoad
from tests.e2e.kit.keys import rdzv
from tests.e2e.kit.nodes import Node
from tests.e2e.kit.processes import alive
from tests.e2e.kit.proxy import Proxy
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import stays, until

STEADY = str(Path(__file__).parent / "kit" / "steady.py")
DEMO = Path(__file__).resolve().parents[2] / "deploy" / "demo" / "run.py"

BACK_S = 15.0
"""Patience for all clients to be back. The measured times are printed; the bounds of L7 are for benches."""

STOPPED_S = 5.0
"""L12: from SIGTERM to the end."""


def durable(cluster: Cluster, *arguments: str, **options: Any) -> Server:
    """A server that keeps its state."""
    return cluster.server("--data-dir", str(cluster.folder / "state"), *arguments, **options)


def trio(cluster: Cluster, server: Server, run: str, **options: Any) -> list[Node]:
    """Three raw nodes in a world of three, which may become smaller."""
    options = {"min_nodes": 2, "max_nodes": 3, **options}
    nodes = [cluster.node(server, run, name=f"n{i}", **options) for i in (1, 2, 3)]
    for node in nodes:
        node.joined(3, 20)
    return nodes


def back(server: Server, run: str, count: int, timeout_s: float) -> None:
    """Wait until so many participants have their connection again."""

    def states() -> list[str]:
        return [member.state for member in server.members(run)]

    until(
        lambda: states().count("participant") == count, timeout_s,
        lambda: f"{count} participants of {run} are back: {states()}",
    )  # fmt: skip


def said(agent: Agent, what: str) -> int:
    """How many lines of an agent say so of its connection."""
    return sum("connection to" in line and what in line for line in agent.log.splitlines())


# --- training -----------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.timeout(240)
def test_b13_training_does_not_notice_that_the_server_was_killed_and_a_node_can_join_after(
    cluster: Cluster,
) -> None:
    server = durable(cluster)
    work = ("gloo", "sleep=600")
    agents = [cluster.agent(server, "b13", "2:4", *work) for _ in range(3)]
    for agent in agents:
        agent.in_world(3, 40, event="all_reduce")
    first = server.run("b13")
    assert first is not None
    assert first.fence is not None
    pids = {agent.name: agent.worker_pids() for agent in agents}
    assert all(pids.values())

    for times, outage_s in enumerate((5, 40) if cluster.full else (2,), 1):
        server.kill()
        stays(
            lambda: all(alive(pid) for each in pids.values() for pid in each),
            outage_s, "workers live while there is no server",
        )  # fmt: skip
        server.start()
        status = server.live("b13", 3, 5)
        back(server, "b13", 3, 5)
        assert status.fence == first.fence
        for agent in agents:
            until(lambda a=agent, n=times: said(a, "restored") == n, 5, "it says so")  # type: ignore[misc]
            assert said(agent, "lost:") == times, agent.log
    assert {agent.name: agent.worker_pids() for agent in agents} == pids
    assert [agent.starts for agent in agents] == [1, 1, 1]
    assert {agent.lines()[0]["TORCHELASTIC_RESTART_COUNT"] for agent in agents} == {"0"}
    assert "node_lost" not in server.log
    assert len({line.split("epoch=")[1] for line in server.log_lines("ready")}) == 1

    fourth = cluster.agent(server, "b13", "2:4", *work)
    until(lambda: len(server.members("b13")) == 4, 30, "the fourth has come")
    came = time.monotonic()
    grown = server.live("b13", 4, 10, above=first.fence.generation)
    rows = [a.in_world(4, 10, event="all_reduce") for a in (*agents, fourth)]
    assert all(row["good"] for row in rows)
    assert grown.fence is not None
    assert grown.fence.epoch == first.fence.epoch
    assert grown.fence.generation == first.fence.generation + 1
    print(
        f"world of 4 with its first all_reduce {max(r['at'] for r in rows) - came:.1f} s after it came"
    )


@pytest.mark.torch
@pytest.mark.full
@pytest.mark.timeout(240)
def test_an_agent_that_died_while_the_server_was_away_is_missed_by_the_others(
    cluster: Cluster,
) -> None:
    server = durable(cluster)
    agents = [cluster.agent(server, "gone", "2:3", "gloo", "sleep=600") for _ in range(3)]
    for agent in agents:
        agent.in_world(3, 40, event="all_reduce")
    server.kill()
    agents.pop().kill_group()
    server.start()
    server.live("gone", 2, LEASE_S + 5, above=1)
    for agent in agents:
        assert agent.in_world(2, 15, event="all_reduce")["good"]
        assert agent.lines()[-1]["TORCHELASTIC_RESTART_COUNT"] == "0"


@pytest.mark.torch
@pytest.mark.timeout(180)
def test_collectives_go_on_without_the_store_that_was_lost_and_the_next_generation_has_a_new_one(
    cluster: Cluster,
) -> None:
    """worker_store=server: torch never connects a store anew, and does not need it for what runs."""
    server = durable(cluster)
    options: dict[str, Any] = {"script": STEADY, "conf": {"worker_store": "server"}, "restarts": 3}
    agents = [cluster.agent(server, "served", "2:3", **options) for _ in range(2)]
    for agent in agents:
        agent.in_world(2, 40, event="step")
    old = {agent.lines()[-1]["MASTER_PORT"] for agent in agents}
    server.kill()
    server.start()
    server.live("served", 2, 5)
    back(server, "served", 2, 5)
    steps = [len(agent.lines("step")) for agent in agents]
    for agent, done in zip(agents, steps, strict=True):
        agent.in_world(2, 20, event="step", above=done + 10)
        assert all(row["good"] for row in agent.lines("step"))
        assert agent.starts == 1
    shown = rdzv(server.endpoint, "status", "served").stdout
    print(shown)
    assert "lost" in shown, "status says what became of the store"

    agents.append(cluster.agent(server, "served", "2:3", **options))
    server.live("served", 3, 40, above=1)
    for agent in agents:
        assert agent.in_world(3, 30, event="step")["good"]
    new = {agent.lines()[-1]["MASTER_PORT"] for agent in agents}
    assert len(new) == 1
    assert new != old
    shown = rdzv(server.endpoint, "status", "served").stdout
    assert "workers' store: 3 of 3 connected" in shown


# --- nodes that come and go meanwhile -----------------------------------------------------------


def test_b13_a_node_that_died_while_the_server_was_away_is_lost_a_lease_after_it_is_back(
    cluster: Cluster,
) -> None:
    server = durable(cluster)
    *survivors, victim = trio(cluster, server, "died", lease_s=2)
    server.kill()
    victim.kill()
    server.start()
    ready = time.monotonic()
    for node in survivors:
        node.joined(2, 2 + 5, above=1)
    (lost,) = server.log_lines("node_lost")
    assert f"node={victim.node_id} " in lost
    formed = min(node.wait_for("joined", 1, count=2)["at"] for node in survivors)
    assert formed - ready > 1, "it had a lease to come back"
    print(
        f"re-formed {formed - ready:.1f} s after READY, lease 2 s: {lost.partition('reason=')[2]}"
    )


def test_b13_a_node_that_came_while_the_server_was_away_gets_in_after(cluster: Cluster) -> None:
    server = durable(cluster)
    room: dict[str, Any] = {"max_nodes": 4, "last_call_timeout_s": 0.5}
    nodes = trio(cluster, server, "came", **room)
    server.kill()
    nodes.append(cluster.node(server, "came", min_nodes=2, name="n4", **room))
    until(lambda: nodes[-1].all("started"), 10, "it is up, and finds nobody")
    stays(lambda: not nodes[-1].all("refused"), 0.5, "it keeps trying")
    server.start()
    fences = {node.joined(4, 10, above=1)["fence"] for node in nodes}
    assert fences == {f"{server.ready['epoch']}.2"}
    assert "node_lost" not in server.log


def test_b13_a_node_that_comes_after_two_restarts_is_taken_for_nobody_else(
    cluster: Cluster,
) -> None:
    """Its session is a new one: it must not be told what was the answer to somebody else's requests."""
    server = durable(cluster)
    room: dict[str, Any] = {"max_nodes": 4, "last_call_timeout_s": 0.5}
    nodes = trio(cluster, server, "twice", **room)
    for _ in range(2):
        server.kill()
        server.start()
        back(server, "twice", 3, 10)
    nodes.append(cluster.node(server, "twice", min_nodes=2, name="n4", **room))
    rows = [node.joined(4, 10, above=1) for node in nodes]
    assert sorted(row["rank"] for row in rows) == [0, 1, 2, 3]
    assert [row["number"] for row in rows] == [2] * 4
    assert len(nodes[-1].all("joined")) == 1


# --- what is in progress ------------------------------------------------------------------------


def test_b13_barriers_and_waits_in_progress_are_completed_after_a_kill(cluster: Cluster) -> None:
    server = durable(cluster)
    n1, n2, n3 = trio(cluster, server, "waits")
    n1.ask("set", key="before", value="kept")
    n1.ask("set", key="before", value="too", scope="run")
    waits = [
        n1.start("barrier", name="meet", payload="one"),
        n1.start("count_barrier", name="crowd", count=3),
        n1.start("wait", keys=["before", "later"]),
    ]
    others = [
        n2.start("barrier", name="meet", payload="two"),
        n2.start("count_barrier", name="crowd", count=3),
        n2.start("get", key="later", timeout=60),
        n2.start("get", key="of the run", timeout=60, scope="run"),
    ]
    until(lambda: server.arrived("waits", "meet") == 2, 5, "two wait at the barrier")
    until(lambda: server.arrived("waits", "crowd") == 2, 5, "two are counted")
    assert n1.ask("barrier", name="alone", timeout=0.1)["error"] == "BarrierTimeout"

    server.kill()
    server.start()
    back(server, "waits", 3, 10)
    assert server.arrived("waits", "meet") == 2
    assert not n1.all("outcome")
    assert n3.ask("get", key="before")["value"] == "kept"
    assert n3.ask("get", key="before", scope="run")["value"] == "too"
    n3.ask("set", key="later", value="now")
    n3.ask("set", key="of the run", value="now", scope="run")
    met = n3.ask("barrier", name="meet", payload="three")
    n3.ask("count_barrier", name="crowd", count=3)
    for node, tags in ((n1, waits), (n2, others)):
        outcomes = [node.outcome(tag, 10) for tag in tags]
        assert all(one["good"] for one in outcomes), outcomes
        assert outcomes[0]["payloads"] == met["payloads"]
        assert outcomes[0]["round"] == met["round"] == 1
    assert sorted(met["payloads"]) == ["one", "three", "two"]
    # A round that was decided before the kill is the same for one who comes to it only now.
    same = n3.ask("barrier", name="alone", timeout=5)
    assert same["error"] == "BarrierTimeout", same
    assert {node.number for node in (n1, n2, n3)} == {1}
    assert not any(node.all("ended") for node in (n1, n2, n3))


class Told(logging.Handler):
    """What the client library logs in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def count(self, what: str) -> int:
        """How many lines say so."""
        return sum(what in line for line in self.lines)


@contextlib.contextmanager
def listening() -> Iterator[Told]:
    log, told = logging.getLogger("rdzv"), Told()
    log.addHandler(told)
    try:
        yield told
    finally:
        log.removeHandler(told)


@pytest.mark.timeout(180)
def test_b13d_l12_sigterm_ends_at_once_tells_the_clients_and_their_waits_outlive_it(
    cluster: Cluster,
) -> None:
    """In-process clients: of 100 (in short 20), every fifth waits for something."""
    server = durable(cluster)
    size = 100 if cluster.full else 20
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(listening())
        pool = stack.enter_context(ThreadPoolExecutor(size))
        clients = [
            Client(server.endpoint, run="b13d", min_nodes=size, name=f"c{i}", lease_s=10)
            for i in range(size)
        ]
        for client in clients:
            stack.callback(client.close)
        worlds = list(pool.map(lambda client: client.join(timeout=60), clients))
        waiting = list(range(0, size, 5))
        ranks = [worlds[i].rank for i in (*waiting[::2], 1)]  # 1 comes to the barrier at the end
        ends: list[Future[Any]] = [
            pool.submit(worlds[i].barrier, "meet", members=ranks, payload=b"p")
            if i in waiting[::2]
            else pool.submit(worlds[i].kv.get, "later", 60)
            for i in waiting
        ]
        until(lambda: server.arrived("b13d", "meet") == len(ranks) - 1, 10, "they wait")
        for i in waiting:  # behind the wait on the same connection: so the server has that as well
            flight = clients[i].engine.session._in_flight
            until(lambda flight=flight: len(list(flight)) == 1, 5, "it waits")  # type: ignore[misc]
            worlds[i].kv.check(["x"])

        began = time.monotonic()
        assert server.stop(STOPPED_S) == 0
        stopped_s = time.monotonic() - began
        until(lambda: told.count("shutting down") == size, 5, "all are told")
        assert not any(end.done() for end in ends)

        server.start()
        ready = time.monotonic()
        until(lambda: told.count("restored after") == size, BACK_S, "all are back")
        back_s = time.monotonic() - ready
        worlds[1].kv.set("later", b"now")
        assert len(worlds[1].barrier("meet", members=ranks, payload=b"p").payloads) == len(ranks)
        for i, end in zip(waiting, ends, strict=True):
            if i in waiting[::2]:
                assert end.result(10).payloads == [b"p"] * len(ranks)
            else:
                assert end.result(10) == b"now"
        assert not any(world.ended for world in worlds)
    print(
        f"{size} clients: server stopped in {stopped_s:.2f} s, all back {back_s:.2f} s after READY"
    )


# --- under load ---------------------------------------------------------------------------------


@pytest.mark.timeout(900)
def test_s26_l7_counters_and_barriers_are_exact_over_many_kills_and_all_come_back(
    cluster: Cluster,
) -> None:
    kills, size, pace_s = (50, 200, 0.2) if cluster.full else (5, 20, 0.05)
    server, rng = durable(cluster), random.Random(13)
    slowest, medians = [], []
    with HerdLoad(cluster, server, "herd", size, pace_s=pace_s) as herd:
        fences = [_fence(herd.fence)]
        for number in range(kills):
            # A moment of the load, or, every fifth time, of the herd's return.
            pause_s = 0.01 if number % 5 == 4 else rng.uniform(0.05, 0.6)
            stays(lambda: herd.alive, pause_s, "the clients work")
            server.kill()
            server.start()
            ready = time.monotonic()
            if number % 5 != 3:
                took = herd.back(server, ready, BACK_S)
                slowest.append(took[-1])
                medians.append(took[len(took) // 2])
            status = server.run("herd")
            assert status is not None
            assert status.fence is not None
            fences.append((status.fence.epoch, status.fence.generation))
        end = herd.stop()
    check(end, size)
    assert fences == sorted(fences), "they never fall"
    assert set(fences) == {_fence(herd.fence)}
    assert "node_lost" not in server.log
    print(
        f"{kills} kills, {size} clients: counter {end['counter']} of {end['added']}, "
        f"{end['rounds'][0]} rounds; back after READY: median {max(medians):.2f} s at worst, the last "
        f"{max(slowest):.2f} s at worst"
    )


@pytest.mark.timeout(300)
def test_l12_requests_that_meet_a_stopping_server_are_done_by_the_next_one(
    cluster: Cluster,
) -> None:
    """Clients that always have a request under way: at every SIGTERM some of them meet the end."""
    stops, size = (20, 100) if cluster.full else (3, 20)
    server = durable(cluster)
    took = []
    with HerdLoad(cluster, server, "stops", size, pace_s=0.0, every=25) as herd:
        for _ in range(stops):
            assert server.stop(STOPPED_S) == 0
            server.start()
            took.append(herd.back(server, time.monotonic(), BACK_S)[-1])
        end = herd.stop()
    check(end, size)
    print(
        f"{stops} stops, {size} clients: counter {end['counter']}, the last back {max(took):.2f} s"
    )


def check(end: dict[str, Any], size: int) -> None:
    """What a herd has done was done once, and told alike to all."""
    assert not end["faults"], (len(end["faults"]), end["faults"][:2])
    assert not end["ended"], end["ended"][:2]
    assert end["exact"], "each sum was told once"
    assert end["counter"] == end["added"]
    assert len(end["rounds"]) == 1, "all were in as many rounds"
    assert end["run_counter"] == end["rounds"][0] * size


def _fence(text: str) -> tuple[int, int]:
    epoch, _, generation = text.partition(".")
    return int(epoch), int(generation)


# --- without state ------------------------------------------------------------------------------


def test_s29_without_state_a_restart_is_the_end_of_every_generation(cluster: Cluster) -> None:
    server = cluster.server("--state", "memory")
    nodes = [cluster.node(server, "s29", min_nodes=2, name=f"n{i}") for i in (1, 2)]
    old = {node.joined(2, 20)["fence"] for node in nodes}
    wait = nodes[0].start("get", key="never", timeout=60)
    server.kill()
    server.start()
    for node in nodes:
        ended = node.wait_for("ended", 10)
        assert ended["kind"] == "server_restarted"
        assert ended["number"] == 1
    assert nodes[0].outcome(wait, 5)["error"] == "UnknownEpoch"  # a GenerationEnded
    new = {node.wait_for("joined", 10, count=2)["fence"] for node in nodes}
    assert len(old) == len(new) == 1
    assert _fence(new.pop()) > _fence(old.pop())


@pytest.mark.torch
@pytest.mark.full
@pytest.mark.timeout(240)
def test_s29_without_state_agents_restart_their_workers_once_in_a_new_generation(
    cluster: Cluster,
) -> None:
    server = cluster.server("--state", "memory")
    agents = [cluster.agent(server, "s29a", "2", "gloo", "sleep=600") for _ in range(2)]
    old = {agent.in_world(2, 40, event="all_reduce")["RDZV_FENCE"] for agent in agents}
    server.kill()
    server.start()
    rows = [agent.in_world(2, 30, event="all_reduce", above=1) for agent in agents]
    assert not {row["RDZV_FENCE"] for row in rows} & old
    assert all(row["good"] for row in rows)
    assert [agent.starts for agent in agents] == [2, 2]
    assert all(agent.code is None for agent in agents)


# --- the database -------------------------------------------------------------------------------


def refusal(folder: Path, *more: str) -> str:
    """A server that must not start; the one line that it says."""
    done = subprocess.run(
        [sys.executable, "-m", "rdzv_server", "--port", "0", "--data-dir", str(folder), *more],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done
    assert not done.stdout
    lines = [line for line in done.stderr.splitlines() if not line.startswith("timestamp=")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_s30_a_second_server_on_the_same_state_is_refused_in_one_line(cluster: Cluster) -> None:
    server = durable(cluster)
    node = cluster.node(server, "one", min_nodes=1)
    node.joined(1, 20)
    folder = cluster.folder / "state"
    line = refusal(folder)
    assert str(folder) in line
    assert f"in use by another server (process {server.pid})" in line
    node.ask("set", key="still", value="here")
    assert server.generation("one") == 1
    assert (folder.stat().st_mode & 0o777) == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("where", ["value", pytest.param("page", marks=pytest.mark.full)])
def test_s27_a_damaged_database_is_named_and_not_served_until_it_is_repaired(
    cluster: Cluster, where: str
) -> None:
    server = durable(cluster)
    node = cluster.node(server, "damaged", min_nodes=1)
    node.joined(1, 20)
    values = {f"k{number}": f"needle-{number:02d}" * 100 for number in range(60)}
    node.ask("multi_set", keys=list(values), values=list(values.values()), scope="run")
    assert server.stop(STOPPED_S) == 0
    path = cluster.folder / "state" / "rdzv.db"
    data = bytearray(path.read_bytes())
    at = data.index(b"needle-30") if where == "value" else len(data) // 2 // 4096 * 4096
    for place in range(at, at + (1 if where == "value" else 16)):
        data[place] ^= 0x10
    path.write_bytes(data)
    line = refusal(path.parent)
    print(line)
    assert str(path) in line
    assert "rdzv-server --repair" in line
    refusal(path.parent)  # and again: nothing was made good in silence
    assert path.read_bytes() == bytes(data)

    mended = subprocess.run(
        [sys.executable, "-m", "rdzv_server", "--data-dir", str(path.parent), "--repair"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    print(mended.stdout)
    assert mended.returncode == 0, mended.stderr
    assert f"{path}: kept " in mended.stdout
    server.start()
    node.wait_for("joined", 15, count=2)
    kept = node.ask("count", prefix="k", scope="run")["value"]
    print(f"{kept} of {len(values)} keys are there after the repair")
    assert 0 < kept <= len(values)


SMALL_DISK = 'mkdir -p "$0" && mount -t tmpfs -o size=1m,mode=700 tmpfs "$0" && exec "$@"'


class SmallDisk:
    """A server with its state on a file system of 1 MiB, which only its own namespace has."""

    def __init__(self, cluster: Cluster) -> None:
        need_root("unshare", "mount")
        self.folder = cluster.folder / "small"
        self.server = cluster.server(
            "--data-dir", str(self.folder / "state"),
            prefix=["unshare", "--mount", "sh", "-c", SMALL_DISK, str(self.folder)],
        )  # fmt: skip
        self._filler = Path(f"/proc/{self.server.pid}/root{self.folder}/filler")

    def fill(self) -> None:
        """Take all that is left."""
        with open(self._filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass

    def make_room(self) -> None:
        self._filler.unlink()


@pytest.mark.root
def test_s28_a_full_disk_holds_up_what_must_be_stored_and_costs_no_node(cluster: Cluster) -> None:
    disk = SmallDisk(cluster)
    server = disk.server
    n1, n2, n3 = trio(cluster, server, "full", lease_s=1)
    n1.ask("set", key="k", value="old")
    disk.fill()
    waiting = [(n1, n1.start("set", key="k", bytes=200_000))]
    until(lambda: server.log_lines("storage_failed"), 10, "it cannot be stored")
    read = n2.start("get", key="k", timeout=60)
    added = n3.start("add", key="n")
    waiting += [(n3, added)] + [(node, node.start("barrier", name="meet")) for node in (n1, n2, n3)]
    stays(
        lambda: not any(node.ended(tag) for node, tag in waiting) and "node_lost" not in server.log,
        3 * 1, "for three leases nothing is acknowledged, and nobody is lost",
    )  # fmt: skip
    seen = n2.ended(read)
    assert seen is None or seen["value"] == "old", "what is not stored cannot be read"
    (line,) = server.log_lines("storage_failed")
    assert str(disk.folder / "state" / "rdzv.db") in line
    assert "make room" in line

    disk.make_room()
    for node, tag in (*waiting, (n2, read)):
        outcome = node.outcome(tag, 10)
        assert outcome["good"], outcome
    until(lambda: server.log_lines("storage_works_again"), 5, "it is as before")
    assert n3.ask("add", key="n")["value"] == 2
    assert len(n2.ask("get", key="k")["value"]) == 200_000
    assert not any(node.all("ended") for node in (n1, n2, n3))
    assert server.process is not None
    assert server.process.poll() is None
    assert _read_only(server) == ""


@pytest.mark.root
def test_s28_status_says_that_and_why_nothing_can_be_stored(cluster: Cluster) -> None:
    disk = SmallDisk(cluster)
    server = disk.server
    (n1, *_) = trio(cluster, server, "full")
    disk.fill()
    tag = n1.start("set", key="k", bytes=200_000)
    until(lambda: server.log_lines("storage_failed"), 10, "it cannot be stored")
    shown = rdzv(server.endpoint, "status", "full")
    assert shown.returncode == 0, shown.stderr
    assert "READ-ONLY: " in shown.stdout
    assert str(disk.folder / "state" / "rdzv.db") in shown.stdout
    assert "make room" in shown.stdout
    disk.make_room()
    assert n1.outcome(tag, 10)["good"]
    assert "READ-ONLY" not in rdzv(server.endpoint, "status", "full").stdout


@pytest.mark.root
def test_s28_a_node_whose_connection_breaks_while_the_disk_is_full_is_let_in_again(
    cluster: Cluster,
) -> None:
    disk = SmallDisk(cluster)
    server = disk.server
    with contextlib.closing(Proxy("127.0.0.1", server.port)) as proxy:
        nodes = [
            cluster.node(where, "again", min_nodes=2, name=f"n{i}", lease_s=1)
            for i, where in enumerate((server.endpoint, proxy.endpoint))
        ]
        for node in nodes:
            node.joined(2, 20)
        disk.fill()
        tag = nodes[0].start("set", key="k", bytes=200_000)
        until(lambda: server.log_lines("storage_failed"), 10, "it cannot be stored")
        proxy.drop()
        until(lambda: "lost:" in nodes[1].log, 5, "its connection is gone")
        stays(lambda: "node_lost" not in server.log, 3 * 1, "it is not lost for that")
        disk.make_room()
        assert nodes[0].outcome(tag, 10)["good"]
        until(lambda: "restored after" in nodes[1].log, 10, "it is back")
        assert server.generation("again") == 1
        assert not any(node.all("ended") for node in nodes)


def _read_only(server: Server) -> str:
    with contextlib.closing(Admin(server.endpoint, timeout_s=5)) as admin:
        return admin.status()[0].read_only


# --- the demo -----------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.full
@pytest.mark.timeout(180)
def test_the_demo_trains_through_a_kill_and_an_upgrade_of_the_server(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    done = subprocess.run(
        [sys.executable, str(DEMO), "--restart"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    words = " ".join(done.stdout.split())
    assert "SIGKILL to the server" in words
    assert "no process and no file is left behind" in words
