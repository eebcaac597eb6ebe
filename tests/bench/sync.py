"""Barriers, joins, keys and idle clients of raw connections: rdzv, TCPStore and a C reference in turn.

    python -m tests.bench sync --sizes 64,512,4000 --repeat 5

The clients are one C program (compiled here, with `cc`) on one core, the server measured is on another.
Absolute times depend on the machine and its other load; what holds is the ratio within one repetition,
whose servers are measured one right after the other. CPU times are the server's own. Numbers are medians,
ranges follow in brackets. The C reference (an epoll loop without rules) is used where its source is:
in the folder that RDZV_BENCH_SHARED names, or in ../shared/bench.
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import servers
from tests.bench.dialects import KV_OPS, Dialect, Rdzv, Reference, Store
from tests.bench.load import Generator, compile_c
from tests.bench.servers import Server

PARTS = ("barrier", "join", "kv", "memory")
SIZES = "64,256,512,1000,2000,4000"
LOADS = "1x1,256x1,256x16"
IDLE_CLIENTS = 4_000
HEARTBEAT_S = 1.0
SPARE_DESCRIPTORS = 100
JOINS = 3
"""Joins of each repetition: each is a run with connections of its own."""


@dataclass
class Row:
    """What was measured of one thing: values of each server, one per repetition."""

    part: str
    what: str
    unit: str
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """CPU time of the server: per round in ms, per request in µs."""

    def ratios(self, other: str) -> list[float]:
        """Ours through theirs, for each repetition."""
        return [a / b for a, b in zip(self.values["rdzv"], self.values[other], strict=True)]

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        return {
            "part": self.part, "what": self.what, "unit": self.unit, "values": dict(self.values),
            "server_cpu": dict(self.cpu),
            "ratios": {o: self.ratios(o) for o in self.values if o != "rdzv"},
        }  # fmt: skip


class Bench:
    """All measurements of one call."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        cpus = sorted(os.sched_getaffinity(0))
        self._server_cpu: int | None = None
        load_cpu: int | None = None
        if len(cpus) > 1:
            self._server_cpu, load_cpu = cpus[0], cpus[-1]
        else:
            _say("one core only: server and clients share it, and no time here means much")
        self._generator = Generator(folder, load_cpu)
        self._reference: Path | None = None
        source = servers.reference_source()
        if source is None:
            _say(f"no C reference (cserver.c): {servers.REFERENCE_ENV} does not name its folder")
        else:
            self._reference = compile_c(source, folder / "cserver")
        self.rows: dict[tuple[str, str], Row] = {}

    def repeat(self, part: Callable[[], None]) -> None:
        """A part as often as asked for, each time with a fresh TCPStore."""
        for _ in range(self.options.repeat):
            with servers.tcpstore(self._server_cpu) as server:
                self._store = Store(server)
                part()

    @contextlib.contextmanager
    def each(self) -> Iterator[list[Dialect]]:
        """The servers. Ours and the reference start anew: what is left of the clients before would
        be cleaned away while the next are measured. TCPStore takes seconds to start, and keeps
        nothing of clients that are gone."""
        with contextlib.ExitStack() as stack:
            dialects: list[Dialect] = [
                Rdzv(stack.enter_context(servers.rdzv(self._server_cpu))),
                self._store,
            ]
            if self._reference is not None:
                program, cpu = self._reference, self._server_cpu
                dialects.append(Reference(stack.enter_context(servers.reference(program, cpu))))
            yield dialects

    def barrier(self) -> None:
        """First send to last release, the median of many rounds on the same connections."""
        for n in self.options.sizes:
            rounds = max(5, min(20, 20_000 // n))
            row = self._row("barrier", f"{n}", "ms")
            with self.each() as dialects:
                for dialect in dialects:
                    load = dialect.barrier(n)
                    load.run = f"rounds {rounds}"
                    result = self._run(dialect.server, load)
                    row.values[dialect.server.name].append(_median_ms(result["total_s"]))
                    row.cpu[dialect.server.name].append(result["cpu_s"] * 1e3 / rounds)

    def join(self) -> None:
        """First join to last rank, on connections that have said hello."""
        for n in self.options.sizes:
            results = defaultdict(list)
            for _ in range(JOINS):
                with self.each() as dialects:
                    for dialect in dialects:
                        result = self._run(dialect.server, dialect.join(n))
                        results[dialect.server.name].append(result)
            row = self._row("join", f"{n}", "ms")
            for name, got in results.items():
                row.values[name].append(_median_ms([r["total_s"][0] for r in got]))
                row.cpu[name].append(_median_ms([r["cpu_s"] for r in got]))

    def kv(self) -> None:
        """Requests per second, each client with so many in flight."""
        for op in KV_OPS:
            for n, depth in self.options.loads:
                with self.each() as dialects:
                    for dialect in dialects:
                        self._kv(dialect, op, n, depth)

    def _kv(self, dialect: Dialect, op: str, n: int, depth: int) -> None:
        load = dialect.kv(op, n)
        load.run = f"rps {depth} {self.options.seconds}"
        result = self._run(dialect.server, load)
        row, name = self._row("kv", f"{op} {n} x {depth}", "requests/s"), dialect.server.name
        row.values[name].append(result["requests"] / result["seconds"])
        row.cpu[name].append(result["cpu_s"] * 1e6 / max(1, result["requests"]))

    def memory(self, members: bool) -> Callable[[], None]:
        """What a server grows by, for each client that only says that it is alive."""

        def part() -> None:
            n = min(IDLE_CLIENTS, max(self.options.sizes))
            row = self._row(
                "memory", f"{n} {'members' if members else 'sessions'}", "bytes/connection"
            )
            with self.each() as dialects:
                for dialect in dialects:
                    server = dialect.server
                    server.settle()
                    before = server.memory_bytes()
                    load = dialect.idle(n, members=members)
                    load.run = f"hold {HEARTBEAT_S}"
                    with self._generator.hold(server, load):
                        time.sleep(2.5 * HEARTBEAT_S)
                        row.values[server.name].append((server.memory_bytes() - before) / n)

        return part

    def _run(self, server: Server, load: Any) -> dict[str, Any]:
        server.settle()
        return self._generator.run(server, load)

    def _row(self, part: str, what: str, unit: str) -> Row:
        return self.rows.setdefault((part, what), Row(part, what, unit))


def main(arguments: list[str]) -> int:
    """Measure and print."""
    options = _options(arguments)
    options.sizes = _that_fit(options.sizes)
    with tempfile.TemporaryDirectory(prefix="rdzv-bench-") as folder:
        bench = Bench(options, Path(folder))
        for part in options.only:
            if part == "memory":
                bench.repeat(bench.memory(members=False))
                bench.repeat(bench.memory(members=True))
            else:
                bench.repeat(getattr(bench, part))
            if not options.json:
                _print(part, [row for row in bench.rows.values() if row.part == part])
    if options.json:
        print(json.dumps([row.as_json() for row in bench.rows.values()], indent=1))
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench sync", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--sizes", default=SIZES, help="clients of barriers and joins")
    parser.add_argument("--loads", default=LOADS, help="for keys: clients x requests in flight")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one key measurement")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, of " + ", ".join(PARTS))
    parser.add_argument("--json", action="store_true", help="every value, instead of tables")
    options = parser.parse_args(arguments)
    options.sizes = [int(n) for n in options.sizes.split(",")]
    options.loads = [tuple(map(int, load.split("x"))) for load in options.loads.split(",")]
    options.only = options.only.split(",")
    if not set(options.only) <= set(PARTS):
        parser.error(f"--only takes parts of {', '.join(PARTS)}")
    return options


