"""Nodes that only live: `python -m tests.chaos.beats OPTIONS`, driven by lines on stdin.

Each is a run of its own and sends a heartbeat every third of its lease, whatever the server does. A line
`tell` is answered with one JSON line: who was given up since the last one, and how long this process itself
let a node be silent at most. Ends with its stdin.
"""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from typing import Any

from rdzv_proto import codec
from rdzv_proto.messages import Goodbye, Heartbeat, Joined, ViewChanged
from tests.e2e.kit.hostile import Raw, join
from tests.e2e.kit.processes import MARKER

BEATS_PER_LEASE = 3


class Node:
    """One of them."""

    def __init__(self, options: dict[str, Any], number: int) -> None:
        self.name = f"beat{number}"
        run = f"{options['run']}-{number}"
        raw = Raw((options["host"], options["port"]))
        self.raw = raw.node(run, self.name, lease_s=options["lease_s"])
        assert isinstance(self.raw.ask(join(1)), Joined)
        self.raw.sock.setblocking(False)
        self.sent_at = time.monotonic()
        self.lost = ""

    def beat(self) -> float:
        """Send a heartbeat; returns how long it may have been silent before: this process can be held up
        anywhere, so from just before the last one to just after this one."""
        before, last = time.monotonic(), self.sent_at
        try:
            self.raw.sock.send(codec.encode(next(self.raw.ids), Heartbeat()))
        except OSError as error:
            self.lost = self.lost or f"sending: {error}"
        self.sent_at = before
        return time.monotonic() - last

    def read(self) -> None:
        try:
            data = self.raw.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            self.lost = self.lost or str(error)
            return
        if not data:
            self.lost = self.lost or "end of stream"
            return
        self.raw.frames.feed(data)
        while (body := self.raw.frames.pop()) is not None:
            _, message = codec.decode_answer(body)
            if isinstance(message, Goodbye):
                self.lost = self.lost or message.message
            elif isinstance(message, ViewChanged) and message.view.ended is not None:
                self.lost = self.lost or message.view.ended.reason


class Heart:
    """All of them, in one loop."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._every_s = options["lease_s"] / BEATS_PER_LEASE
        self._selector = selectors.DefaultSelector()
        self._nodes: list[Node] = []
        self._gap_s = 0.0
        self._told: set[str] = set()

    def run(self) -> None:
        for number in range(self._options["nodes"]):
            node = Node(self._options, number)
            self._nodes.append(node)
            self._selector.register(node.raw.sock, selectors.EVENT_READ, node)
            self._beat()
        self._selector.register(sys.stdin, selectors.EVENT_READ, None)
        self._gap_s = 0.0
        say(ready=len(self._nodes))
        while True:
            due_at = (
                min((n.sent_at for n in self._living()), default=time.monotonic()) + self._every_s
            )
            for key, _ in self._selector.select(max(0.0, due_at - time.monotonic())):
                if key.data is None:
                    if not sys.stdin.readline():
                        return
                    self._tell()
                else:
                    key.data.read()
                    if key.data.lost:
                        self._gap_s = max(self._gap_s, time.monotonic() - key.data.sent_at)
                        self._selector.unregister(key.data.raw.sock)
            self._beat()

    def _living(self) -> list[Node]:
        return [node for node in self._nodes if not node.lost]

    def _beat(self) -> None:
        now = time.monotonic()
        for node in self._living():
            if now >= node.sent_at + self._every_s:
                self._gap_s = max(self._gap_s, node.beat())

    def _tell(self) -> None:
        new = {n.name: n.lost for n in self._nodes if n.lost and n.name not in self._told}
        self._told |= set(new)
        say(lost=new, gap_s=self._gap_s)
        self._gap_s = 0.0


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Beats:
    """The process, from the side of the harness."""

    def __init__(self, marker: str, **options: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.beats", json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {MARKER: marker},
        )  # fmt: skip
        assert "ready" in self._line()

    def tell(self) -> tuple[dict[str, str], float]:
        """Who was given up since the last call and why; the longest silence of this side's making."""
        assert self._process.stdin is not None
        self._process.stdin.write("tell\n")
        self._process.stdin.flush()
        told = self._line()
        return told["lost"], float(told["gap_s"])

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        told = json.loads(self._process.stdout.readline())
        assert isinstance(told, dict)
        return told

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # its own delays look like silence
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    Heart(json.loads(sys.argv[1])).run()
