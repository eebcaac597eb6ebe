"""Attacks that take processor time, each in a process of its own and of the lowest priority, bounded in
rate and in time: `python -m tests.e2e.kit.attackers OPTIONS`. Prints one JSON line with what it saw.

`flood`: sessions that send one request over and over without waiting, as fast as they may or are read.
`gather`: nodes of one world that meet at one barrier after the other, each with a large payload.
"""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from rdzv_proto import codec, limits
from rdzv_proto.framing import FrameBuffer
from rdzv_proto.messages import (
    Barrier,
    Error,
    Heartbeat,
    KvCheck,
    KvCount,
    KvGet,
    KvList,
    KvMultiGet,
    KvMultiSet,
    KvSet,
    KvWait,
    Released,
    Request,
)
from tests.e2e.conftest import Cluster
from tests.e2e.kit.hostile import Raw, world
from tests.e2e.kit.processes import MARKER
from tests.e2e.kit.server import Server

KEYS = [f"{i:06d}" for i in range(limits.KEYS_PER_REQUEST_MAX)]
CHUNK = 256
"""Requests in one write. Their ids repeat: none of them is recorded, and none waits."""

OPS: dict[str, Callable[[], Request]] = {
    "heartbeat": Heartbeat,
    "get": lambda: KvGet(key="missing"),
    "list": lambda: KvList(values=True),
    "count": lambda: KvCount(prefix="0"),
    "check many": lambda: KvCheck(keys=KEYS),
    "get many": lambda: KvMultiGet(keys=KEYS),
    "wait for many": lambda: KvWait(keys=[*KEYS[:-1], "missing"]),
    "get large": lambda: KvGet(key="large"),
}


class Flooder:
    """One session."""

    def __init__(self, raw: Raw, op: str, rate: float, seconds: float) -> None:
        self.raw, self.rate = raw, rate
        first = 1000  # ids of one length
        frames = [codec.encode(first + i, OPS[op]()) for i in range(CHUNK)]
        if len(frames[0]) * CHUNK > 4 << 20:  # large requests: one at a time
            frames = frames[:1]
        self.per_chunk, self._chunk = len(frames), memoryview(b"".join(frames))
        self._rest = self._chunk[:0]
        self.frames = FrameBuffer(limits.FRAME_BYTES_MAX_CLIENT)
        self.sent = self.answered = self.errors = 0
        self.closed = ""
        self.ends_at = time.monotonic() + seconds
        self._began = time.monotonic()
        raw.sock.setblocking(False)

    @property
    def due(self) -> bool:
        """It may send more now."""
        return bool(self._rest) or self.sent < self.rate * (time.monotonic() - self._began)

    def write(self) -> None:
        if not self._rest:
            self._rest = self._chunk
            self.sent += self.per_chunk
        try:
            self._rest = self._rest[self.raw.sock.send(self._rest) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self.closed = str(error)

    def read(self) -> None:
        try:
            data = self.raw.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError as error:
            self.closed = str(error)
            return
        if not data:
            self.closed = self.closed or "end of stream"
            return
        self.frames.feed(data)
        while (body := self.frames.pop()) is not None:
            self.answered += 1
            # Of an error only the beginning is looked at: this side should take no time.
            self.errors += b"\xa5error" in body[:16]


def _done(raw: Raw, message: Request) -> None:
    reply = raw.ask(message)
    assert not isinstance(reply, Error), reply


def fill(raw: Raw) -> None:
    """Keys to ask for."""
    _done(raw, KvMultiSet(keys=KEYS, values=[b"v"] * len(KEYS)))
    _done(raw, KvSet(key="large", value=b"x" * limits.VALUE_BYTES_MAX))


def flood(options: dict[str, Any], server: tuple[str, int]) -> dict[str, Any]:
    sessions = range(options["sessions"])
    raws = [Raw(server).node(options["run"], f"flood{i}", lease_s=60) for i in sessions]
    if options["fill"]:
        fill(raws[0])
    began = time.monotonic()
    all_of_them = [Flooder(raw, options["op"], options["rate"], options["seconds"]) for raw in raws]
    selector = selectors.DefaultSelector()
    for one in all_of_them:
        selector.register(one.raw.sock, selectors.EVENT_READ, one)
    while (now := time.monotonic()) < began + options["seconds"]:
        due = [one for one in all_of_them if not one.closed and one.due]
        for one in due:
            one.write()
        for key, _ in selector.select(0.002):
            key.data.read()
            if key.data.closed:
                selector.unregister(key.fileobj)
        if not selector.get_map():
            break
    took_s = now - began
    for one in all_of_them:
        one.raw.close()
    return {
        "seconds": took_s,
        "answered": [one.answered for one in all_of_them],
        "errors": sum(one.errors for one in all_of_them),
        "closed": [one.closed for one in all_of_them if one.closed],
    }


def gather(options: dict[str, Any], server: tuple[str, int]) -> dict[str, Any]:
    with world(server, options["run"], options["sessions"]) as (nodes, told):
        fence, rounds = told[0].fence, 0
        began = time.monotonic()
        while time.monotonic() < began + options["seconds"]:
            ask = Barrier(fence=fence, name="b", payload=bytes(options["bytes"]), timeout_ms=60_000)
            ids = [node.post(ask) for node in nodes]
            for node, request_id in zip(nodes, ids, strict=True):
                assert isinstance(node.answer(request_id), Released)
                node.post(Heartbeat(acknowledged=request_id))
            rounds += 1
        return {"rounds": rounds, "seconds": time.monotonic() - began}


class Attack:
    """A process that attacks, from the side of the test."""

    def __init__(self, cluster: Cluster, server: Server, kind: str, **options: Any) -> None:
        given = {"kind": kind, "host": server.host, "port": server.port, "run": "attack", **options}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.kit.attackers", json.dumps(given)],
            stdout=subprocess.PIPE, text=True, env=os.environ | {MARKER: cluster.marker},
        )  # fmt: skip

    def result(self, timeout_s: float = 60) -> dict[str, Any]:
        """Wait for its end; what it saw."""
        try:
            out, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        assert self._process.returncode == 0
        told = json.loads(out)
        assert isinstance(told, dict)
        return told


def main() -> None:
    options = json.loads(sys.argv[1])
    os.nice(19)
    work = {"flood": flood, "gather": gather}[options["kind"]]
    told = work(options, (options["host"], options["port"]))
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
