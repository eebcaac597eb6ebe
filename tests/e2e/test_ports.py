"""MASTER_PORT belongs to the generation it was given to, whatever else takes ports on that machine."""

import itertools
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.conftest import Cluster, need_root
from tests.e2e.kit.netns import Net
from tests.e2e.kit.processes import MARKER

ROUNDS, ROUNDS_SHORT = 200, 25
LIMIT_S = 400.0


def lines(process: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    out, _ = process.communicate(timeout=LIMIT_S)
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


@pytest.mark.root
@pytest.mark.torch
@pytest.mark.timeout(500)
def test_b36_a_reserved_port_is_never_taken_by_somebody_else(cluster: Cluster) -> None:
    need_root("ip", "sysctl")
    pytest.importorskip("torch")
    rounds = ROUNDS if cluster.full else ROUNDS_SHORT
    with Net(cluster.marker) as net:
        host = net.host(1)
        host.run("sysctl", "-qw", "net.ipv4.ip_local_port_range=50000 50199")
        server = cluster.server(host="127.0.0.1", port=29500, prefix=host.prefix())

        def start(*arguments: str) -> "subprocess.Popen[str]":
            return subprocess.Popen(
                [*host.prefix(), sys.executable, "-m", "tests.e2e.kit.storejob", *arguments],
                stdout=subprocess.PIPE, text=True,
                env=os.environ | {MARKER: cluster.marker, "RDZV_LOG_LEVEL": "error"},
            )  # fmt: skip

        squatter = start("--squat", str(LIMIT_S))
        nodes = [start(server.endpoint, str(rounds)) for _ in range(2)]
        told = [lines(node) for node in nodes]
        squatter.terminate()
        (end,) = lines(squatter)
    assert end["taken"] > rounds, "nobody took ports meanwhile"
    assert [node.returncode for node in nodes] == [0, 0]
    assert [len(rows) for rows in told] == [rounds, rounds]
    faults = [row for rows in told for row in rows if row["fault"]]
    assert not faults, faults[:3]
    ports = [row["port"] for row in told[0]]
    assert all(50_000 <= port <= 50_199 for port in ports)
    assert all(a != b for a, b in itertools.pairwise(ports)), "a fresh port each time"
