"""`RdzvStore` under gloo: process groups whose store is the daemon, through torch's own C++ code."""

import pytest

from tests.e2e.conftest import Cluster
from tests.e2e.kit.jobs import SCRIPT, Process

pytestmark = pytest.mark.torch

WORK = ("collectives", "groups", "mesh", "ddp", "destroy")


def test_workers_of_torchrun_form_groups_over_the_keys_of_their_generation(
    cluster: Cluster,
) -> None:
    server = cluster.server()
    agents = [
        cluster.agent(server, "store", "2", "env", *WORK, nproc=2, script=str(SCRIPT))
        for _ in range(2)
    ]
    for agent in agents:
        assert agent.wait(90) == 0, agent.log
        for word in WORK[:-1]:
            assert len(agent.lines(word)) == 2, agent.log
    inits = [row for agent in agents for row in agent.lines("init")]
    assert sorted(row["rank"] for row in inits) == [0, 1, 2, 3]
    assert len({row["weight"] for agent in agents for row in agent.lines("ddp")}) == 1


def test_processes_that_joined_by_themselves_do_too_and_rpc_works_over_it(
    cluster: Cluster,
) -> None:
    pytest.importorskip("torch")
    server = cluster.server()
    words = (
        f"{server.endpoint}/job/2",
        "collectives",
        "groups",
        "rpc_over_store",
        "destroy",
        "leave",
    )
    processes = [Process(cluster.folder, cluster.marker, i, *words) for i in range(2)]
    try:
        assert [p.wait(90) for p in processes] == [0, 0], processes[0].log
    finally:
        for process in processes:
            process.end()
    for process in processes:
        assert process.said("collectives")["sum"] == 3
        assert process.said("rpc")["answer"] == 100


def test_a_second_generation_never_sees_the_keys_of_the_first(cluster: Cluster) -> None:
    """The agents' fault of stock torchrun: a fast rank reads the dead attempt's addresses."""
    server = cluster.server()
    once = str(cluster.folder / "once")
    agents = [
        cluster.agent(
            server, "again", "2", "env", "collectives", f"fail_once={once}", "destroy",
            script=str(SCRIPT), restarts=2,
        )
        for _ in range(2)
    ]  # fmt: skip
    for agent in agents:
        assert agent.wait(90) == 0, agent.log
        numbers = [row["generation"] for row in agent.lines("collectives")]
        assert numbers[-1] == 2, numbers
