"""`python -m tests.ha --rounds 50`: the leader is killed, paused, cut off from etcd, and etcd's own leader killed.

Clients count all the while, and two real agents train. Printed is how long nobody was served; wrong is a count that
is not exact, a write of a server that was deposed, a generation or worker that ended.
"""

import argparse
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.conftest import Cluster
from tests.e2e.kit import etcd
from tests.e2e.kit.agents import Launcher
from tests.e2e.kit.etcd import Etcd, Member
from tests.e2e.kit.proxy import Proxy
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until
from tests.ha.load import Load
from tests.ha.witness import Witness
from tests.ports import free_port

LEASE_S = 3
PATIENCE_S = 60.0
PREFIX = "rdzv/ha"


class Pair:
    """Two servers, each with its own ways to etcd."""

    def __init__(self, cluster: Cluster, store: Etcd) -> None:
        self.ways: dict[Server, list[Proxy]] = {}
        for _ in range(2):
            proxies = [Proxy("127.0.0.1", member.client_port) for member in store.members]
            state = f"etcd://{','.join(proxy.endpoint for proxy in proxies)}/{PREFIX}"
            server = cluster.server(
                "--state", state, "--leader-lease", f"{LEASE_S}s", port=free_port()
            )
            self.ways[server] = proxies
        self.store = store

    @property
    def endpoints(self) -> str:
        return ",".join(server.endpoint for server in self.ways)

    def leader(self) -> Server:
        """The one whose last word is that it leads."""

        def found() -> Server | None:
            return next((one for one in self.ways if _role(one) == "leading"), None)

        return until(found, PATIENCE_S, "a server leads")

    def etcd_leader(self) -> Member:
        """The member of etcd that leads the others."""
        return until(lambda: self.store.leader, PATIENCE_S, "etcd has a leader")

    def led(self) -> int:
        """How often one of them began to lead."""
        return sum(len(server.log_lines("leading")) for server in self.ways)

    def standby_there(self) -> None:
        """The other one is ready to take over."""
        until(
            lambda: sorted(_role(one) for one in self.ways) == ["leading", "standby"],
            PATIENCE_S, lambda: f"one leads, one stands by: {[_role(one) for one in self.ways]}",
        )  # fmt: skip

    def close(self) -> None:
        for proxies in self.ways.values():
            for proxy in proxies:
                proxy.close()


def _role(server: Server) -> str:
    lines = server.log.splitlines()
    roles = {"leading": "leading", "standby": "standby", "deposed": "deposed"}
    for line in reversed(lines):
        for event, role in roles.items():
            if f"event={event} " in line:
                return "" if role == "standby" and "leader=nobody" in line else role
    return ""


Deed = Callable[[], None]


def kill(pair: Pair, leader: Server) -> tuple[Deed, Deed]:
    return leader.kill, leader.start


def pause(pair: Pair, leader: Server) -> tuple[Deed, Deed]:
    return lambda: leader.signal(signal.SIGSTOP), lambda: leader.signal(signal.SIGCONT)


def cut(pair: Pair, leader: Server) -> tuple[Deed, Deed]:
    def freeze() -> None:
        for proxy in pair.ways[leader]:
            proxy.freeze()

    def heal() -> None:
        for proxy in pair.ways[leader]:
            proxy.drop()

    return freeze, heal


def kill_etcd(pair: Pair, leader: Server) -> tuple[Deed, Deed]:
    member = pair.etcd_leader()
    return member.kill, lambda: pair.store.start(member)


def pause_etcd(pair: Pair, leader: Server) -> tuple[Deed, Deed]:
    """It accepts connections, and answers nobody."""
    member = pair.etcd_leader()
    return lambda: member.signal(signal.SIGSTOP), lambda: member.signal(signal.SIGCONT)


OF_ETCD = {"etcd": kill_etcd, "etcd_pause": pause_etcd}
"""The server that leads may go on."""

FAULTS = {"kill": kill, "pause": pause, "cut": cut, **OF_ETCD}


