"""L11: a link that works in one direction only. Links that are cut both ways are in `test_identity`, broken
and forgotten ones in `test_bad_links`; that a flapping node waits longer each time is the core's
(`scale_up_delay`), tested in virtual time."""

from rdzv_proto.messages import RunStatus
from tests.e2e.conftest import Cluster
from tests.e2e.kit.oneway import OneWayProxy, Way
from tests.e2e.kit.wait import stays

LEASE_S = 2.0
WAYS: dict[str, Way] = {"client-to-server": "up", "server-to-client": "down"}


def test_l11_a_link_cut_in_one_direction_costs_one_generation_and_no_churn(
    cluster: Cluster,
) -> None:
    """Both directions at the same time, each in a run of its own."""
    server = cluster.server()
    options = {"min_nodes": 2, "max_nodes": 3, "lease_s": LEASE_S, "last_call_timeout_s": 1}
    proxies = {run: OneWayProxy("127.0.0.1", server.port) for run in WAYS}
    try:
        for run, proxy in proxies.items():
            for name in ("one", "two"):
                cluster.node(server, run, name=name, **options)
            cluster.node(proxy.endpoint, run, name="cut", **options)
        before = {run: _number(server.live(run, 3, 30)) for run in WAYS}
        for run, way in WAYS.items():
            proxies[run].cut(way)
        after = {
            run: _number(server.live(run, 2, 3 * LEASE_S + 6, above=before[run])) for run in WAYS
        }
        assert after == {run: number + 1 for run, number in before.items()}
        stays(
            lambda: {run: server.generation(run) for run in WAYS} == after,
            cluster.quiet_s(30, 2), "no churn",
        )  # fmt: skip
        lost = [line for line in server.log_lines("node_lost") if "cut" in line]
        assert len(lost) == len(server.log_lines("node_lost")) == len(WAYS)
        for proxy in proxies.values():
            proxy.heal()
        for run in WAYS:
            server.live(run, 3, 30, above=after[run])
        assert len(server.log_lines("node_lost")) == len(WAYS)
    finally:
        for proxy in proxies.values():
            proxy.close()


def _number(status: RunStatus) -> int:
    assert status.fence is not None
    return status.fence.generation
