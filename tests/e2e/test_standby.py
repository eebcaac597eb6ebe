"""S30, T23: servers that take turns. State is in a real etcd; the one that leads is killed, paused and cut off."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdzv_client import Client
from tests.e2e.conftest import Cluster
from tests.e2e.kit import etcd
from tests.e2e.kit.etcd import Etcd
from tests.e2e.kit.keys import Keys, rdzv
from tests.e2e.kit.proxy import Proxy
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until
from tests.ports import free_port

LEASE_S = 2
"""The shortest that there is: tests wait for its end."""

PATIENCE_S = 30.0

pytestmark = [
    pytest.mark.skipif(not etcd.installed(), reason="needs etcd (Debian: etcd-server)"),
    pytest.mark.timeout(180),
]


@pytest.fixture
def store(cluster: Cluster) -> Iterator[Etcd]:
    """One etcd process."""
    running = Etcd(cluster.folder, cluster.marker)
    yield running
    running.close()


def server(cluster: Cluster, state: str, *flags: str, **options: Any) -> Server:
    return cluster.server(
        "--state", state, "--leader-lease", f"{LEASE_S}s", *flags,
        **{"port": free_port(), **options},
    )  # fmt: skip


def two(cluster: Cluster, state: str, *flags: str, **options: Any) -> tuple[Server, Server]:
    """The one that leads, and the one that stands by."""
    first, second = (server(cluster, state, *flags, **options) for _ in range(2))
    assert first.log_lines("leading"), first.log
    assert second.log_lines("standby"), second.log
    return first, second


def endpoints(*servers: Server) -> str:
    return ",".join(each.endpoint for each in servers)


def leads(one: Server, times: int = 1) -> None:
    until(lambda: len(one.log_lines("leading")) >= times, PATIENCE_S, lambda: one.log)


# --- who leads --------------------------------------------------------------------------------


def test_s30_a_client_that_knows_only_the_standby_is_served_by_the_leader(
    cluster: Cluster, store: Etcd
) -> None:
    first, second = two(cluster, store.state())
    with Client(second.endpoint, run="r", min_nodes=1) as client:
        world = client.join(timeout=20)
        assert world.fence.epoch == int(first.ready["epoch"])
    shown = json.loads(rdzv(second.endpoint, "status", "-o", "json").stdout)
    assert shown["server"]["leader"] == first.endpoint
    assert shown["server"]["state"] == "etcd"
    people = rdzv(second.endpoint, "status").stdout
    assert f"state etcd · leads as {first.endpoint}" in people


def test_a_standby_is_alive_and_not_ready(cluster: Cluster, store: Etcd) -> None:
    first, second = two(cluster, store.state(), "--http-port", "0")

    def ask(one: Server, page: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{one.ready['http_port']}/{page}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    assert ask(first, "readyz")[0] == ask(second, "healthz")[0] == 200
    code, text = ask(second, "readyz")
    assert code == 503
    assert f"standby: {first.endpoint} leads" in text
    assert 'state="standby"} 1.0' in ask(second, "metrics")[1]
    first.kill()
    leads(second)
    assert ask(second, "readyz")[0] == 200
    epoch = next(
        row for row in ask(second, "metrics")[1].splitlines() if row.startswith("rdzv_epoch ")
    )
    assert float(epoch.split()[1]) == float(first.ready["epoch"])


def test_a_leader_that_ends_in_order_hands_over_at_once(cluster: Cluster, store: Etcd) -> None:
    first, second = two(cluster, store.state(), "--leader-lease", "60s")
    with Client(endpoints(first, second), run="r", min_nodes=1) as client:
        world = client.join(timeout=20)
        assert first.stop() == 0
        assert world.kv.add("n", 1) == 1, "long before its lease of a minute is over"
        assert not world.ended
    assert second.log_lines("leading")


# --- a leader that is gone ----------------------------------------------------------------------


def test_s30_the_next_leader_goes_on_with_the_same_generation_and_every_acknowledged_write(
    cluster: Cluster, store: Etcd
) -> None:
    first, second = two(cluster, store.state())
    with Client(endpoints(first, second), run="r", min_nodes=1) as client:
        world = client.join(timeout=20)
        large = {f"k{i}": bytes([i % 256]) * 1000 for i in range(400)}
        world.kv.multi_set(list(large), list(large.values()))
        for turn in range(4):
            leader, other = (first, second) if turn % 2 == 0 else (second, first)
            for _ in range(20):
                world.kv.add("n", 1)
            leader.kill()
            assert world.kv.add("n", 1) == 21 * (turn + 1)
            assert other.log_lines("leading")
            leader.start()
            assert leader.ready["epoch"] == "0", "it stands by"
        assert world.kv.multi_get(list(large)) == list(large.values())
        assert not world.ended
        assert world.fence.generation == 1
        status = second.run("r") if "leading" in second.log.splitlines()[-1] else first.run("r")
        assert status is None or status.fence == world.fence


def test_s30_a_paused_leader_says_nothing_more_drops_its_clients_and_stands_by(
    cluster: Cluster, store: Etcd
) -> None:
    first, second = two(cluster, store.state())
    with (
        Client(first.endpoint, run="r", min_nodes=1, lease_s=600) as stays_there,
        Client(endpoints(second, first), run="other", min_nodes=1) as goes_on,
    ):
        old, new = stays_there.join(timeout=20), goes_on.join(timeout=20)
        assert old.kv.add("n", 1) == 1
        first.signal(signal.SIGSTOP)
        leads(second)
        # Asked while it is paused, and answered by whoever leads when somebody does.
        seen_by = first.log_lines("node_resumed")
        first.signal(signal.SIGCONT)
        assert old.kv.add("n", 1) == 2
        assert new.kv.add("n", 1) == 1
        until(lambda: first.log_lines("deposed"), PATIENCE_S, lambda: first.log)
        until(
            lambda: len(first.log_lines("standby")) == 1, PATIENCE_S, "it stands by for the other"
        )
        assert first.log_lines("node_resumed") == seen_by, "nobody was served by it"
        assert not old.ended
        assert not new.ended
    assert store.get("/rdzv/test/leader") == second.endpoint


def test_s30_a_leader_that_is_cut_off_from_etcd_is_silent_before_the_next_one_leads(
    cluster: Cluster, store: Etcd
) -> None:
    member = store.members[0]
    proxy = Proxy("127.0.0.1", member.client_port)
    try:
        first = server(cluster, f"etcd://{proxy.endpoint}/rdzv/test")
        second = server(cluster, store.state())
        with Client(endpoints(first, second), run="r", min_nodes=1) as client:
            world = client.join(timeout=20)
            proxy.freeze()
            assert world.kv.add("n", 1) == 1, "the write waits for the next leader"
            leads(second)
            deposed = first.log_lines("deposed")
            assert deposed, first.log
            assert _stamp(deposed[0]) < _stamp(second.log_lines("leading")[0])
            assert not world.ended
        until(lambda: first.log_lines("etcd_unreachable"), PATIENCE_S, lambda: first.log)
        proxy.drop()
        until(lambda: first.log_lines("etcd_reachable"), PATIENCE_S, lambda: first.log)
        until(lambda: second.endpoint in first.log.splitlines()[-1], PATIENCE_S, "it stands by")
    finally:
        proxy.close()


def _stamp(line: str) -> str:
    return line.split(maxsplit=1)[0]


def test_without_etcd_nobody_leads_and_everything_goes_on_when_it_is_back(
    cluster: Cluster, store: Etcd
) -> None:
    first, second = two(cluster, store.state())
    member = store.members[0]
    with Client(endpoints(first, second), run="r", min_nodes=1) as client:
        world = client.join(timeout=20)
        world.kv.set("k", b"v")
        member.kill()
        until(
            lambda: first.log_lines("etcd_unreachable") and second.log_lines("etcd_unreachable"),
            PATIENCE_S, "both say so",
        )  # fmt: skip
        store.start(member)
        assert world.kv.get("k", timeout=PATIENCE_S) == b"v"
        assert not world.ended


# --- whose etcd it is ---------------------------------------------------------------------------


def refused(*flags: str) -> str:
    """What a server says that does not start."""
    port = str(free_port())
    run = subprocess.run(
        [sys.executable, "-m", "rdzv_server", "--port", port, *flags],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 2, run
    assert run.stdout == ""
    (line,) = [line for line in run.stderr.splitlines() if line.startswith("rdzv-server: ")]
    assert "Traceback" not in run.stderr
    return line


def test_t23_a_prefix_of_another_cluster_is_refused_with_both_names(
    cluster: Cluster, store: Etcd
) -> None:
    server(cluster, store.state(), "--cluster-id", "east")
    line = refused("--state", store.state(), "--cluster-id", "west")
    assert "belongs to cluster 'east', and this server is of cluster 'west'" in line
    assert server(cluster, store.state("rdzv/west"), "--cluster-id", "west").ready["epoch"] != "0"


def test_t23_a_prefix_with_keys_of_something_else_is_refused(cluster: Cluster, store: Etcd) -> None:
    port = store.members[0].client_port
    subprocess.run(
        ["etcdctl", "--endpoints", f"127.0.0.1:{port}", "put", "/registry/pods/a", "x"],
        env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"}, check=True, timeout=20,
        capture_output=True,
    )  # fmt: skip
    line = refused("--state", store.state("registry"))
    assert "keys of something else below this prefix (b'/registry/pods/a')" in line


def test_t23_etcd_with_tls_and_certificates_of_clients(cluster: Cluster) -> None:
    keys = Keys(cluster.folder)
    cert, mine = keys.cert("127.0.0.1"), keys.cert("rdzv")
    running = Etcd(
        cluster.folder, cluster.marker, 1,
        "--cert-file", str(cert), "--key-file", str(cert),
        "--trusted-ca-file", str(keys.ca_file), "--client-cert-auth",
        scheme="https",
    )  # fmt: skip
    try:
        flags = ("--etcd-ca", str(keys.ca_file), "--etcd-cert", str(mine))
        first = server(cluster, running.state(), *flags)
        with Client(first.endpoint, run="r", min_nodes=1) as client:
            assert client.join(timeout=20).kv.add("n", 1) == 1
        line = refused("--state", running.state(), "--etcd-ca", str(keys.ca_file))
        assert "no answer from etcd" in line
    finally:
        running.close()


def test_t23_etcd_with_users_and_passwords(cluster: Cluster, store: Etcd) -> None:
    port = store.members[0].client_port

    def ctl(*words: str) -> None:
        subprocess.run(
            ["etcdctl", "--endpoints", f"127.0.0.1:{port}", *words],
            env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"}, check=True, timeout=20,
            capture_output=True,
        )  # fmt: skip

    ctl("user", "add", "root:a root password")
    ctl("user", "grant-role", "root", "root")
    ctl("role", "add", "rdzv")
    ctl("role", "grant-permission", "rdzv", "readwrite", "/rdzv/", "--prefix")
    ctl("user", "add", "rdzv:the password of rdzv")
    ctl("user", "grant-role", "rdzv", "rdzv")
    ctl("auth", "enable")
    folder = cluster.folder / "secrets"
    folder.mkdir()
    good, bad = folder / "good", folder / "bad"
    good.write_text("the password of rdzv\n")
    bad.write_text("something else\n")
    for path in (good, bad):
        path.chmod(0o600)
    user = ("--etcd-user", "rdzv", "--etcd-password-file")
    first = server(cluster, store.state(), *user, str(good))
    with Client(first.endpoint, run="r", min_nodes=1) as client:
        assert client.join(timeout=20).kv.add("n", 1) == 1
    line = refused("--state", store.state("rdzv/two"), *user, str(bad))
    assert "etcd refuses" in line
    assert "--etcd-password-file" in line
    line = refused("--state", store.state("elsewhere"), *user, str(good))
    assert "permission denied" in line
    assert str(folder / "none") in refused("--state", store.state(), *user, str(folder / "none"))


def test_an_etcd_that_is_not_there_is_one_line_that_names_it(cluster: Cluster) -> None:
    port = free_port()
    began = time.monotonic()
    line = refused("--state", f"etcd://127.0.0.1:{port}/rdzv")
    assert f"etcd://127.0.0.1:{port}/rdzv: no answer from etcd within" in line
    assert time.monotonic() - began < 30


# --- training -----------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.timeout(240)
def test_s30_training_does_not_notice_that_another_server_leads(
    cluster: Cluster, store: Etcd
) -> None:
    first, second = two(cluster, store.state())
    where = endpoints(first, second)
    agents = [cluster.agent(where, "ha", "2:4", "gloo", "sleep=600") for _ in range(2)]
    for agent in agents:
        agent.in_world(2, 40, event="all_reduce")
    pids = {agent.name: agent.worker_pids() for agent in agents}
    fence = first.generation("ha")
    first.kill()
    leads(second)
    until(
        lambda: [m.state for m in second.members("ha")] == ["participant"] * 2,
        PATIENCE_S, lambda: f"both are back: {second.members('ha')}",
    )  # fmt: skip
    assert {agent.name: agent.worker_pids() for agent in agents} == pids
    assert [agent.starts for agent in agents] == [1, 1]
    assert second.generation("ha") == fence
    third = cluster.agent(where, "ha", "2:4", "gloo", "sleep=600")
    rows = [agent.in_world(3, 40, event="all_reduce") for agent in (*agents, third)]
    assert all(row["good"] for row in rows)
    assert Path(second.log_path).exists()
