"""What raw clients send, and the C program that sends it (`sync_load.c`)."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.servers import Server, pinned

SOURCE = Path(__file__).with_name("sync_load.c")

LOAD_TIMEOUT_S = 240.0
"""One measurement takes seconds; the program gives up by itself after a minute of silence."""


class Client(NamedTuple):
    """One client."""

    request: bytes
    setup: tuple[tuple[bytes, int], ...]
    """Sent before the clock runs, at most two steps, with how many answers follow (bytes of them with
    fixed framing)."""


@dataclass
class Load:
    """Clients and how to read the answers to them. The fields are those of the script."""

    clients: list[Client]
    fixed_bytes: int = 0
    """Answers are so long; 0: they begin with their length."""
    skip: bytes = b""
    expect: bytes = b""
    id_at: int = -1
    round_at: int = -1
    acknowledge: tuple[int, int, bytes] | None = None
    then: tuple[bytes, bytes, bytes, int, int] | None = None
    run: str = field(default="rounds 1", kw_only=True)

    def script(self, server: Server) -> Iterator[str]:
        """The script, line by line."""
        yield f"port {server.port}"
        yield f"clients {len(self.clients)}"
        yield f"framing fixed {self.fixed_bytes}" if self.fixed_bytes else "framing prefix"
        yield f"skip {_hex(self.skip)}"
        yield f"expect {_hex(self.expect)}"
        yield f"id_at {self.id_at}"
        yield f"round_at {self.round_at}"
        if self.acknowledge is not None:
            every, at, frame = self.acknowledge
            yield f"acknowledge {every} {at} {_hex(frame)}"
        if self.then is not None:
            win, last, next_, next_at, last_at = self.then
            yield f"then {_hex(win)} {_hex(last)} {_hex(next_)} {next_at} {last_at}"
        for path in server.cpu_paths():
            yield f"cpu {path}"
        for request, setup in self.clients:
            steps = " ".join(f"{_hex(data)} {units}" for data, units in setup)
            yield f"client {_hex(request)} {steps}"
        yield self.run


class Generator:
    """The compiled load generator.

    Args:
        folder: to compile into.
        cpu: where it runs.
    """

    def __init__(self, folder: Path, cpu: int | None) -> None:
        self._program = compile_c(SOURCE, folder / "sync_load")
        self._cpu = cpu

    def run(self, server: Server, load: Load) -> dict[str, Any]:
        """Run a load to its end; the program's own result."""
        with self.hold(server, load) as result:
            return result

    @contextmanager
    def hold(self, server: Server, load: Load) -> Iterator[dict[str, Any]]:
        """Run a load until it gives a result, and keep its clients until the end of the block."""
        process = subprocess.Popen(
            pinned([str(self._program)], self._cpu),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write("\n".join(load.script(server)) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"{server.name}: the load generator failed: {load.run}")
            result: dict[str, Any] = json.loads(line)
            yield result
        finally:
            process.stdin.close()
            process.stdout.close()
            try:
                process.wait(LOAD_TIMEOUT_S)
            finally:
                process.kill()


def compile_c(source: Path, program: Path) -> Path:
    """Compile one C file.

    Raises:
        SystemExit: there is no compiler, or it fails.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise SystemExit(
            "this bench needs a C compiler for its load generator (`cc`, or the one that CC names): "
            "clients in Python would be slower than the servers that they measure"
        )
    subprocess.run([compiler, "-O2", "-w", "-o", str(program), str(source)], check=True)
    return program


def _hex(data: bytes) -> str:
    return data.hex() or "-"
