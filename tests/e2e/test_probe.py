"""MASTER_ADDR:MASTER_PORT behind a firewall, and the workers' processes: what real agents report."""

import subprocess

import pytest

from tests.e2e.conftest import Cluster, need_root
from tests.e2e.kit.netns import Net
from tests.e2e.kit.wait import stays, until

DROP = """table inet t {
    chain out {
        type filter hook output priority 0;
        tcp dport != 29511 ip daddr 10.77.1.0/24 drop;
    }
}"""
"""Everything but the server is cut off for this host's own connections, without a word."""


@pytest.mark.root
@pytest.mark.torch
def test_a_node_that_cannot_reach_the_master_is_named_in_its_log_and_the_servers(
    cluster: Cluster,
) -> None:
    need_root("ip", "nft", "unshare")
    with Net(cluster.marker) as net:
        first, cut_off, meeting = net.host(1), net.host(2), net.host(9)
        subprocess.run([*cut_off.prefix(), "nft", "-f", "-"], input=DROP, text=True, check=True)
        server = cluster.server(
            "--insecure-no-auth", host="0.0.0.0", prefix=meeting.prefix(), port=29511
        )
        agents = [
            cluster.agent(
                f"{meeting.address}:29511", "probe", "2", "gloo", "sleep=60", real=True, name=name,
                prefix=host.prefix(name), conf={"rank": str(rank)},
                # its name has no address there: gloo would offer its peers loopback, and worker 0 would
                # fail, and its store end, as soon as the way is free
                environment={"GLOO_SOCKET_IFNAME": "eth0"},
            )
            for rank, (host, name) in enumerate([(first, "node-1"), (cut_off, "node-3")])
        ]  # fmt: skip
        for agent in agents:
            agent.in_world(2, 60)
        port = agents[0].lines()[-1]["MASTER_PORT"]
        line = until(lambda: server.log_lines("master_unreachable"), 30, "the server is told")[0]
        assert f"node-3 cannot reach 10.77.1.1:{port} (timed out)" in line
        assert "level=warning" in line
        assert "run=probe" in line
        (own,) = [one for one in agents[1].log.splitlines() if "cannot reach" in one]
        where = f"node-3 cannot reach MASTER_ADDR:MASTER_PORT 10.77.1.1:{port} of generation 1"
        assert where in own
        assert "(timed out" in own
        assert "cannot reach" not in agents[0].log, "rank 0 reaches itself"
        subprocess.run([*cut_off.prefix(), "nft", "flush", "ruleset"], check=True)
        until(
            lambda: "node-3 reached MASTER_ADDR" in agents[1].log, 40,
            lambda: "it is told as well\n" + agents[1].log[-3000:] + agents[0].log[-3000:],
        )  # fmt: skip


@pytest.mark.torch
def test_a_script_that_never_opens_a_store_is_not_complained_of(cluster: Cluster) -> None:
    server = cluster.server("--log-level", "debug")
    agents = [cluster.agent(server, "quiet", "2", "sleep=4") for _ in range(2)]
    for agent in agents:
        agent.in_world(2, 30)
    stays(lambda: all(a.code is None for a in agents), 2, "they run")
    for agent in agents:
        assert agent.wait(30) == 0
        assert "MASTER_ADDR:MASTER_PORT" not in agent.log
    assert not [line for line in server.log.splitlines() if "event=master_" in line]


@pytest.mark.torch
@pytest.mark.parametrize("store", ["rank0", "server"])
def test_every_node_of_a_good_world_reports_that_it_reached_the_master(
    cluster: Cluster, store: str
) -> None:
    server = cluster.server("--log-level", "debug")
    agents = [
        cluster.agent(
            server, "good", "2", "gloo", "sleep=60", nproc=2, conf={"worker_store": store}
        )
        for _ in range(2)
    ]
    for agent in agents:
        agent.in_world(4, 60, event="all_reduce")
    until(lambda: len(server.log_lines("master_reached")) == 2, 30, "both nodes report")
    probes = server.inside("good").probes
    assert [probe.error for probe in probes] == ["", ""]
    assert all("cannot reach" not in agent.log for agent in agents)
    if store == "server":  # told by the process ids that the agents reported

        def ranks() -> list[int]:
            shown = server.inside("good").store
            return [] if shown is None else sorted(shown.ranks)

        until(lambda: ranks() == [0, 1, 2, 3], 20, f"the server knows who is who: {ranks()}")
