"""Thousands of raw clients in one process that connect at once and join: `python -m tests.e2e.kit.swarm
OPTIONS`, driven by lines on stdin.

Each line `go` is a round: all connect within a second, say hello, join, and are told their ranks. Prints one
JSON line a round. `drop` closes all connections, `leave` in order. `apart` makes each a run of its own.
"""

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from typing import Any

from rdzv_proto import codec, limits
from rdzv_proto.framing import PREAMBLE, FrameBuffer
from rdzv_proto.messages import Error, Goodbye, HelloNode, Join, Joined, Leave, Policy
from tests.e2e.conftest import Cluster
from tests.e2e.kit.processes import MARKER
from tests.e2e.kit.server import Server

CONNECT_S = 1.0
"""All connects of a round are begun within this time."""

ROUND_S = 110.0


class Client:
    """One node: connecting, then greeting, then waiting for its rank."""

    def __init__(self, where: tuple[str, int], run: str, number: int, size: int) -> None:
        self._where, self._run, self._number, self._size = where, run, number, size
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self.frames = FrameBuffer(limits.FRAME_BYTES_MAX_CLIENT)
        self.rank: int | None = None
        self.fault = ""
        self.sock.connect_ex(where)

    def writable(self) -> None:
        """It is connected."""
        error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self.fault = os.strerror(error)
            return
        name = f"n{self._number:05d}"
        hello = HelloNode(
            run=self._run, node_id=name, name=name, incarnation=os.urandom(16), lease_ms=600_000
        )
        policy = Policy(min_nodes=self._size, max_nodes=self._size, last_call_timeout_ms=0)
        self._send(PREAMBLE + codec.encode(1, hello) + codec.encode(2, Join(policy=policy)))

    def readable(self) -> None:
        try:
            data = self.sock.recv(65536)
        except OSError as error:
            self.fault = str(error)
            return
        if not data:
            self.fault = self.fault or "end of stream"
            return
        self.frames.feed(data)
        while (body := self.frames.pop()) is not None:
            _, message = codec.decode_answer(body)
            match message:
                case Joined():
                    self.rank = message.group_rank
                case Error() | Goodbye():
                    self.fault = message.message
                case _:
                    pass

    def leave(self) -> None:
        """Leave the run in an orderly way."""
        self._send(codec.encode(3, Leave(kind="finished")))

    def _send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError as error:
            self.fault = str(error)


def go(options: dict[str, Any]) -> list[Client]:
    """One round."""
    size, where = options["size"], (options["host"], options["port"])
    selector = selectors.DefaultSelector()
    clients: list[Client] = []
    began = time.monotonic()
    open_clients = size
    while open_clients and time.monotonic() < began + ROUND_S:
        due = min(size, int(size * (time.monotonic() - began) / CONNECT_S) + 1)
        while len(clients) < due:
            number = len(clients)
            run = f"{options['run']}-{number}" if options["apart"] else options["run"]
            client = Client(where, run, number, 1 if options["apart"] else size)
            clients.append(client)
            selector.register(client.sock, selectors.EVENT_WRITE, client)
        for key, events in selector.select(0.01):
            client = key.data
            if events & selectors.EVENT_WRITE:
                client.writable()
                selector.modify(client.sock, selectors.EVENT_READ, client)
            else:
                client.readable()
            if client.fault or client.rank is not None:
                selector.unregister(client.sock)
                open_clients -= 1
    selector.close()
    took_s = time.monotonic() - began
    say(
        seconds=took_s, ranks=[c.rank for c in clients if c.rank is not None],
        faults=[c.fault for c in clients if c.fault], waiting=open_clients,
    )  # fmt: skip
    return clients


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main() -> None:
    options = json.loads(sys.argv[1])
    if options["nice"]:
        os.nice(19)
    clients: list[Client] = []
    for line in sys.stdin:
        if line.strip() == "go":
            clients = go(options)
        else:
            for client in clients:
                if line.strip() == "leave":
                    client.leave()
                client.sock.close()
            clients = []


class Swarm:
    """The process, from the side of the test.

    Args:
        cluster: of the test.
        server: where they meet.
        run: which run; its beginning, if each of them has its own.
        size: how many.
        apart: each in a run of its own.
        nice: with the lowest priority.
    """

    def __init__(
        self, cluster: Cluster, server: Server, run: str, size: int, *, apart: bool = False,
        nice: bool = False,
    ) -> None:  # fmt: skip
        options = {
            "host": server.host, "port": server.port, "run": run, "size": size, "apart": apart,
            "nice": nice,
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.kit.swarm", json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {MARKER: cluster.marker},
        )  # fmt: skip

    def go(self) -> dict[str, Any]:
        """Play a round; what came of it."""
        self._tell("go")
        assert self._process.stdout is not None
        told = json.loads(self._process.stdout.readline())
        assert isinstance(told, dict)
        return told

    def formed(self) -> float:
        """Play a round that must be good; how many seconds it took."""
        told = self.go()
        assert not told["faults"], (len(told["faults"]), told["faults"][:3])
        assert not told["waiting"]
        assert sorted(told["ranks"]) == list(range(len(told["ranks"])))
        return float(told["seconds"])

    def drop(self) -> None:
        """Close all connections."""
        self._tell("drop")

    def leave(self) -> None:
        """All leave the run, and close."""
        self._tell("leave")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> "Swarm":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


if __name__ == "__main__":
    main()
