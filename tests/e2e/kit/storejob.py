"""One node that rendezvouses again and again and uses the workers' store each time, as case B36 wants.

`python -m tests.e2e.kit.storejob ENDPOINT ROUNDS`: in each round the handler's rank 0 opens torch's store
on MASTER_PORT as worker 0 would, the other one connects to it. Prints one JSON line a round. And
`python -m tests.e2e.kit.storejob --squat SECONDS`: a process that keeps taking ports.
"""

import json
import random
import signal
import socket
import sys
import time
from collections import deque
from datetime import timedelta
from typing import Any

STORE_S = 30.0
HELD = 60
"""Sockets that the squatter holds at a time, of the namespace's 200 ports."""


def node(endpoint: str, rounds: int) -> None:
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from rdzv_client.torch.handler import RdzvHandler

    params = RendezvousParameters(
        "rdzv", endpoint, "b36", 2, 2, None, join_timeout=60, last_call_timeout=2
    )
    handler = RdzvHandler.create(params)
    limit = timedelta(seconds=STORE_S)
    for number in range(rounds):
        info = handler.next_rendezvous()
        where = info.bootstrap_store_info
        fault, store = "", None
        try:
            store = TCPStore(
                where.master_addr, where.master_port, 2, info.rank == 0, timeout=limit,
                wait_for_workers=False,
            )  # fmt: skip
            store.set(f"r{info.rank}", f"{number}/{handler.get_run_id()}")
            theirs = store.get(f"r{1 - info.rank}").decode()
            store.add("done", 1)
            while info.rank == 0 and store.add("done", 0) < 2:
                time.sleep(0.001)
            if theirs != f"{number}/b36":
                fault = f"a foreign store: {theirs!r}"
        except RuntimeError as error:
            fault = f"{type(error).__name__}: {error}"
        say(round=number, rank=info.rank, port=where.master_port, fault=fault)
        del store
    handler.shutdown()


def squat(seconds: float) -> None:
    """Take free ports, bound or listening or connected, and give them back in another order."""
    rng = random.Random(36)
    held: deque[socket.socket] = deque()
    taken = 0
    end = time.monotonic() + seconds
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    while not stopped and time.monotonic() < end:
        sock = socket.socket()
        if rng.random() < 0.5:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("", 0))
            if rng.random() < 0.7:
                sock.listen(1)
        except OSError:
            sock.close()
            held.rotate(rng.randrange(HELD))
        else:
            taken += 1
            held.append(sock)
        while len(held) > HELD:
            held.popleft().close()
        time.sleep(0.0005)
    say(taken=taken)


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "--squat":
        squat(float(sys.argv[2]))
    else:
        node(sys.argv[1], int(sys.argv[2]))
