"""Where scenarios are played: the production core in virtual time, nodes with heartbeats, and a list of what was said."""

import hashlib
from dataclasses import dataclass, field

from rdzv_proto.messages import (
    AnyPush,
    AnyReply,
    AnyRequest,
    Fence,
    Heartbeat,
    HelloNode,
    Joined,
    Policy,
    Resume,
    Welcome,
)
from rdzv_server.core.coordinator import Coordinator
from rdzv_server.core.events import Broadcast, Close, Effect, Release, Report, Send
from rdzv_server.core.settings import Settings
from tests.lab import Lab, Wire, identity
from tests.scenarios.sentences import sentence

BEGIN_S = 100.0
"""Second 0 of the stories, in the laboratory's time."""

TOLD_REPORTS = (
    "server_stalled",
    "node_lost",
    "run_ended",
    "run_forgotten",
    "connections_lost_together",
)
"""Lines of the server's log that belong to a story."""


@dataclass
class Actor:
    """A node's process, as the story sees it."""

    name: str
    incarnation: bytes
    wire: Wire | None = None
    proof: Resume | None = None
    fence: Fence | None = None
    requests: int = 0
    attempts: int = 0
    silent: bool = False
    last: tuple[int, AnyRequest] | None = None
    """For a retry."""
    minted: list[int] = field(default_factory=list)


class Stage(Lab):
    """A laboratory that writes down what it hears."""

    def __init__(self, settings: Settings, run: str, policy: Policy, lease_s: float) -> None:
        self.lines: list[tuple[float, str, str]] = []
        """(second, who, what)."""
        self.actors: dict[str, Actor] = {}
        self.of_wire: dict[int, Actor] = {}
        self.run_id, self.policy, self.lease_s = run, policy, lease_s
        self.next_beat = BEGIN_S
        super().__init__(settings, epoch=1)

    # --- hearing ------------------------------------------------------------------------------

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(conn, _, message):
                    self._hear(conn, message)
                case Broadcast(conns, push):
                    for conn in conns:
                        self._hear(conn, push)
                case Release(to, reply):
                    for conn, _ in to:
                        self._hear(conn, reply)
                case Close(conn, goodbye) if goodbye is not None:
                    self._hear(conn, goodbye)
                case Report(event) if event in TOLD_REPORTS:
                    self._report(effect)
                case _:
                    pass
        super().apply(effects)

    def _hear(self, conn: int, message: AnyReply | AnyPush) -> None:
        actor = self.of_wire.get(conn)
        if actor is None:
            return
        if isinstance(message, Welcome):
            actor.proof = Resume(message.epoch, message.session, message.token)
        elif isinstance(message, Joined):
            actor.fence = message.fence
        said = sentence(message)
        if said is not None:
            self.lines.append((self.now - BEGIN_S, actor.name, said))

    def _report(self, report: Report) -> None:
        what = report.event.replace("_", " ")
        node = "" if report.node == "-" else f" {report.node}"
        more = report.fields.get("reason", report.fields.get("text", ""))
        self.lines.append(
            (self.now - BEGIN_S, "(log)", f"{what}{node}" + (f": {more}" if more else ""))
        )

    # --- acting -------------------------------------------------------------------------------

    def process(self, name: str) -> Actor:
        """A new process of a node; an older one is gone from the story."""
        seed = f"{name}{sum(1 for _ in self.of_wire)}".encode()
        actor = self.actors[name] = Actor(name, hashlib.sha256(seed).digest()[:16])
        return actor

    def hello(self, actor: Actor) -> None:
        """Connect, with proof of its session if it had one."""
        actor.wire = self.connect()
        actor.attempts += 1
        self.of_wire[actor.wire.conn] = actor
        ask = HelloNode(
            run=self.run_id, node_id=actor.name, name=actor.name, incarnation=actor.incarnation,
            attempt=actor.attempts, lease_ms=round(self.lease_s * 1000), resume=actor.proof,
        )  # fmt: skip
        self._request(actor, ask)

    def ask(self, actor: Actor, message: AnyRequest) -> None:
        actor.requests += 1
        actor.last = actor.requests, message
        self._send(actor, actor.requests, message)

    def ask_again(self, actor: Actor) -> None:
        """The same request id."""
        assert actor.last is not None, "nothing was asked yet"
        self._send(actor, *actor.last)

    def _request(self, actor: Actor, message: AnyRequest) -> None:
        actor.requests += 1
        self._send(actor, actor.requests, message)

    def _send(self, actor: Actor, request: int, message: AnyRequest) -> None:
        assert actor.wire is not None, f"{actor.name} has no connection"
        self.send(actor.wire, request, message)

    def until(self, second: float) -> None:
        """Let time pass; whoever is connected and not silent sends heartbeats."""
        end = BEGIN_S + second
        while self.now < end - 1e-9:
            self.advance(min(end, max(self.next_beat, self.now + 0.001)) - self.now)
            if self.now >= self.next_beat - 1e-9:
                self.next_beat = self.now + self.lease_s / 4
                for actor in self.actors.values():
                    if actor.wire is not None and not actor.wire.closed and not actor.silent:
                        self._request(actor, Heartbeat())

    def drop(self, actor: Actor) -> None:
        assert actor.wire is not None
        self.lose(actor.wire)

    def begin_again(self, seconds: float, *, remembers: bool) -> None:
        """The server process ends, and another one begins."""
        if remembers:
            self.restart(after_s=seconds)
            return
        for wire in self.wires.values():
            wire.closed = True
        self.stored.clear()
        self.now += seconds
        epoch = self.core.tables.identity.epoch + 1
        self.core = Coordinator(self.settings, identity(epoch), durable=True)
        self.apply(self.core.tick(self.now))
