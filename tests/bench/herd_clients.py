"""Many clients in one process, for the herd: the production session and back-off on asyncio.

    python -m tests.bench.herd_clients '{"port": …, "first": 0, "count": 750, "world": 3000, …}'

Says what happens as JSON lines: `joined`, `dropped`, `back`. Told `drop` on stdin, it aborts all its connections at
once, and each client comes back as any client would.
"""

import asyncio
import hashlib
import json
import random
import ssl
import sys
import time
from typing import Any

from rdzv_client import backoff
from rdzv_client.credentials import Credentials
from rdzv_client.proving import Prover
from rdzv_client.session import Session
from rdzv_client.session_events import Answered, State, StateChanged
from rdzv_client.tls import context
from rdzv_proto import auth
from rdzv_proto.auth import Grant, Scope, Token
from rdzv_proto.messages import HelloNode, Join, Joined, Policy, View

RUN = "herd"


def say(event: str, **more: object) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


class Client(asyncio.Protocol):
    """One node."""

    def __init__(self, crowd: "Crowd", number: int) -> None:
        self._crowd = crowd
        # As a client makes it up of a host called `bench`: one certificate is good for all.
        node_id = f"bench-{number}-{number:06x}"
        hello = HelloNode(
            run=RUN, node_id=node_id, name=node_id, lease_ms=crowd.lease_ms,
            incarnation=hashlib.sha256(node_id.encode()).digest()[:16],
        )  # fmt: skip
        self.session = Session(hello, random.Random(number), time.monotonic())
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._attempt: asyncio.Task[None] | None = None
        self.joined = self.lost = False
        self.connects = 0
        self.session.request(
            Join(policy=Policy(min_nodes=crowd.world, max_nodes=crowd.world,
                               join_timeout_ms=300_000))
        )  # fmt: skip

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- from the loop ------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        der = None
        if (found := transport.get_extra_info("ssl_object")) is not None:
            der = found.getpeercert(binary_form=True)
        prover = Prover(
            self._crowd.token, lambda: self._crowd.rng.randbytes(auth.NONCE_BYTES),
            certificate=auth.certificate_digest(der),
        )  # fmt: skip
        self.session.connected(time.monotonic(), prover)
        self.step()

    def data_received(self, data: bytes) -> None:
        self.session.received(time.monotonic(), data)
        self.step()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.session.disconnected(time.monotonic(), str(exc or "closed"))
        self.step()

    def step(self) -> None:
        """Send, hand out events, and see when to go on."""
        session, now = self.session, time.monotonic()
        session.tick(now)
        if session.wants_disconnect and self._transport is not None:
            self._transport.abort()
        data = session.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)
        for event in session.events():
            match event:
                case Answered(reply=reply):
                    self.joined = isinstance(reply, Joined)
                    self._crowd.joined(self, reply)
                case StateChanged(state=State.CONNECTED, away_s=away_s) if away_s:
                    self._crowd.back(self, away_s)
                case StateChanged(state=State.OVER, reason=reason):
                    self._crowd.over(reason)
                case View(ended=ended) if ended is not None and not self.lost:
                    self.lost = True
                    self._crowd.ended(ended.reason)
        if self._timer is not None:
            self._timer.cancel()
        due = session.next_deadline()
        if due is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due - time.monotonic()), self._due)

    def _due(self) -> None:
        again = self.session.reconnect
        due = again.attempt_at is not None and time.monotonic() >= again.attempt_at
        if due and (self._attempt is None or self._attempt.done()):
            patience_s = again.attempt_s
            self.session.connecting()
            self._attempt = asyncio.ensure_future(self._connect(patience_s))
        self.step()

    async def _connect(self, patience_s: float) -> None:
        crowd = self._crowd
        name = None if crowd.tls is None else "server"
        patience_s += 0.0 if crowd.tls is None else backoff.HANDSHAKE_S
        self.connects += 1
        try:
            connecting = asyncio.get_running_loop().create_connection(
                lambda: self, "127.0.0.1", crowd.port, ssl=crowd.tls, server_hostname=name
            )
            await asyncio.wait_for(connecting, patience_s)
        except (OSError, asyncio.TimeoutError) as error:
            if self._transport is None:
                self.session.disconnected(time.monotonic(), repr(error))
                self.step()


class Crowd:
    """All clients of this process."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.port, self.world, self.lease_ms = told["port"], told["world"], told["lease_ms"]
        self.token: Token | None = auth.parse(told["token"]).derive(Grant(Scope.JOIN, RUN)) \
            if told["token"] else None  # fmt: skip
        self.tls: ssl.SSLContext | None = None
        if told["tls_ca"]:
            files = {name: told[name] for name in ("tls_ca", "tls_cert", "tls_key")}
            self.tls = context(Credentials(**files))
        self.rng = random.SystemRandom()
        self._in = self._back = 0
        self._away_s: list[float] = []
        self._over: dict[str, int] = {}
        self.clients: list[Client] = []

    def joined(self, client: Client, reply: object) -> None:
        if not client.joined:
            say("refused", reply=repr(reply))
        self._in += client.joined
        if self._in == len(self.clients):
            self._in = 0
            say("joined", connects=sum(c.connects for c in self.clients))

    def back(self, client: Client, away_s: float) -> None:
        self._away_s.append(away_s)
        if len(self._away_s) == len(self.clients):
            self._away_s.sort()
            say("back", away_s=self._away_s, connects=sum(c.connects for c in self.clients))
            self._away_s = []

    def over(self, reason: str) -> None:
        say("over", reason=reason)

    def ended(self, reason: str) -> None:
        if not self._over:
            say("ended", reason=reason)
        self._over[reason] = self._over.get(reason, 0) + 1

    async def run(self, first: int, count: int) -> None:
        self.clients = [Client(self, number) for number in range(first, first + count)]
        for client in self.clients:
            client.step()
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while (line := (await lines.readline()).strip()) == b"drop":
            for client in self.clients:
                client.connects = 0
                client.drop()
            say("dropped")
        assert line in (b"", b"end"), line


def main() -> None:
    import uvloop

    told = json.loads(sys.argv[1])
    uvloop.run(Crowd(told).run(told["first"], told["count"]))


if __name__ == "__main__":
    main()
