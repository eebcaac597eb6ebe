"""A rank on a GPU, as a process: a raw node (`tests.e2e.kit.rawnode`) with one command more.

`{"do": "comm", "nranks": 2, "n_ids": 1, "via": "ctypes"}` makes a communicator with an id from the server and
checks an all-reduce; `loop` goes on reducing until somebody is lost, `blocking: false` makes an init that
can be aborted, `join: false` fetches the id and stays away. It aborts when its ids are revoked or its
generation ends, and rejoins as every raw node does.
"""

import importlib
import json
import logging
import sys
import threading
import time
from typing import Any

from rdzv_client import RdzvError, nccl_library
from rdzv_client.nccl import NcclComm
from tests.e2e.kit.rawnode import RawNode, say
from tests.gpu.binding import Comm, Nccl, NcclError

COUNT = 1 << 20
"""Numbers in an all-reduce: 4 MiB, so that more than one channel works."""


class GpuRank(RawNode):
    def __init__(self, options: dict[str, Any]) -> None:
        self._device = options.pop("device")
        super().__init__(options)

    def obey(self, command: dict[str, Any]) -> None:
        if command["do"] == "comm":
            del command["do"]
            threading.Thread(target=self._comm, args=(command,), daemon=True).start()
        else:
            super().obey(command)

    def _comm(self, command: dict[str, Any]) -> None:
        g = self._generation
        via, loop = command.pop("via", "ctypes"), command.pop("loop", False)
        blocking, join = command.pop("blocking", True), command.pop("join", True)
        command.setdefault("rank", g.rank)
        began = time.monotonic()
        try:
            if via == "cupy":
                self._with_cupy(g, command)
                return
            torch = importlib.import_module("torch")
            torch.cuda.set_device(self._device)
            torch.zeros(1, device="cuda")
            nccl = Nccl(nccl_library.find().where)
            began = time.monotonic()
            h = g.nccl_comm("dp", **command)
            h.__enter__()
            say("ids", attempt=h.unique_ids.attempt, took_s=time.monotonic() - began)
            if not join:
                return
            comm = self._init(nccl, h, command, blocking)
            h.__exit__(None, None, None)
            say("comm", took_s=time.monotonic() - began, version=nccl.version)
            g.ended.when_set(lambda: self._abort(comm, g.ended.reason))
            self._reduce(torch, comm, loop)
            if not loop:
                comm.destroy()
        except (RdzvError, NcclError) as error:
            say(
                "failed", do="comm", error=type(error).__name__, message=str(error),
                took_s=time.monotonic() - began,
            )  # fmt: skip

    def _init(self, nccl: Nccl, h: NcclComm, command: dict[str, Any], blocking: bool) -> Comm:
        try:
            if blocking:
                return nccl.init(command["nranks"], h.ids, command["rank"])
            comm = nccl.begin(command["nranks"], h.id, command["rank"])
            h.on_revoked(lambda why: self._abort(comm, why))
            say("in_init")
            comm.wait()
        except NcclError as error:
            h.__exit__(NcclError, error, None)
            raise
        return comm

    def _abort(self, comm: Comm, why: str) -> None:
        """On a thread of its own: it may take half a second."""

        def abort() -> None:
            began = time.monotonic()
            if comm.abort():
                say("aborted", why=why, took_s=time.monotonic() - began)

        threading.Thread(target=abort, daemon=True).start()

    def _reduce(self, torch: Any, comm: Comm, loop: bool) -> None:
        """All-reduce, and look at every number of the result."""
        source = torch.full((COUNT,), float(comm.rank + 1), device="cuda")
        stream = torch.cuda.Stream()
        expected = comm.nranks * (comm.nranks + 1) / 2
        rounds = 0
        while not comm.aborted():
            target = torch.zeros_like(source)
            torch.cuda.synchronize()
            try:
                comm.all_reduce(source, target, stream.cuda_stream)
            except NcclError:
                if comm.aborted():
                    return
                raise
            stream.synchronize()
            if comm.aborted():
                return
            right = bool((target == expected).all())
            rounds += 1
            if rounds in (1, 100) or not right:
                say(
                    "reduced", right=right, value=float(target[0]), expected=expected, rounds=rounds
                )
            if not loop:
                return

    def _with_cupy(self, g: Any, command: dict[str, Any]) -> None:
        cupy = importlib.import_module("cupy")
        nccl = importlib.import_module("cupy.cuda.nccl")
        cupy.cuda.Device(self._device).use()
        n, rank = command["nranks"], command["rank"]
        began = time.monotonic()
        with g.nccl_comm("dp", mint=nccl.get_unique_id, **command) as h:
            say("ids", attempt=h.unique_ids.attempt, took_s=time.monotonic() - began)
            comm = nccl.NcclCommunicator(n, h.unique_ids.for_cupy(), rank)
        say("comm", took_s=time.monotonic() - began, version=nccl.get_version())
        source = cupy.full(COUNT, float(rank + 1), dtype=cupy.float32)
        target = cupy.zeros_like(source)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device(self._device).synchronize()
        comm.allReduce(
            source.data.ptr, target.data.ptr, COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr
        )
        stream.synchronize()
        expected = n * (n + 1) / 2
        right = bool((target == expected).all())
        say("reduced", right=right, value=float(target[0]), expected=expected, rounds=1)


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    node = GpuRank(json.loads(sys.argv[1]))
    threading.Thread(target=node.join, daemon=True).start()
    for line in sys.stdin:
        node.obey({k: v for k, v in json.loads(line).items() if k != "wait"})


if __name__ == "__main__":
    main()