@contextmanager
def started(folder: Path, agents: bool) -> Iterator[tuple[Cluster, Etcd, Pair]]:
    launchers: list[Launcher] = []

    def launcher() -> Launcher:
        if not launchers:
            launchers.append(Launcher(folder))
        return launchers[0]

    cluster = Cluster(folder, launcher, False)
    store = Etcd(folder, cluster.marker, 3)
    pair = Pair(cluster, store)
    try:
        yield cluster, store, pair
    finally:
        for agent in cluster.agents:
            agent.end()
        for server in cluster.servers:
            if server.process is not None:
                server.signal(signal.SIGCONT)
                server.kill()
        pair.close()
        store.close()
        for one in launchers:
            one.close()


def play(pair: Pair, load: Load, kind: str, gaps: dict[str, list[tuple[float, float]]]) -> None:
    """One fault, until all clients are served again and the other server stands by."""
    leader, led = pair.leader(), pair.led()
    act, undo = FAULTS[kind](pair, leader)
    at = time.monotonic()  # to look for etcd's leader takes a while
    act()
    if kind not in OF_ETCD:
        until(lambda: pair.led() > led, PATIENCE_S, f"after {kind} another one leads")
    until(lambda: load.all_since(at + 0.05), PATIENCE_S, f"after {kind} all clients are served")
    first, last = load.first_since(at + 0.05), load.all_since(at + 0.05)
    assert first is not None
    assert last is not None
    gaps[kind].append((first - at, last - at))
    undo()
    if kind in OF_ETCD:
        pair.etcd_leader()
    pair.standby_there()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ha", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(FAULTS), help="this fault and no other")
    parser.add_argument("--no-agents", action="store_true", help="without torchrun agents")
    options = parser.parse_args()
    if not etcd.installed():
        print("needs etcd and etcdctl (Debian: etcd-server, etcd-client)", file=sys.stderr)
        return 2
    rng = random.Random(options.seed)
    gaps: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="rdzv-ha-") as folder,
        started(Path(folder), not options.no_agents) as (cluster, store, pair),
    ):
        witness = Witness(",".join(f"127.0.0.1:{m.client_port}" for m in store.members), PREFIX)
        load = Load(pair.endpoints)
        agents = []
        if not options.no_agents:
            agents = [
                cluster.agent(pair.endpoints, "train", "2", "gloo", "sleep=3600") for _ in range(2)
            ]
            for agent in agents:
                agent.in_world(2, 60, event="all_reduce")
        pids = [agent.worker_pids() for agent in agents]
        until(lambda: load.started, PATIENCE_S, "all clients are served")
        for number in range(options.rounds):
            kind = options.only or rng.choice(list(FAULTS))
            try:
                play(pair, load, kind, gaps)
            except AssertionError:
                for server in pair.ways:
                    print(server.endpoint, server.log[-4000:], sep="\n", file=sys.stderr)
                print([told.errors for told in load.told], file=sys.stderr)
                witness.end()
                raise
            first, last = gaps[kind][-1]
            print(
                f"{number + 1:3} {kind:10} first served after {first:5.2f} s, all after {last:5.2f} s"
            )
            sys.stdout.flush()
        told, faults = load.end()
        if [agent.worker_pids() for agent in agents] != pids:
            faults.append("a worker was restarted")
        status = pair.leader().run("load")
        generation = None if status is None or status.fence is None else status.fence.generation
        writes, late = witness.end()
        terms = len(witness.terms())
    for kind, pairs in sorted(gaps.items()):
        firsts, lasts = zip(*pairs, strict=True)
        print(
            f"{kind:10} {len(pairs):3} rounds: first served p50 {statistics.median(firsts):.2f} s, "
            f"p99 {_p99(firsts):.2f} s; all p50 {statistics.median(lasts):.2f} s, p99 {_p99(lasts):.2f} s"
        )
    print(
        f"lease {LEASE_S} s; {terms} terms, {writes} writes, {late} by a deposed leader; "
        f"{told} additions told, generation {generation}; {len(agents)} agents with "
        f"{sum(map(len, pids))} workers; faults: {faults or 'none'}"
    )
    return 1 if faults or late else 0


def _p99(values: tuple[float, ...]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


if __name__ == "__main__":
    sys.exit(main())
