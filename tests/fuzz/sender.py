"""Connections that send what the grammar makes, in a process of its own: `python -m tests.fuzz.sender OPTIONS`.

Each has a role; when it is closed it comes again. Prints one JSON line with what was sent and what came back.
"""

import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from typing import Any

from rdzv_proto import codec
from rdzv_proto.errors import ErrorCode
from rdzv_proto.framing import PREAMBLE, FrameTooLargeError
from rdzv_proto.messages import Error, Goodbye, HelloWorker, Joined, Welcome
from tests.e2e.kit.hostile import Raw, join
from tests.fuzz.grammar import Grammar, Known
from tests.fuzz.targets import some_store_bytes

ROLES = ("nobody", "node", "node", "worker", "worker", "admin", "bytes", "store")
"""Of the eight connections. `nobody` says no hello but what the grammar makes; `bytes` sends streams that were cut and
changed; `store` speaks TCPStore."""

BATCH = 48
"""Frames in one write."""

READ_S = 0.002
"""For answers after each write: a connection that is closed is seen, and nobody's window fills up."""

RUBBISH = 0.001
"""Of a connection that should live for a while: after a frame without a number it is closed."""

LIVES_FRAMES = 4_000
"""A connection that is not closed is given up after so many: openings are to be tried as well."""


class Sender:
    """One connection after the other, of one role."""

    def __init__(self, role: str, server: tuple[str, int], rng: random.Random, number: int) -> None:
        self.role, self._server, self._rng, self._number = role, server, rng, number
        self._known = Known()
        self._grammar = Grammar(rng, self._known, 0.15 if role in ("nobody", "bytes") else RUBBISH)
        self._run = f"fuzz{number}"
        self._raw: Raw | None = None
        self._in_life = 0
        self.sent = self.answered = self.opened = 0
        self.codes: Counter[str] = Counter()

    def step(self) -> None:
        """Send a batch, and read what is there."""
        if self._raw is None:
            self._raw = self._open()
            self._in_life = 0
        raw, count = self._raw, BATCH
        if self.role == "store":
            data = b"".join(some_store_bytes(self._rng)[4:][:600] for _ in range(4))
            count = 4
        else:
            bodies = [self._grammar.any() for _ in range(BATCH)]
            data = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
            if self.role == "bytes":
                data = self._damaged(data)
        raw.send(data)
        self.sent += count
        self._in_life += count
        if not self._read(raw) or self._in_life > LIVES_FRAMES:
            self.end()

    def end(self) -> None:
        """Close, in one way or another."""
        if self._raw is not None:
            self._raw.reset() if self._rng.random() < 0.3 else self._raw.close()
        self._raw = None

    # --- inside -------------------------------------------------------------------------------

    def _open(self) -> Raw:
        self.opened += 1
        raw = Raw(self._server)
        if self.role == "store":
            return raw
        if self.role in ("nobody", "bytes"):
            raw.send(
                PREAMBLE
                if self.role == "nobody" or self._rng.random() < 0.8
                else self._rng.randbytes(9)
            )
        elif self.role == "admin":
            raw.admin()
        else:
            name = f"f{self._number}"
            raw.node(self._run, name, lease_s=5)
            joined = self._joined(raw)
            if joined is not None:
                self._learn(raw, name, joined)
            if self.role == "worker" and joined is not None:
                return self._worker(raw, name, joined)
        return raw

    def _joined(self, raw: Raw) -> Joined | None:
        with contextlib.suppress(AssertionError, TimeoutError):
            reply = raw.ask(join(1), timeout_s=1.0)
            return reply if isinstance(reply, Joined) else None
        return None

    def _worker(self, raw: Raw, name: str, joined: Joined) -> Raw:
        """A training process of the node; its agent's connection ends, its session lives on for a while."""
        worker = Raw(self._server)
        worker.send(PREAMBLE)
        hello = HelloWorker(
            run=self._run, node_id=name, fence=joined.fence, rank=0, worker_token=joined.worker_token,
            incarnation=os.urandom(16),
        )  # fmt: skip
        worker.ask(hello)
        raw.close()
        return worker

    def _learn(self, raw: Raw, name: str, joined: Joined) -> None:
        fence = [joined.fence.epoch, joined.fence.generation]
        known = self._known.by_field
        known.clear()
        known |= {
            "run": [self._run, self._run, "live"], "node_id": [name, "f0", "x"], "fence": [fence, fence, None], "last": [fence, None],
            "key": ["k", "l"], "keys": [["k"], ["k", "l"]], "name": ["b"], "group": ["g"], "of": ["nodes", "workers"],
            "acknowledged": [0, 0, 1], "worker_token": [joined.worker_token], "count": [1, 2], "members": [[0], []], "timeout_ms": [0, 1, 200],
            "policy": [{"min_nodes": 1, "max_nodes": 1, "last_call_timeout_ms": 0}],
        }  # fmt: skip
        if raw.hello_sent is not None:
            known["incarnation"] = [raw.hello_sent.incarnation]

    def _damaged(self, data: bytes) -> bytes:
        out = bytearray(data)
        for _ in range(self._rng.randint(1, 3)):
            out[self._rng.randrange(len(out))] = self._rng.randrange(256)
        return (
            bytes(out[: self._rng.randrange(len(out))]) if self._rng.random() < 0.2 else bytes(out)
        )

    def _read(self, raw: Raw) -> bool:
        """False: it is over."""
        raw.sock.settimeout(READ_S)
        try:
            data = raw.sock.recv(1 << 20)
        except TimeoutError:
            return True
        except OSError:
            return False
        if self.role == "store" or not data:
            return bool(data)
        try:
            for body in raw.frames.split(data):
                self._count(body)
        except FrameTooLargeError:
            return False  # what was no preamble is answered in another protocol
        return True

    def _count(self, body: bytes) -> None:
        _, message = codec.decode_answer(body)
        self.answered += 1
        if isinstance(message, Error | Goodbye):
            self.codes[ErrorCode(message.code).name] += 1
        elif isinstance(message, Welcome):
            self.codes["welcome"] += 1


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    os.nice(10)
    rng = random.Random(options["seed"])
    server = (options["host"], options["port"])
    senders = [Sender(role, server, random.Random(rng.random()), n) for n, role in enumerate(ROLES)]
    began = time.monotonic()
    while time.monotonic() - began < options["seconds"]:
        for sender in senders:
            sender.step()
        if sum(sender.sent for sender in senders) >= options["inputs"]:
            break
    for sender in senders:
        sender.end()
    codes: Counter[str] = sum((sender.codes for sender in senders), Counter())
    told = {
        "sent": sum(s.sent for s in senders), "answered": sum(s.answered for s in senders),
        "opened": sum(s.opened for s in senders), "seconds": time.monotonic() - began, "codes": dict(codes),
    }  # fmt: skip
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
