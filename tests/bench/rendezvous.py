"""c10d and rdzv in one harness, interleaved: how long until N agents have their ranks?

    python -m tests.bench rendezvous --nodes 2,8,64 --repeat 3

Absolute times depend on the machine and its other load; what holds is the ratio within one run, whose
two sides are measured in turn. All clients share this machine's cores, which at large N is the limit
for c10d above all: on as many hosts as nodes it would get further.
"""

import argparse
import contextlib
import functools
import multiprocessing as mp
import os
import statistics
from collections.abc import Iterator
from typing import Any

from tests.bench import servers
from tests.bench.agents import Outcome, c10d_handler, measure, rdzv_handler

CAP_S = 60.0
"""What takes longer is not waited for."""

PROCESSES = 8


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench rendezvous", description=__doc__)
    parser.add_argument("--nodes", default="2,8,32,64,128,256,512")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cap", type=float, default=CAP_S, help="seconds until c10d is given up")
    parser.add_argument(
        "--processes", type=int, default=PROCESSES,
        help="processes that the agents are threads of; with many more than cores, switching "
        "between them with cold caches is most of what is measured",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    import torch
    import torch.distributed.elastic.rendezvous  # noqa: F401

    head = f"{'N':>4} {'c10d s':>24} {'rdzv ms':>24} {'ratio':>14} {'cpu ms server c10d/rdzv':>25}"
    print(head + f" {'clients':>14}", flush=True)
    for nodes in map(int, options.nodes.split(",")):
        c10d, rdzv = [], []
        hopeless = False
        for _ in range(options.repeat):
            if not hopeless:
                c10d.append(_c10d(nodes, options))
                hopeless = c10d[-1].seconds is None  # once is enough to say so
            rdzv.append(_rdzv(nodes, options))
        print(_row(nodes, c10d, rdzv, options.cap), flush=True)
    return 0


def _row(nodes: int, c10d: list[Outcome], rdzv: list[Outcome], cap_s: float) -> str:
    ours = [o.seconds for o in rdzv if o.seconds is not None]
    theirs = [o.seconds for o in c10d if o.seconds is not None]
    left = _span(theirs, 1, 2) if len(theirs) == len(c10d) else f"did not finish in {cap_s:.0f} s"
    right = _span(ours, 1000, 1) if len(ours) == len(rdzv) else "did not finish"
    ratio = "–"
    if theirs and ours and len(theirs) == len(ours):
        pairs = [a / b for a, b in zip(theirs, ours, strict=True)]
        ratio = f"{statistics.median(pairs):.0f}x ({min(pairs):.0f}-{max(pairs):.0f})"
    elif ours:
        ratio = f"> {cap_s / statistics.median(ours):.0f}x"
    cpu = f"{_cpu(c10d, 'server_cpu_s')} / {_cpu(rdzv, 'server_cpu_s')}"
    clients = f"{_cpu(c10d, 'client_cpu_s')} / {_cpu(rdzv, 'client_cpu_s')}"
    return f"{nodes:>4} {left:>24} {right:>24} {ratio:>14} {cpu:>25} {clients:>14}"


def _span(values: list[float], unit: float, digits: int) -> str:
    scaled = [v * unit for v in values]
    middle = statistics.median(scaled)
    return f"{middle:.{digits}f} ({min(scaled):.{digits}f}-{max(scaled):.{digits}f})"


def _cpu(outcomes: list[Outcome], field: str) -> str:
    return f"{statistics.median(getattr(o, field) for o in outcomes) * 1000:.0f}"


def _c10d(nodes: int, options: argparse.Namespace) -> Outcome:
    with _tcpstore() as (pid, port):
        return _measure(c10d_handler, pid, port, nodes, options)


def _rdzv(nodes: int, options: argparse.Namespace) -> Outcome:
    with servers.rdzv() as server:
        return _measure(rdzv_handler, server.pid, server.port, nodes, options)


def _measure(handler: Any, pid: int, port: int, nodes: int, options: argparse.Namespace) -> Outcome:
    make = functools.partial(handler, port, options.cap)
    return measure(make, nodes, pid, processes=options.processes, cap_s=options.cap)


def _serve_tcpstore(ports: Any, stop: Any) -> None:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=True)
    ports.put((os.getpid(), store.port))
    stop.wait()


@contextlib.contextmanager
def _tcpstore() -> Iterator[tuple[int, int]]:
    context = mp.get_context("fork")
    ports, stop = context.Queue(), context.Event()
    process = context.Process(target=_serve_tcpstore, args=(ports, stop), daemon=True)
    process.start()
    try:
        yield ports.get(timeout=30)
    finally:
        process.kill()
        process.join()
