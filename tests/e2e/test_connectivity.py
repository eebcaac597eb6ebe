"""B01, B02, B03, B04, B06: names, addresses, ports, and a server that comes late."""

import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rdzv_server.shell.listen import BACKLOG
from tests.e2e.conftest import Cluster, need_root
from tests.e2e.kit.names import Names
from tests.e2e.kit.netns import Net
from tests.e2e.kit.wait import stays, until

SCRIPTS = Path(sys.executable).parent


# --- B01, B02: names -----------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.torch
def test_b01_any_name_of_the_server_will_do(cluster: Cluster) -> None:
    need_root("unshare", "mount")
    names = Names(cluster.folder)
    for name in ("rdzv-a", "rdzv-a.cluster.test", "rdzv-ai"):
        names.add(name, "127.0.0.1")
    server = cluster.server(port=_free_default_port())
    agents = [
        cluster.agent(endpoint, "b01", "4", "sleep=300", real=True, prefix=names.prefix())
        for endpoint in (
            f"rdzv-a:{server.port}", f"rdzv-a.cluster.test:{server.port}",
            f"127.0.0.1:{server.port}", "rdzv-ai",
        )
    ]  # fmt: skip
    until(lambda: len(server.members("b01")) == 4 or server.generation("b01"), 60, "all four join")
    server.live("b01", 4, 5)
    for agent in agents:
        agent.in_world(4, 20)
    assert f"rendezvous at 127.0.0.1:{server.port}" in agents[2].log, "a literal stays a literal"
    assert "rendezvous at rdzv-ai:29500 (no port given: the default is used)" in agents[3].log