def _that_fit(sizes: list[int]) -> list[int]:
    """Take all the descriptors that the hard limit gives; what needs more is left out."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    fit = [n for n in sizes if n + SPARE_DESCRIPTORS <= hard]
    if len(fit) < len(sizes):
        _say(f"left out, since `ulimit -Hn` is {hard}: {sorted(set(sizes) - set(fit))}")
    if not fit:
        raise SystemExit("no size is left to measure")
    return fit


def _print(part: str, rows: list[Row]) -> None:
    names = list(rows[0].values)
    others = names[1:]
    head = f"\n{part + ', ' + rows[0].unit:<24}" + "".join(f"{name:>26}" for name in names)
    head += "".join(f"{'rdzv / ' + name:>22}" for name in others)
    print(head + ("" if part == "memory" else f"   server CPU, {_cpu_unit(part)}"), flush=True)
    for row in rows:
        line = f"{row.what:<24}" + "".join(f"{_span(row.values[n]):>26}" for n in names)
        line += "".join(f"{_span(row.ratios(name)):>22}" for name in others)
        cpu = " / ".join(f"{statistics.median(row.cpu[n]):.2f}" for n in names if row.cpu[n])
        print(f"{line}   {cpu}".rstrip(), flush=True)


def _cpu_unit(part: str) -> str:
    return "µs per request" if part == "kv" else "ms per round"


def _span(values: list[float]) -> str:
    middle = statistics.median(values)
    digits = 0 if middle >= 1000 else 1 if middle >= 100 else 2
    return f"{middle:.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def _median_ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e3


def _say(text: str) -> None:
    print(f"sync: {text}", file=sys.stderr, flush=True)
