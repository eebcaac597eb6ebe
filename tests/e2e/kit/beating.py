"""The nodes of a live run, in a process of their own: `python -m tests.e2e.kit.beating OPTIONS`.

They form one generation and send heartbeats at fixed times, whether the ones before were answered or
not, so that a server that stands still is charged with every heartbeat that it let wait. The end of a
round trip is when the reply reached this machine's kernel (SO_TIMESTAMPNS), not when this process got
to read it. Beside them an idle process echoes bytes: what it takes is what this machine takes for anything.

Prints JSON lines: `formed`; `beats` and `echoes` as pairs of when (monotonic) and milliseconds; `ended`
and `lost` for what must not happen; `over`. Ends when stdin does.
"""

import contextlib
import heapq
import json
import os
import selectors
import socket
import struct
import sys
import time
from typing import Any

from rdzv_proto import codec
from rdzv_proto.messages import Alive, Goodbye, Heartbeat, Joined, ViewChanged
from tests.e2e.kit.hostile import Raw, join

SO_TIMESTAMPNS = 35
"""The same number is the kind of the control message. Not in Python's socket module."""

TELL_S = 0.1
DRAIN_S = 10.0
ECHO_S = 0.02
READY_S = 60.0

Pairs = list[tuple[float, float]]


class Timed:
    """A socket that is written to at fixed times and knows what is under way on it."""

    def __init__(self, sock: socket.socket, interval_s: float, first_at: float) -> None:
        self.sock, self.interval_s, self.due_at = sock, interval_s, first_at
        self.under_way: dict[int, tuple[float, int]] = {}
        self.pairs: Pairs = []
        sock.setblocking(False)

    def sent(self, number: int) -> None:
        """About to send: when that is, for people and to the nanosecond."""
        self.under_way[number] = time.monotonic(), time.clock_gettime_ns(time.CLOCK_REALTIME)

    def next_due(self, now: float) -> None:
        """The next time. What this process itself slept through is left out, not made up for."""
        self.due_at += self.interval_s
        if self.due_at < now:
            self.due_at = now + self.interval_s

    def arrived(self, number: int, at_ns: int) -> None:
        begun = self.under_way.pop(number, None)
        if begun is not None:
            self.pairs.append((begun[0], max(0, at_ns - begun[1]) / 1e6))

    def receive(self) -> tuple[bytes, int]:
        """Bytes, and when the kernel had them."""
        data, control, _, _ = self.sock.recvmsg(65536, 256)
        at_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        for level, kind, content in control:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = struct.unpack("qq", content[:16])
                at_ns = seconds * 1_000_000_000 + nanoseconds
        return data, at_ns


class Heart(Timed):
    """One node."""

    def __init__(self, node: Raw, name: str, interval_s: float, first_at: float) -> None:
        super().__init__(node.sock, interval_s, first_at)
        node.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.node, self.name, self.lost = node, name, False

    def beat(self) -> None:
        number = next(self.node.ids)
        self.sent(number)
        try:
            self.sock.send(codec.encode(number, Heartbeat()))
        except OSError as error:
            self.lose(f"sending: {error}")

    def read(self) -> None:
        try:
            data, at_ns = self.receive()
        except OSError as error:
            self.lose(str(error))
            return
        if not data:
            self.lose("end of stream")
            return
        self.node.frames.feed(data)
        while (body := self.node.frames.pop()) is not None:
            number, message = codec.decode_answer(body)
            match message:
                case Alive():
                    self.arrived(number, at_ns)
                case ViewChanged(view=view) if view.ended is not None:
                    say(ended=self.name, kind=view.ended.kind, reason=view.ended.reason)
                case Goodbye():
                    self.lose(message.message)
                case _:
                    pass

    def lose(self, why: str) -> None:
        if not self.lost:
            self.lost = True
            say(lost=self.name, why=why)


class Echo(Timed):
    """The idle process at the other end of a pair of sockets."""

    def __init__(self, first_at: float) -> None:
        near, far = socket.socketpair()
        self._count = 0
        if os.fork() == 0:
            near.close()
            os.closerange(0, 2)
            with contextlib.suppress(OSError):
                while data := far.recv(4096):
                    far.send(data)
            os._exit(0)
        far.close()
        super().__init__(near, ECHO_S, first_at)

    def beat(self) -> None:
        self._count += 1
        self.sent(self._count)
        self.sock.send(struct.pack("q", self._count))

    def read(self) -> None:
        data, at_ns = self.receive()
        for (number,) in struct.iter_unpack("q", data):
            self.arrived(number, at_ns)


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def form(options: dict[str, Any]) -> list[Raw]:
    """The nodes, in one generation."""
    where, count = (options["host"], options["port"]), options["nodes"]
    nodes = [
        Raw(where).node(options["run"], f"heart{i}", lease_s=options["lease_s"])
        for i in range(count)
    ]
    ids = [node.post(join(count)) for node in nodes]
    told = [node.answer(number, READY_S) for node, number in zip(nodes, ids, strict=True)]
    joined = [reply for reply in told if isinstance(reply, Joined)]
    assert len(joined) == count, told
    say(formed=str(joined[0].fence), ranks=sorted(reply.group_rank for reply in joined))
    return nodes


def main() -> None:
    options = json.loads(sys.argv[1])
    with contextlib.suppress(OSError):  # the measuring side should not wait for its turn
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    begin = time.monotonic()
    echo = Echo(begin)
    nodes, interval_s = form(options), options["interval_s"]
    begin = time.monotonic()
    hearts = [
        Heart(node, f"heart{i}", interval_s, begin + interval_s * i / len(nodes))
        for i, node in enumerate(nodes)
    ]
    beat([*hearts, echo], echo)
    for timed in (*hearts, echo):
        timed.sock.close()


def beat(all_timed: "list[Heart | Echo]", echo: Echo) -> None:
    selector = selectors.DefaultSelector()
    for timed in all_timed:
        selector.register(timed.sock, selectors.EVENT_READ, timed)
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    order = [(timed.due_at, number) for number, timed in enumerate(all_timed)]
    heapq.heapify(order)
    stop_at, tell_at = None, time.monotonic() + TELL_S
    while True:
        now = time.monotonic()
        while stop_at is None and order[0][0] <= now:
            _, number = order[0]
            timed = all_timed[number]
            if not getattr(timed, "lost", False):
                timed.beat()
            timed.next_due(now)
            heapq.heapreplace(order, (timed.due_at, number))
        for key, _ in selector.select(max(0.0, min(order[0][0], tell_at) - now)):
            if key.data is not None:
                key.data.read()
                if getattr(key.data, "lost", False):
                    selector.unregister(key.data.sock)
            elif not sys.stdin.readline():
                selector.unregister(sys.stdin)
                stop_at = time.monotonic() + DRAIN_S
                order = [(stop_at, 0)]
        now = time.monotonic()
        waiting = sum(len(timed.under_way) for timed in all_timed)
        over = stop_at is not None and (not waiting or now >= stop_at)
        if now >= tell_at or over:
            tell_at = now + TELL_S
            say(beats=taken(all_timed[:-1]), echoes=taken([echo]))
        if over:
            late = [at for timed in all_timed[:-1] for at, _ in timed.under_way.values()]
            say(over=True, unanswered=[(at, (now - at) * 1000) for at in late])
            return


def taken(timed: "list[Heart | Echo]") -> Pairs:
    pairs = [pair for one in timed for pair in one.pairs]
    for one in timed:
        one.pairs = []
    return pairs


if __name__ == "__main__":
    main()
