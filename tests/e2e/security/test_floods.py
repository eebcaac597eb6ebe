"""T14 and L10: requests without end, cheap ones and dear ones, by one session and by many."""

import pytest

from tests.e2e.conftest import Cluster
from tests.e2e.kit.attackers import Attack
from tests.e2e.kit.pulse import live_run
from tests.e2e.kit.server import Server
from tests.e2e.kit.swarm import Swarm

RATE = 5_000
BURST = 10_000


def _seconds(cluster: Cluster) -> float:
    return 30.0 if cluster.full else 1.5


def _flood(
    cluster: Cluster, server: Server, op: str, sessions: int, rate: float, *, fill: bool = False
) -> list[int]:
    """Flood and watch a live run beside it; how many requests of each session were answered."""
    seconds = _seconds(cluster)
    with live_run(cluster, server):
        attack = Attack(
            cluster,
            server,
            "flood",
            op=op,
            sessions=sessions,
            rate=rate,
            seconds=seconds,
            fill=fill,
        )
        told = attack.result(seconds + 60)
    print(f"{op}: {sum(told['answered']) / told['seconds']:.0f} answers a second; {told['closed']}")
    assert not told["closed"], "it is not read as fast as it writes; that is all"
    allowed = BURST + RATE * told["seconds"]
    assert max(told["answered"]) <= allowed * 1.05 + 256, f"more than {RATE} a second"
    answered: list[int] = told["answered"]
    return answered


def test_l10_one_session_is_answered_five_thousand_times_a_second_and_never_refused(
    cluster: Cluster,
) -> None:
    """T14"""
    server = cluster.server()
    (answered,) = _flood(cluster, server, "heartbeat", 1, 20_000)
    assert answered > BURST, "its burst, and then some"


def test_l10_many_sessions_of_one_run_do_not_delay_another_run(cluster: Cluster) -> None:
    """T14"""
    server = cluster.server()
    answered = _flood(cluster, server, "heartbeat", 16, 4_000)
    assert min(answered) > 0, "each of them gets its turn"


@pytest.mark.parametrize(
    "op",
    [
        "list", "wait for many",
        *(pytest.param(op, marks=pytest.mark.full) for op in ("get", "count", "check many", "get many")),
    ],
)  # fmt: skip
def test_l10_dear_requests_do_not_delay_another_run(cluster: Cluster, op: str) -> None:
    """T14: each of them looks at up to 16,384 keys, or is refused with a text."""
    _flood(cluster, cluster.server(), op, 4, 4_000, fill=True)


def test_l10_gathers_of_large_payloads_do_not_delay_another_run(cluster: Cluster) -> None:
    """T14: 16 members meet again and again, each time with the 4 MiB that a round may have; 64 MiB leave
    the server each time."""
    server = cluster.server()
    seconds = _seconds(cluster)
    with live_run(cluster, server):
        attack = Attack(cluster, server, "gather", sessions=16, bytes=256 << 10, seconds=seconds)
        told = attack.result(seconds + 60)
    print(f"{told['rounds']} rounds in {told['seconds']:.1f} s")
    assert told["rounds"] > 0


def test_l10_a_large_run_that_comes_and_goes_does_not_delay_another_run(cluster: Cluster) -> None:
    """L10: one run of 2,000 nodes (full: 9,000) joins, is told of its world, and drops. Forming it is one
    step of the core, so a heartbeat waits for that once; the figure's maximum shows how long."""
    server = cluster.server()
    size = 9_000 if cluster.full else 2_000
    watched_s = 30.0 if cluster.full else 3.0
    with (
        live_run(cluster, server, at_least_s=watched_s),
        Swarm(cluster, server, "large", size, nice=True) as swarm,
    ):
        print(f"formed in {swarm.formed():.2f} s")
