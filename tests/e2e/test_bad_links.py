"""B10 and B14: busy servers, blocked clients, connections that break all the time. Nobody healthy is
lost, and what is asked twice is done once."""

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rdzv_client import Client, RdzvError
from rdzv_client.errors import WaitTimeout
from tests.e2e.conftest import Cluster
from tests.e2e.kit.flaky import FlakyProxy, ForgettingProxy, ResettingProxy, SwallowingProxy
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import stays

ADDS = 200
MEMBERS = 3


@contextmanager
def flood(server: Server, clients: int) -> Iterator[list[int]]:
    """So many clients write 64 KiB and wait for keys as fast as they can, in runs of their own and in
    the members' run; gives how often each did."""
    over, done = threading.Event(), [0] * clients

    def work(number: int) -> None:
        with Client(server.endpoint, run="b10" if number % 2 else f"flood{number}") as client:
            while not over.is_set():
                client.kv.set(f"flood{number}", b"x" * 65536)
                client.kv.wait([f"flood{number}"], timeout=5)
                done[number] += 1
            client.kv.delete(f"flood{number}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


@contextmanager
def members(server: Server, count: int) -> Iterator[list[Client]]:
    """Members of one generation in this process, with a lease of 5 s."""
    clients = [
        Client(server.endpoint, run="b10", min_nodes=count, name=f"m{i}", lease_s=5.0)
        for i in range(count)
    ]
    threads = [threading.Thread(target=client.join, args=(60,)) for client in clients]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert all(client.generation is not None for client in clients)
        yield clients
    finally:
        for client in clients:
            client.close()


class Blocked:
    """A member that sits in one wait after another on its only client."""

    def __init__(self, client: Client, wait_s: float, over: threading.Event) -> None:
        self._client, self._wait_s, self._over = client, wait_s, over
        self.waits = 0
        self.errors: list[RdzvError] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        generation = self._client.generation
        assert generation is not None
        while not self._over.is_set():
            try:
                generation.kv.wait(["end"], timeout=self._wait_s)
            except WaitTimeout:
                self.waits += 1
            except RdzvError as error:
                self.errors.append(error)
                return

    def join(self) -> None:
        self._thread.join(60)


def test_b10ac_blocked_members_next_to_a_flood_are_not_lost(cluster: Cluster) -> None:
    """(a) and (c) at once: 50 members in blocking waits, 8 flood clients."""
    server, watched_s = cluster.server(), cluster.quiet_s(60, 8)
    wait_s = 30.0 if cluster.full else 3.0
    with members(server, 50 if cluster.full else 20) as clients:
        over = threading.Event()
        blocked = [Blocked(client, wait_s, over) for client in clients]
        with flood(server, 8) as done:
            stays(lambda: server.generation("b10") == 1, watched_s, "0 bumps")
        over.set()
        first = clients[0].generation
        assert first is not None
        first.kv.set("end", b"1")
        for member in blocked:
            member.join()
        assert [member.errors for member in blocked] == [[]] * len(blocked)
        assert sum(member.waits for member in blocked) >= len(blocked), "waits ran their course"
        assert min(done) > 0, "each of the flood got its turn"
        assert server.generation("b10") == 1
        assert not server.log_lines("node_lost"), "0 evictions"
    assert server.log.count("event=generation_formed ") == 1


def test_b10b_requests_that_wait_survive_a_stop_of_the_server(cluster: Cluster) -> None:
    """Longer than any lease: the members' waits and barriers go on as if nothing had been."""
    server, (stop_s, lease_s) = cluster.server(), (8.0, 5.0) if cluster.full else (3.0, 2.0)
    nodes = [
        cluster.node(server, "b10b", min_nodes=MEMBERS, name=f"c{i}", lease_s=lease_s)
        for i in range(MEMBERS)
    ]
    for node in nodes:
        node.joined(MEMBERS, 20)
    waits = [node.start("wait", keys=["k"], timeout=40) for node in nodes]
    meets = [node.start("barrier", name="b", timeout=40) for node in nodes[:-1]]
    stays(lambda: server.generation("b10b") == 1, 0.5, "all wait")
    server.signal(signal.SIGSTOP)
    time.sleep(stop_s)  # the length of the case itself
    server.signal(signal.SIGCONT)
    stays(lambda: server.generation("b10b") == 1, 2 * lease_s, "0 bumps for two leases")
    assert not any(node.all("outcome") for node in nodes)
    nodes[0].ask("set", key="k", value="there")
    meets.append(nodes[-1].start("barrier", name="b", timeout=40))
    for node, wait, meet in zip(nodes, waits, meets, strict=True):
        assert node.outcome(wait, 10)["good"]
        assert node.outcome(meet, 10)["round"] == 1
    assert server.log_lines("server_stalled")
    assert not server.log_lines("node_lost")


def test_b14c_requests_whose_reply_was_swallowed_are_done_once(cluster: Cluster) -> None:
    server = cluster.server()
    proxy = SwallowingProxy("127.0.0.1", server.port, every=5)
    try:
        nodes = [
            cluster.node(proxy.endpoint, "b14", min_nodes=MEMBERS, name=f"c{i}")
            for i in range(MEMBERS)
        ]
        for node in nodes:
            node.joined(MEMBERS, 30)
        every = 20
        tags = [
            node.start("count_and_meet", key="sum", name="b", times=ADDS, every=every)
            for node in nodes
        ]
        for node, tag in zip(nodes, tags, strict=True):
            assert node.outcome(tag, 100)["good"]
        for node in nodes:
            met = node.all("met")
            assert [line["round"] for line in met] == list(range(1, ADDS // every + 1))
            for line in met:
                least = MEMBERS * line["added"]
                most = least + (MEMBERS - 1) * every
                assert least <= line["sum"] <= most, "the barrier opened early"
        total = nodes[0].ask("get", key="sum", timeout_s=20)
        assert int(total["value"]) == MEMBERS * ADDS
        assert proxy.losses > MEMBERS * ADDS // 10
        assert server.log.count("event=generation_formed ") == 1
        assert not server.log_lines("node_lost")
    finally:
        proxy.close()


def _resets(full: bool) -> Callable[[str, int], FlakyProxy]:
    low_s, high_s = (2.0, 5.0) if full else (1.0, 2.5)
    return lambda host, port: ResettingProxy(host, port, 14, low_s, high_s)


def _forgets(full: bool) -> Callable[[str, int], FlakyProxy]:
    return lambda host, port: ForgettingProxy(host, port, 3.0 if full else 1.2)


@pytest.mark.torch
@pytest.mark.parametrize("bad", [_resets, _forgets], ids=["a: reset", "b: forgotten"])
def test_b14ab_agents_live_through_broken_connections(
    cluster: Cluster, bad: Callable[[bool], Callable[[str, int], FlakyProxy]]
) -> None:
    """A lease of 15 s (short form: 6 s), as three heartbeats of which some are the first thing to find
    out that the connection is gone."""
    server = cluster.server()
    proxy = bad(cluster.full)("127.0.0.1", server.port)
    conf = {"keep_alive_interval": "5" if cluster.full else "2", "keep_alive_max_attempt": "3"}
    try:
        agents = [
            cluster.agent(proxy.endpoint, "b14", "3", "sleep=300", conf=conf) for _ in range(3)
        ]
        for agent in agents:
            agent.in_world(3, 40)
        number = server.generation("b14")
        watched_s = cluster.quiet_s(60, 8)
        stays(lambda: server.generation("b14") == number, watched_s, "0 bumps")
        assert all(agent.code is None for agent in agents)
        assert all(agent.starts == 1 for agent in agents)
        assert proxy.losses >= 3
        assert not server.log_lines("node_lost")
        for agent in agents:
            lost = re.findall(r"connection to .* lost: ", agent.log)
            back = re.findall(r"connection to .* restored after [\d.]+ s", agent.log)
            assert back, "each reconnect is logged with the time it took"
            assert 0 <= len(lost) - len(back) <= 1, "and once for each loss"
    finally:
        proxy.close()
