"""N agents as threads in P processes, each with its own rendezvous handler: one harness for both.

The clock runs from the first agent's call of `next_rendezvous()` to the last one's return. Before it
starts, on both sides alike, each agent has made its handler with its connection, and has met once
alone under a run id of its own: the processes are forked from one that imported torch, and without
that the first touch of each page (copied by the kernel) would be most of what is measured.
"""

import datetime
import gc
import multiprocessing as mp
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event, Semaphore
from typing import Any, NamedTuple

THREAD_STACK_BYTES = 512 * 1024
"""Hundreds of threads on one machine."""


class Outcome(NamedTuple):
    """One run of the harness."""

    seconds: float | None
    """First start to all returned; None: did not finish within the cap."""
    server_cpu_s: float
    client_cpu_s: float
    returned: int


Make = Callable[[str, int], Any]
"""Makes one handler, from a run id and a number of nodes."""


def c10d_handler(port: int, cap_s: float, run: str, nodes: int) -> Any:
    """torch's own handler, as `--rdzv-backend=c10d` makes it, but for the guess who is host."""
    import torch.distributed as dist
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
        DynamicRendezvousHandler,
        RendezvousTimeout,
    )

    patience = datetime.timedelta(seconds=cap_s)
    store = dist.TCPStore(
        "127.0.0.1", port, None, False, timeout=patience, multi_tenant=True, use_libuv=True
    )
    backend = C10dRendezvousBackend(store, run)
    return DynamicRendezvousHandler.from_backend(
        run, store, backend, nodes, nodes, "127.0.0.1", RendezvousTimeout(join=patience)
    )


def rdzv_handler(port: int, cap_s: float, run: str, nodes: int) -> Any:
    """Ours, as `--rdzv-backend=rdzv` makes it."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from rdzv_client.torch.plugin import create_handler

    handler = create_handler(
        RendezvousParameters(
            "rdzv", f"127.0.0.1:{port}", run, nodes, nodes, join_timeout=str(cap_s)
        )
    )
    handler._client.connect()
    return handler


def _agent(
    make: Make, name: str, nodes: int, ready: Semaphore, go: threading.Event,
    results: list[tuple[float, float, int]], keep: list[Any],
) -> None:  # fmt: skip
    alone = make(f"alone-{name}", 1)
    alone.next_rendezvous()
    alone.shutdown()
    handler = make("bench", nodes)
    keep.append(handler)
    ready.release()
    go.wait()
    began = time.monotonic()
    try:
        info = handler.next_rendezvous()
        results.append((began, time.monotonic(), info.rank))
        keep.append(info)
    except Exception as error:  # noqa: BLE001  (this agent did not make it; the table says so)
        if all(rank >= 0 for *_, rank in results):  # the first of this process stands for all
            sys.stderr.write(f"N={nodes}: {type(error).__name__}: {str(error)[:120]}\n")
        results.append((began, time.monotonic(), -1))


def _process(
    make: Make, index: int, count: int, nodes: int, ready: Semaphore, start: int,
    out: "mp.Queue[Any]", stop: Event,
) -> None:  # fmt: skip
    threading.stack_size(THREAD_STACK_BYTES)
    go = threading.Event()
    results: list[tuple[float, float, int]] = []
    keep: list[Any] = []
    threads = [
        threading.Thread(
            target=_agent,
            args=(make, f"{index}-{i}", nodes, ready, go, results, keep),
            daemon=True,
        )
        for i in range(count)
    ]
    for thread in threads:
        thread.start()
    os.read(start, 1)
    cpu = time.process_time()
    go.set()
    for thread in threads:
        thread.join()
    out.put((results, time.process_time() - cpu))
    stop.wait()
    os._exit(0)


def measure(make: Make, nodes: int, server_pid: int, *, processes: int, cap_s: float) -> Outcome:
    """Run N agents once.

    Args:
        make: makes handlers.
        nodes: N.
        server_pid: whose CPU time is charged to the server.
        processes: at most so many.
        cap_s: what does not finish by then counts as unfinished.
    """
    context = mp.get_context("fork")
    gc.collect()
    gc.freeze()  # else a collection in a child copies every page of torch's objects
    processes = min(nodes, processes)
    ready, stop = context.Semaphore(0), context.Event()
    start, starter = os.pipe()  # a byte per process: cheaper than an Event shared by hundreds
    out: mp.Queue[Any] = context.Queue()
    shares = [nodes // processes + (i < nodes % processes) for i in range(processes)]
    workers = [
        context.Process(
            target=_process,
            args=(make, index, share, nodes, ready, start, out, stop),
            daemon=True,
        )
        for index, share in enumerate(shares)
    ]
    for worker in workers:
        worker.start()
    for _ in range(nodes):
        ready.acquire()
    before = cpu_s(server_pid)
    time.sleep(0.2)
    os.write(starter, b"x" * processes)
    deadline = time.monotonic() + cap_s + 10
    results: list[tuple[float, float, int]] = []
    client_cpu = 0.0
    finished = 0
    while finished < processes and time.monotonic() < deadline:
        try:
            rows, cpu = out.get(timeout=max(0.1, deadline - time.monotonic()))
        except queue.Empty:
            break
        results += rows
        client_cpu += cpu
        finished += 1
    after = cpu_s(server_pid)
    for worker in workers:
        worker.kill()
        worker.join()
    os.close(start)
    os.close(starter)
    good = [row for row in results if row[2] >= 0]
    complete = len(good) == nodes and sorted(row[2] for row in good) == list(range(nodes))
    seconds = max(r[1] for r in good) - min(r[0] for r in good) if complete else None
    if seconds is not None and seconds > cap_s:
        seconds = None
    return Outcome(seconds, after - before, client_cpu, len(good))


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, user and system."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
