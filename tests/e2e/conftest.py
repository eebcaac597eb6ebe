"""Fixtures of the end-to-end tests: everything a test starts is ended, and its logs are read."""

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rdzv_client.engine import INTERNAL
from rdzv_proto import auth
from tests.e2e.kit import leaks
from tests.e2e.kit.agents import Agent, Launcher
from tests.e2e.kit.leaks import Search
from tests.e2e.kit.nodes import NcclNode, NextNode, Node
from tests.e2e.kit.processes import kill_marked, marked
from tests.e2e.kit.server import Server

LINES_SHOWN = 120
"""Of each log, when a test fails: a few tracebacks."""


class Cluster:
    """What one test has started."""

    def __init__(self, folder: Path, launcher: Callable[[], Launcher], full: bool) -> None:
        self.folder = folder
        self.marker = os.urandom(6).hex()
        self._launcher = launcher
        self.full = full
        self.servers: list[Server] = []
        self.nodes: list[Node] = []
        self.agents: list[Agent] = []
        self.shown: list[str] = []

    def quiet_s(self, full_s: float, short_s: float) -> float:
        """How long to watch that nothing happens: in full with --full, three leases otherwise."""
        return full_s if self.full else min(full_s, short_s)

    def server(self, *arguments: str, **options: Any) -> Server:
        """Start a server; flags as for rdzv-server, options as for `kit.server.Server`."""
        options.setdefault("name", f"server{len(self.servers)}")
        if "--token-file" in arguments:
            path = Path(arguments[arguments.index("--token-file") + 1])
            tokens = auth.read(path.read_bytes(), path.stat().st_mode, str(path))
            leaks.note(*(token.secret for token in tokens))
        server = Server(self.folder, self.marker, *arguments, **options)
        self.servers.append(server)
        return server

    def node(self, server: Server | str, run: str, **options: Any) -> Node:
        """Start a raw node; options as for `rdzv_client.Client`, with a short lease."""
        return self._node(Node, server, run, options)

    def nccl_node(self, server: Server | str, run: str, **options: Any) -> Node:
        """Start a raw node that takes part in NCCL communicators."""
        return self._node(NcclNode, server, run, options)

    def next_node(self, server: Server | str, run: str, **options: Any) -> Node:
        """Start a raw node that speaks the next protocol version as well."""
        return self._node(NextNode, server, run, options)

    def _node(
        self, kind: type[Node], server: Server | str, run: str, options: dict[str, Any]
    ) -> Node:
        endpoint = server if isinstance(server, str) else server.endpoint
        options = {"lease_s": 5, "last_call_timeout_s": 2, "join_timeout_s": 30} | options
        node = kind(self.folder, self.marker, endpoint, run, **options)
        self.nodes.append(node)
        return node

    def agent(
        self, server: Server | str | None, run: str | None, nnodes: str, *work: str,
        real: bool = False, **options: Any,
    ) -> Agent:  # fmt: skip
        """Start a torchrun agent: forked from a process that has torch, or the real script."""
        endpoint = server.endpoint if isinstance(server, Server) else server
        options.setdefault("name", f"a{len(self.agents) + 1}")
        launcher = None if real else self._launcher()
        agent = Agent(
            self.folder, self.marker, endpoint, run, nnodes, *work, launcher=launcher, **options
        )
        self.agents.append(agent)
        return agent

    def end(self) -> None:
        """End everything."""
        shown = Search(leaks.noted(os.environ[leaks.VARIABLE])).processes(marked(self.marker))
        self.shown = list(shown)
        for agent in self.agents:
            agent.end()
        for node in self.nodes:
            node.end()
        for server in self.servers:
            server.kill()
        kill_marked(self.marker)

    def logs(self) -> Iterator[tuple[str, str]]:
        """Name and last lines of what each process wrote."""
        for path in sorted(self.folder.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()
            yield path.name, "\n".join(lines[-LINES_SHOWN:])

    def check_logs(self) -> None:
        """No server may have had a fault, and no agent or node one of ours; and no process shows a secret."""
        assert not self.shown, "a secret can be seen from outside"
        for server in self.servers:
            assert "Traceback" not in server.log, server.log
            assert "internal error" not in server.log, server.log
        for log in [one.log for one in self.agents] + [one.log for one in self.nodes]:
            assert INTERNAL not in log, log


@pytest.fixture(scope="session", autouse=True)
def no_leaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """After all tests: no file that they left holds a secret that any of their processes had."""
    with tempfile.TemporaryDirectory(prefix="rdzv-noted-") as folder:
        path = os.path.join(folder, "secrets")
        Path(path).touch()
        os.environ[leaks.VARIABLE] = path
        yield
        del os.environ[leaks.VARIABLE]
        found = list(Search(leaks.noted(path)).files(tmp_path_factory.getbasetemp()))
    assert not found, "secrets in files"


@pytest.fixture(scope="session")
def launcher_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Launcher]]:
    """The process that has imported torch, started when the first test needs it."""
    started: list[Launcher] = []

    def get() -> Launcher:
        if not started:
            pytest.importorskip("torch")
            started.append(Launcher(tmp_path_factory.mktemp("launcher")))
        return started[0]

    yield get
    for launcher in started:
        launcher.close()


@pytest.fixture
def cluster(
    tmp_path: Path, launcher_once: Callable[[], Launcher], request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """Start servers, nodes and agents with it; all of them are ended after the test."""
    made = Cluster(tmp_path, launcher_once, bool(request.config.getoption("--full")))
    try:
        yield made
    finally:
        made.end()
    made.check_logs()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows the logs of all its processes: the one that it waited for is seldom
    the one that began it."""
    report = yield
    made = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(made, Cluster):
        report.sections.extend(made.logs())
    return report


def need_root(*tools: str) -> None:
    """Skip by name what needs root, namespaces or a tool that is not here."""
    if os.geteuid() != 0:
        pytest.skip("needs root (namespaces)")
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"needs root and {tool}, which is not installed")
