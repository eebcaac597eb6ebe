"""T1 and B40 (a), (d): who can reach the port at all."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.conftest import Cluster, need_root
from tests.e2e.kit.netns import Net
from tests.e2e.kit.processes import MARKER

EXIT_USAGE = 2
LISTENING = "0A"


def listening(pid: int) -> set[tuple[str, int]]:
    """Addresses (in hex, as the kernel shows them) and ports on which a process listens."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            _, local, _, state, *_ = fields = line.split()
            if state == LISTENING and f"socket:[{fields[9]}]" in inodes:
                address, _, port = local.partition(":")
                found.add((address, int(port, 16)))
    return found


def start(cluster: Cluster, *arguments: str, prefix: Sequence[str] = ()) -> "subprocess.Popen[str]":
    """The installed command, with nothing added to what a user writes."""
    script = str(Path(sys.executable).parent / "rdzv-server")
    return subprocess.Popen(
        [*prefix, script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {MARKER: cluster.marker},
    )  # fmt: skip


def ready(process: "subprocess.Popen[str]") -> tuple[str, int]:
    """Address and port of the READY line."""
    assert process.stdout is not None
    fields = dict(part.split("=", 1) for part in process.stdout.readline().split()[1:])
    return fields["host"], int(fields["port"])


LOOPBACK_HEX = "0100007F"


@pytest.mark.parametrize("given", [(), ("--host", "127.0.0.1")], ids=["default", "--host"])
def test_b40a_it_listens_on_loopback_and_nowhere_else(
    cluster: Cluster, given: tuple[str, ...]
) -> None:
    """T1: also the ports of workers' stores, and not even while the address is being looked up."""
    process = start(cluster, "--port", "0", *given)
    try:
        host, port = ready(process)
        assert host == "127.0.0.1"
        assert listening(process.pid) == {(LOOPBACK_HEX, port)}
    finally:
        process.kill()
        _, log = process.communicate(timeout=10)
    assert "event=insecure " not in log


def test_b40a_a_workers_store_listens_where_the_server_does(cluster: Cluster) -> None:
    """T1: `worker_store=server` opens a port for each generation."""
    server = cluster.server()
    nodes = [
        cluster.node(server, "b40", min_nodes=2, name=f"n{i}", worker_store="server")
        for i in range(2)
    ]
    for node in nodes:
        node.joined(2, 20)
    store = server.inside("b40").store
    assert store is not None
    assert listening(server.pid) == {(LOOPBACK_HEX, server.port), (LOOPBACK_HEX, store.port)}


def refused(cluster: Cluster, *arguments: str, prefix: Sequence[str] = ()) -> str:
    """Start it; it must end at once with one line, and never have listened."""
    process = start(cluster, "--port", "0", *arguments, prefix=prefix)
    try:
        out, log = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == EXIT_USAGE, log
    assert not out
    assert len(log.splitlines()) == 1
    return log


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "::ffff:0.0.0.0"])
def test_b40d_a_wider_address_is_refused_and_both_ways_out_are_named(
    cluster: Cluster, host: str
) -> None:
    """T1"""
    line = refused(cluster, "--host", host)
    assert "--token-file" in line
    assert "--insecure-no-auth" in line
    assert "refusing to listen" in line


@pytest.mark.root
def test_b40d_an_address_of_the_network_is_refused_unless_that_is_asked_for(
    cluster: Cluster,
) -> None:
    """T1: with `--insecure-no-auth` it warns at each start."""
    need_root("ip")
    with Net(cluster.marker) as net:
        host = net.host(9)
        line = refused(cluster, "--host", host.address, prefix=host.prefix())
        assert host.address in line
        for _ in range(2):
            process = start(
                cluster, "--port", "29511", "--host", host.address, "--insecure-no-auth",
                prefix=host.prefix(),
            )  # fmt: skip
            try:
                assert ready(process) == (host.address, 29511)
            finally:
                process.terminate()
                _, log = process.communicate(timeout=20)
            (warning,) = [line for line in log.splitlines() if "event=insecure " in line]
            assert "level=warning" in warning
            assert host.address in warning


def test_the_variable_of_the_insecure_switch_warns_as_the_flag_does(cluster: Cluster) -> None:
    """T1: it may be set in an image, far from whoever starts the server."""
    server = cluster.server(environment={"RDZV_INSECURE_NO_AUTH": "1"})
    assert server.log_lines("insecure")
