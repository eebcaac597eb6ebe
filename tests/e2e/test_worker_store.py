"""The workers' store on the server: unmodified torchrun jobs, with `worker_store=server` and with
torch's own c10d backend pointed at `--tcpstore`."""

from typing import TYPE_CHECKING

import pytest

from tests.e2e.kit.agents import Agent
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until

if TYPE_CHECKING:
    from tests.e2e.conftest import Cluster

pytestmark = pytest.mark.torch

SERVED: dict[str, str | None] = {"worker_store": "server"}


def pair(
    cluster: "Cluster", server: Server, run: str, *work: str, nproc: int = 1, **options: object
) -> list[Agent]:
    return [
        cluster.agent(server, run, "2", *work, nproc=nproc, **({"conf": SERVED} | options))  # type: ignore[arg-type]
        for _ in range(2)
    ]


def test_workers_meet_in_the_store_of_the_server(cluster: "Cluster") -> None:
    server = cluster.server()
    agents = pair(cluster, server, "served", "gloo", nproc=2)
    assert [agent.wait(60) for agent in agents] == [0, 0], agents[0].log
    for agent in agents:
        rows = agent.lines("all_reduce")
        assert len(rows) == 2
        assert all(row["good"] for row in rows)
        assert all(row["MASTER_ADDR"] == "127.0.0.1" for row in rows)
        assert "workers' store: the server. MASTER_ADDR=127.0.0.1 MASTER_PORT=" in agent.log
    ports = {row["MASTER_PORT"] for agent in agents for row in agent.lines()}
    assert len(ports) == 1
    assert f"port={ports.pop()}" in server.log_lines("store_opened")[0]
    until(lambda: server.log_lines("store_closing"), 10, "the store ends with its generation")