def _free_default_port() -> int:
    """29500, which the endpoint without a port means."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", 29500))
        except OSError:
            pytest.skip("port 29500 is taken on this machine")
    return 29500


@pytest.mark.root
@pytest.mark.torch
def test_b02a_a_name_that_appears_later_is_found_within_seconds(cluster: Cluster) -> None:
    need_root("unshare", "mount")
    names = Names(cluster.folder)
    server = cluster.server()
    agents = [
        cluster.agent(
            f"late.test:{server.port}", "b02a", "2", "sleep=300", real=True, prefix=names.prefix()
        )
        for _ in range(2)
    ]
    for agent in agents:
        until(lambda a=agent: "name lookup failed" in a.log, 30, "it complains")  # type: ignore[misc]
    stays(lambda: not server.runs(), cluster.quiet_s(10, 1), "nobody is there")
    names.add("late.test", "127.0.0.1")
    server.live("b02a", 2, 3)
    for agent in agents:
        _check_complaints(agent.log, "late.test", 300)


@pytest.mark.torch
def test_b02b_a_server_that_starts_later_is_found_within_seconds(cluster: Cluster) -> None:
    server = cluster.server()
    server.kill()
    agents = [cluster.agent(server, "b02b", "2", "sleep=300") for _ in range(2)]
    for agent in agents:
        until(lambda a=agent: "Connection refused" in a.log, 30, "it complains")  # type: ignore[misc]
    server.start()
    server.live("b02b", 2, 3)
    for agent in agents:
        _check_complaints(agent.log, f":{server.port}", 300)


@pytest.mark.torch
def test_b02c_a_server_that_never_comes_is_an_error_with_endpoint_and_cause(
    cluster: Cluster,
) -> None:
    patience_s = 8.0 if cluster.full else 6.0
    began = time.monotonic()
    agent = cluster.agent(
        "never.invalid:29500", "b02c", "2", conf={"connect_timeout": str(patience_s)}
    )
    assert agent.wait(60) != 0
    assert patience_s - 1 < time.monotonic() - began < patience_s + 10
    last = agent.log.rstrip().splitlines()[-1]
    assert "RendezvousConnectionError" in last
    assert "never.invalid:29500" in last
    assert "name lookup failed" in last
    assert f"limit {patience_s:g} s" in last
    _check_complaints(agent.log, "never.invalid:29500", patience_s)


def _check_complaints(log: str, endpoint: str, limit_s: float) -> None:
    """At most one line per 5 s, each with endpoint, cause, elapsed time and limit."""
    lines = [line for line in log.splitlines() if "not reachable for" in line]
    assert lines
    elapsed = []
    for line in lines:
        found = re.search(
            r"server (\S+) not reachable for (\d+) s \(giving up after (\d+) s\)", line
        )
        assert found, line
        assert endpoint in found[1]
        assert int(found[3]) == limit_s
        elapsed.append(int(found[2]))
    assert all(b - a >= 4 for a, b in itertools.pairwise(elapsed))


# --- B03: which address becomes MASTER_ADDR -------------------------------------------------------


@pytest.mark.root
@pytest.mark.torch
@pytest.mark.parametrize("given", [False, True], ids=["by itself", "--local-addr"])
def test_b03_master_addr_is_the_interface_towards_the_server(cluster: Cluster, given: bool) -> None:
    """Two hosts whose names nobody can resolve, each with two links; only one reaches the other."""
    need_root("ip", "unshare")
    with Net(cluster.marker) as net, Net(f"b{cluster.marker}", "10.78.1") as management:
        hosts = [net.host(i) for i in (1, 2)]
        meeting = net.host(9)
        for number, host in enumerate(hosts, start=1):
            management.attach(host.space, number, "eth1")
        server = cluster.server(
            "--insecure-no-auth", host="0.0.0.0", prefix=meeting.prefix(), port=29511
        )
        agents = []
        for i, host in enumerate(hosts):
            more = ["--local-addr", host.address] if given else []
            agents.append(
                cluster.agent(
                    f"{meeting.address}:29511",
                    "b03",
                    "2",
                    "gloo",
                    "sleep=60",
                    real=True,
                    prefix=host.prefix(f"unresolvable-{i}"),
                    more=more,
                    name=f"host{i}",
                    environment={"GLOO_SOCKET_IFNAME": "eth0"},
                )
            )
        rows = [agent.in_world(2, 45, event="all_reduce") for agent in agents]
        assert all(row["good"] for row in rows)
        (first,) = [
            h.address for h, a in zip(hosts, agents, strict=True) if a.lines()[-1]["RANK"] == "0"
        ]
        assert {row["MASTER_ADDR"] for row in rows} == {first}
        chosen = "given with --local-addr" if given else "local address of the rank 0 node"
        assert any(f"MASTER_ADDR={first}" in a.log and chosen in a.log for a in agents)
        assert server.process is not None
        assert server.process.poll() is None


@pytest.mark.root
@pytest.mark.torch
def test_b03c_behind_a_port_forward_the_own_address_is_used_and_a_warning_names_both(
    cluster: Cluster,
) -> None:
    need_root("ip", "nft")
    with Net(cluster.marker) as net:
        host, router, meeting = net.host(1), net.host(8), net.host(9)
        router.run("sysctl", "-q", "net.ipv4.ip_forward=1")
        rules = f"""table ip t {{
            chain pre {{
                type nat hook prerouting priority -100;
                tcp dport 29512 dnat to {meeting.address}:29511;
            }}
            chain post {{
                type nat hook postrouting priority 100;
                masquerade;
            }}
        }}"""
        subprocess.run([*router.prefix(), "nft", "-f", "-"], input=rules, text=True, check=True)
        cluster.server("--insecure-no-auth", host="0.0.0.0", prefix=meeting.prefix(), port=29511)
        agent = cluster.agent(
            f"{router.address}:29512", "b03c", "1", "sleep=60", real=True, prefix=host.prefix()
        )
        assert agent.in_world(1, 45)["MASTER_ADDR"] == host.address
        (warning,) = [line for line in agent.log.splitlines() if "proxy or NAT" in line]
        assert host.address in warning
        assert router.address in warning
        assert "--local-addr" in warning


# --- B04: defaults that would make every node meet itself ------------------------------------------


@pytest.mark.torch
def test_b04a_without_an_endpoint_it_says_which_flag_is_missing(cluster: Cluster) -> None:
    began = time.monotonic()
    agent = cluster.agent(None, "b04a", "2")
    assert agent.wait(10) != 0
    assert time.monotonic() - began < 5
    assert "--rdzv-endpoint is missing" in agent.log.rstrip().splitlines()[-1]


@pytest.mark.torch
def test_b04b_two_servers_never_make_two_worlds_of_one(cluster: Cluster) -> None:
    conf = {"join_timeout": "6" if cluster.full else "3"}
    servers = [cluster.server(host=f"127.0.0.{i}") for i in (2, 3)]
    agents = [cluster.agent(s, "b04b", "2", conf=conf) for s in servers]
    for server, agent in zip(servers, agents, strict=True):
        assert agent.wait(30) != 0
        last = agent.log.rstrip().splitlines()[-1]
        assert "RendezvousTimeoutError" in last
        assert server.endpoint in last
        assert server.ready["instance"] in last
        assert "1 of min 2" in last
        assert agent.starts == 0


@pytest.mark.torch
def test_b04c_the_timeout_names_the_other_run_id(cluster: Cluster) -> None:
    server = cluster.server()
    other = cluster.node(server, "x2", min_nodes=2, name="other")
    other.wait_for("started", 10)
    agent = cluster.agent(server, "x1", "2", conf={"join_timeout": "3"})
    assert agent.wait(30) != 0
    last = agent.log.rstrip().splitlines()[-1]
    assert "1 of min 2" in last
    assert "'x2' (1 node)" in last


@pytest.mark.torch
def test_b04d_two_jobs_without_an_id_are_kept_apart_with_a_warning(cluster: Cluster) -> None:
    server = cluster.server()
    first = cluster.agent(server, None, "2", "sleep=300", name="first")
    until(lambda: len(server.members("none")) == 1, 20, "the first job is there")
    scripts = cluster.folder / "other_train.py"
    scripts.write_text("import time; time.sleep(300)\n")
    second = cluster.agent(server, None, "2", script=str(scripts), name="second")
    assert second.wait(20) != 0
    assert "owner" in second.log
    (warning,) = server.log_lines("policy_mismatch")
    assert "run=none" in warning
    assert "level=warning" in warning
    assert server.members("none")[0].node_id in warning
    assert first.code is None
    partner = cluster.agent(server, None, "2", "sleep=300", name="partner")
    partner.in_world(2, 20)
    assert any("run id 'none'" in agent.log for agent in (first, partner))


# --- B06: the listening socket ---------------------------------------------------------------------


def test_b06a_a_second_server_on_the_port_is_one_line_and_the_first_goes_on(
    cluster: Cluster,
) -> None:
    server = cluster.server(command=[str(SCRIPTS / "rdzv-server")])
    node = cluster.node(server, "b06a", min_nodes=1, name="n")
    node.joined(1, 10)
    began = time.monotonic()
    second = subprocess.run(
        [str(SCRIPTS / "rdzv-server"), "--port", str(server.port)],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert second.returncode == 2
    assert time.monotonic() - began < 5
    assert len(second.stderr.splitlines()) == 1
    assert f"127.0.0.1:{server.port}" in second.stderr
    assert "in use" in second.stderr
    assert not second.stdout
    assert server.generation("b06a") == 1
    assert not node.all("ended")


def test_b06b_port_0_prints_the_real_port_first_in_a_fixed_line(cluster: Cluster) -> None:
    server = cluster.server()
    assert list(server.ready) == ["host", "port", "http_port", "instance", "epoch", "state"]
    assert server.port > 0
    assert server.ready["http_port"] == "off"
    assert server.ready["state"] == "memory"
    socket.create_connection(("127.0.0.1", server.port), timeout=5).close()


def test_b06c_a_killed_server_with_clients_is_back_on_its_port_at_once(cluster: Cluster) -> None:
    server = cluster.server()
    conns = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    until(lambda: len(server.runs()) == 0, 5, "it serves")
    server.kill()
    began = time.monotonic()
    server.start()
    assert time.monotonic() - began < 3
    for conn in conns:
        conn.close()


@pytest.mark.root
def test_b06d_it_starts_where_there_is_no_ipv6(cluster: Cluster) -> None:
    need_root("unshare", "ip", "sysctl")
    command = (
        "ip link set lo up && sysctl -q net.ipv6.conf.all.disable_ipv6=1 "
        'net.ipv6.conf.default.disable_ipv6=1 && exec "$@"'
    )
    server = cluster.server(prefix=["unshare", "--net", "sh", "-c", command, "sh"])
    assert "level=error" not in server.log
    assert server.ready["host"] == "127.0.0.1"


def test_b06e_the_ipv6_wildcard_serves_both_families_in_one_run(cluster: Cluster) -> None:
    if not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    server = cluster.server("--insecure-no-auth", host="::")
    nodes = [
        cluster.node(f"{host}:{server.port}", "b06e", min_nodes=2, name=f"n{i}")
        for i, host in enumerate(("[::1]", "127.0.0.1"))
    ]
    assert {node.joined(2, 10)["number"] for node in nodes} == {1}


def test_b06f_an_ipv6_address_without_brackets_is_an_error_that_shows_them() -> None:
    done = subprocess.run(
        [str(SCRIPTS / "rdzv"), "--server", "::1:29500", "status"],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "[::1]:29500" in done.stderr


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return os.path.exists("/proc/net/if_inet6")


@pytest.mark.torch
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_listening_ports_take_a_whole_cluster_at_once(cluster: Cluster, loop: str) -> None:
    """asyncio and uvloop set a listening socket's backlog back to 100 unless they are told."""
    if shutil.which("ss") is None:
        pytest.skip("needs ss, of iproute2")
    server = cluster.server("--loop", loop)
    agents = [
        cluster.agent(server, "ports", "2", "sleep=20", conf={"worker_store": "server"})
        for _ in range(2)
    ]
    for agent in agents:
        agent.in_world(2, 40)
    store = int(agents[0].lines()[-1]["MASTER_PORT"])
    most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    for port in (server.port, store):
        shown = subprocess.run(
            ["ss", "-ltnH", f"sport = :{port}"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        assert shown
        assert {int(line.split()[2]) for line in shown} == {min(BACKLOG, most)}
