"""What one check has started: a server, ranks, torchrun agents. All of it is ended after the check."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.kit.nodes import Node
from tests.e2e.kit.processes import MARKER, kill, kill_marked
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until

SAFE = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
"""NVLink multicast off: it needs a fabric manager that a borrowed machine may lack, and no test needs it."""

CONF = "join_timeout=60,last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=5"

TRAIN = Path(__file__).parent / "train.py"


class GpuNode(Node):
    """A process with a rank on a GPU."""

    module = "tests.gpu.rank"


class Agent:
    """One torchrun agent with one worker on one GPU."""

    def __init__(
        self, folder: Path, marker: str, endpoint: str, run: str, gpu: int, *,
        store: str, backend: str, steps: int,
    ) -> None:  # fmt: skip
        self.log_path = folder / f"agent-{gpu}.log"
        self._out = folder / f"train-{gpu}.jsonl"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
            "--max-restarts", "3", "--rdzv-backend", "rdzv", "--rdzv-endpoint", endpoint,
            "--rdzv-id", run, "--rdzv-conf", f"{CONF},worker_store={store}",
            str(TRAIN), str(self._out), backend, str(steps),
        ]  # fmt: skip
        environment = os.environ | {
            MARKER: marker,
            "CUDA_VISIBLE_DEVICES": str(gpu),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(folder),
        }
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
            )

    def said(self, event: str) -> list[dict[str, Any]]:
        """What its workers said of a kind."""
        if not self._out.exists():
            return []
        lines = self._out.read_text().splitlines()
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        return [row for row in rows if row["event"] == event]

    def wait_for(self, event: str, timeout_s: float, count: int = 1) -> dict[str, Any]:
        """Wait until they said it so many times; a worker's wrong result or the agent's end is an error."""

        def said() -> dict[str, Any] | None:
            assert not self.said("wrong"), self.said("wrong")
            rows = self.said(event)
            if len(rows) >= count:
                return rows[count - 1]
            assert self.process.poll() is None, f"the agent ended:\n{self.tail()}"
            return None

        return until(said, timeout_s, f"{event} ({count}):\n{self.tail()}")

    def tail(self) -> str:
        """The end of its log."""
        return self.log_path.read_text()[-1500:]


class Bench:
    """Starts and ends processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.marker = folder, os.urandom(6).hex()
        folder.mkdir(parents=True)
        self._server: Server | None = None
        self._nodes: list[Node] = []
        self._agents: list[Agent] = []

    @property
    def server(self) -> Server:
        """Started at first use."""
        if self._server is None:
            self._server = Server(self.folder, self.marker)
        return self._server

    def rank(self, run: str, gpu: int, world: int, **options: Any) -> Node:
        """A process that joins a world of fixed size."""
        options = {
            "lease_s": 5, "last_call_timeout_s": 2, "join_timeout_s": 60, "min_nodes": world,
            "max_nodes": world, "device": gpu, "name": f"gpu{gpu}", **options,
        }  # fmt: skip
        node = GpuNode(self.folder, self.marker, self.server.endpoint, run, **options)
        self._nodes.append(node)
        return node

    def agent(self, run: str, gpu: int, **options: Any) -> Agent:
        """A torchrun agent."""
        agent = Agent(self.folder, self.marker, self.server.endpoint, run, gpu, **options)
        self._agents.append(agent)
        return agent

    def end(self) -> None:
        """End everything, and nothing else."""
        for agent in self._agents:
            if agent.process.poll() is None:
                kill(agent.process.pid)
        kill_marked(self.marker)
        for agent in self._agents:
            agent.process.wait(10)
        for node in self._nodes:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                node.end()
        if self._server is not None:
            self._server.kill()


def plugin_folder(folder: Path) -> str:
    """Where the package is not installed, torchrun finds the plug-in through this."""
    info = folder / "rdzv-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rdzv\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[torchrun.handlers]\nrdzv = rdzv_client.torch.plugin:get_handler_factory\n"
    )
    return str(folder)
