"""A laboratory for the core: virtual time, named nodes, invariants checked after every step.

lab = Lab()
a, b = lab.nodes("a", "b", policy=policy(2, 2))
a.join(); b.join()
assert b.joined.group_rank == 1
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rdzv_proto import tcpstore
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyPush,
    AnyReply,
    AnyRequest,
    Barrier,
    Error,
    Fence,
    Finished,
    Goodbye,
    Heartbeat,
    HelloAdmin,
    HelloNode,
    HelloWorker,
    Join,
    Joined,
    KvAdd,
    KvGet,
    KvSet,
    KvWait,
    Leave,
    ListRuns,
    MemberPage,
    Members,
    MemberStatus,
    Notice,
    Policy,
    Progress,
    Resume,
    Runs,
    RunStatus,
    View,
    ViewChanged,
    Welcome,
)
from rdzv_server.core import invariants
from rdzv_server.core.clock import TICK_S
from rdzv_server.core.coordinator import Coordinator
from rdzv_server.core.due import PER_STEP as DUE_PER_STEP
from rdzv_server.core.durable.saving import image, read_off
from rdzv_server.core.durable.stored import key_bytes
from rdzv_server.core.events import (
    Broadcast,
    Close,
    CloseListener,
    Effect,
    Event,
    ListenerFailed,
    ListenerOpened,
    Lost,
    Opened,
    OpenListener,
    Persist,
    Received,
    Release,
    Report,
    Send,
    StoreClose,
    StoreLost,
    StoreOpened,
    StoreReceived,
    StoreSend,
)
from rdzv_server.core.invariants import Monitor, check_effects
from rdzv_server.core.model import Run
from rdzv_server.core.settings import Identity, Settings
from rdzv_server.core.tables import Tables

M = TypeVar("M")
EPOCH = 1_000
RUN = "llama"


def policy(
    min_nodes: int,
    max_nodes: int | None = None,
    *,
    join_timeout_s: float = 30,
    last_call_s: float = 2,
    node_unit: int = 1,
    below_min: str = "stop",
    owner: str = "",
    worker_store: str = "rank0",
) -> Policy:
    """A policy with the timing profile of the cases: join timeout 30 s, last call 2 s."""
    assert below_min in ("stop", "wait")
    return Policy(
        min_nodes=min_nodes,
        max_nodes=max_nodes or min_nodes,
        node_unit=node_unit,
        join_timeout_ms=round(join_timeout_s * 1000),
        last_call_timeout_ms=round(last_call_s * 1000),
        below_min="wait" if below_min == "wait" else "stop",
        owner=owner,
        worker_store=worker_store,
    )


def identity(epoch: int = EPOCH) -> Identity:
    """A server start; another epoch is another start."""
    return Identity("rdzv test", f"i{epoch}", epoch, hashlib.sha256(b"key").digest())


@dataclass
class Wire:
    """What one connection was sent."""

    conn: int
    got: list[tuple[int, AnyReply | AnyPush]] = field(default_factory=list)
    closed: bool = False
    goodbye: Goodbye | None = None
    goodbyes: list[ErrorCode] = field(default_factory=list)
    """Every reason that it was given."""

    def replies(self, request_id: int) -> list[AnyReply | AnyPush]:
        """All answers to one request."""
        return [m for r, m in self.got if r == request_id and r]

    def last(self, kind: type[M]) -> M | None:
        """The newest message of a kind."""
        return next((m for _, m in reversed(self.got) if isinstance(m, kind)), None)

    def all(self, kind: type[M]) -> list[M]:
        """All messages of a kind."""
        return [m for _, m in self.got if isinstance(m, kind)]


class StoreWire:
    """A TCPStore client's connection: raw bytes both ways."""

    def __init__(self, lab: "Lab", conn: int) -> None:
        self.lab, self.conn = lab, conn
        self.sent = b""
        """By the server, not read yet."""
        self.closed = False

    def send(self, data: bytes) -> bytes:
        """Deliver bytes; returns what has come back since the last read."""
        self.lab.apply(self.lab.core.handle(self.lab.now, StoreReceived(self.conn, data)))
        return self.read()

    def read(self) -> bytes:
        sent, self.sent = self.sent, b""
        return sent

    def lose(self) -> None:
        """End of stream."""
        self.closed = True
        self.lab.apply(self.lab.core.handle(self.lab.now, StoreLost(self.conn)))


def save(stored: dict[bytes, bytes], changes: Mapping[bytes, bytes | None]) -> None:
    """As a store would."""
    for key, record in changes.items():
        if record is None:
            stored.pop(key, None)
        else:
            stored[key] = record


def check_stored(tables: Tables, stored: Mapping[bytes, bytes]) -> None:
    """What was written piece by piece is what the whole state gives now (but for what can wait)."""
    assert tables.saves is not None
    assert not tables.saves.marked, "marked, and not written"
    now = dict(stored)
    for key in tables.saves.later:
        record = read_off(tables, key)
        save(now, {key_bytes(key): record})
    whole = image(tables)
    if now != whole:
        wrong = {k for k in now.keys() | whole.keys() if now.get(k) != whole.get(k)}
        raise AssertionError(
            f"not written as it is: {[(k, now.get(k), whole.get(k)) for k in sorted(wrong)[:4]]}"
        )


RESTORE_EVERY = 16
"""Steps of a laboratory between two trials of a restart."""


def check_restored(tables: Tables, stored: Mapping[bytes, bytes], settings: Settings) -> None:
    """A server that began with these records now would have the same state."""
    again = Coordinator(settings, tables.identity, durable=True)
    again.resume(1.0, stored)
    invariants.check(again.tables)
    if not any(run.rivals for run in tables.runs.values()):  # who waits for a hint asks again
        found, wanted = image(again.tables), dict(stored)
        meta = key_bytes(("meta",))
        assert found.pop(meta)[:3] == wanted.pop(meta)[:3]
        # An attempt at a communicator that was under way has failed by the restart.
        found, wanted = (
            {k: v for k, v in d.items() if not k.startswith(b"nccl")} for d in (found, wanted)
        )
        # Runs that are at rest only now, since nobody of them may come back, are settled a step later.
        wrong = {k for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k)}
        assert not wrong, [(k, found.get(k), wanted.get(k)) for k in sorted(wrong)[:4]]


class Lab:
    """A server core in virtual time."""

    def __init__(
        self,
        settings: Settings | None = None,
        epoch: int = EPOCH,
        *,
        durable: bool = True,
        due_per_step: int = DUE_PER_STEP,
    ) -> None:
        self.settings = settings or Settings()
        self.core = Coordinator(self.settings, identity(epoch), durable=durable)
        self.core.due_per_step = due_per_step
        self.stored: dict[bytes, bytes] = {}
        """What would survive a restart."""
        self._steps = 0
        self.monitor = Monitor()
        self.now = 100.0
        self.wires: dict[int, Wire] = {}
        self.reports: list[Report] = []
        self._conns = iter(range(1, 1_000_000))
        self.listeners: dict[int, int] = {}
        """Open ones, with their ports."""
        self.port_last = 40_000
        self.port_failure = ""
        """If set, no listener can be opened, for this reason."""
        self.asked = 0
        """Listeners asked for."""
        self.store_wires: dict[int, StoreWire] = {}
        self.apply(self.core.tick(self.now))

    # --- time and events ----------------------------------------------------------------------

    def apply(self, effects: list[Effect]) -> None:
        check_effects(self.core.tables, effects)
        answers: list[Event] = []
        for effect in effects:
            match effect:
                case Persist(changes):
                    assert effect is effects[0], "something is told before it is safe"
                    save(self.stored, changes)
                case Send(conn, request_id, message):
                    self._deliver([(conn, request_id)], message)
                case Broadcast(conns, message):
                    self._deliver([(conn, 0) for conn in conns], message)
                case Release(to, message):
                    self._deliver(to, message)
                case Close(conn, goodbye):
                    self.wires[conn].closed = True
                    self.wires[conn].goodbye = goodbye
                    self.wires[conn].goodbyes += (
                        [] if goodbye is None else [ErrorCode(goodbye.code)]
                    )
                case Report():
                    self.reports.append(effect)
                case OpenListener(listener):
                    answers.append(self._open(listener))
                case _:
                    self._apply_store(effect)
        self.monitor.check(self.core.tables)
        self._steps += 1
        if self.core.tables.saves is not None:
            check_stored(self.core.tables, self.stored)
        if self.core.tables.saves is not None and self._steps % RESTORE_EVERY == 0:
            check_restored(self.core.tables, self.stored, self.settings)
        for event in answers:
            self.apply(self.core.handle(self.now, event))

    def _apply_store(self, effect: CloseListener | StoreSend | StoreClose) -> None:
        match effect:
            case CloseListener(listener):
                self.listeners.pop(listener, None)
            case StoreSend(conn, data):
                assert not self.store_wires[conn].closed, "sent on a closed connection"
                self.store_wires[conn].sent += data
            case StoreClose(conn):
                self.store_wires[conn].closed = True

    def _deliver(self, to: Iterable[tuple[int, int]], message: AnyReply | AnyPush) -> None:
        for conn, request_id in to:
            assert not self.wires[conn].closed, "sent on a closed connection"
            self.wires[conn].got.append((request_id, message))

    def _open(self, listener: int) -> Event:
        assert listener not in self.listeners, "opened twice"
        self.asked += 1
        if self.port_failure:
            return ListenerFailed(listener, self.port_failure)
        self.port_last += 1
        self.listeners[listener] = self.port_last
        return ListenerOpened(listener, self.port_last)

    def advance(self, seconds: float) -> None:
        """Let time pass as it does under the shell: a tick each 0.1 s and at each deadline."""
        end = self.now + seconds
        while self.now < end:
            due = self.core.next_deadline()
            step = min(end, self.now + TICK_S)
            if due is not None:
                step = min(step, max(due, self.now))
            self.now = step
            self.apply(self.core.tick(self.now))

    def stall(self, seconds: float) -> None:
        """The server does not run for a while; the next entry is a tick."""
        self.now += seconds
        self.apply(self.core.tick(self.now))

    def connect(self, peer: str = "10.0.0.9", local: str = "10.0.0.1") -> Wire:
        wire = Wire(next(self._conns))
        self.wires[wire.conn] = wire
        self.apply(self.core.handle(self.now, Opened(wire.conn, peer, local)))
        return wire

    def send(self, wire: Wire, request_id: int, message: AnyRequest) -> AnyReply | AnyPush | None:
        """Deliver a request; returns its newest answer, if there is one."""
        self.apply(self.core.handle(self.now, Received(wire.conn, request_id, message)))
        replies = wire.replies(request_id)
        return replies[-1] if replies else None

    def lose(self, wire: Wire, reason: str = "connection closed") -> None:
        """End of stream."""
        wire.closed = True
        self.apply(self.core.handle(self.now, Lost(wire.conn, reason)))

    def store(self, port: int = 0, peer: str = "10.0.0.9", hello: bool = True) -> StoreWire:
        """A TCPStore client at a store's port, or at the main port."""
        listener = next((n for n, p in self.listeners.items() if p == port), None) if port else 0
        assert listener is not None, f"nobody listens on port {port}"
        wire = StoreWire(self, next(self._conns))
        self.store_wires[wire.conn] = wire
        self.apply(self.core.handle(self.now, StoreOpened(wire.conn, listener, peer)))
        if hello:
            wire.send(tcpstore.HELLO)
        return wire

    def restart(self, *, after_s: float = 1.0) -> None:
        """The server is killed, and begins again with what was stored."""
        for wire in self.wires.values():
            wire.closed = True
        self.listeners.clear()
        self.now += after_s
        self.monitor = Monitor()
        self.core = Coordinator(self.settings, self.core.tables.identity, durable=True)
        self.apply(self.core.resume(self.now, dict(self.stored)))

    # --- looking ------------------------------------------------------------------------------

    def node(self, name: str, **more: object) -> "Node":
        return Node(self, name, **more)  # type: ignore[arg-type]

    def nodes(self, *names: str, **more: object) -> list["Node"]:
        return [self.node(name, **more) for name in names]

    def world(self, *names: str, rules: Policy, run: str = RUN) -> list["Node"]:
        """Nodes in a live generation."""
        nodes = [self.node(name, rules=rules, run=run) for name in names]
        for node in nodes:
            node.join()
        if nodes[0].joined is None:
            self.advance(rules.last_call_timeout_ms / 1000 + 0.2)
        assert all(node.joined for node in nodes), [node.error for node in nodes]
        return nodes

    def run(self, run: str = RUN) -> Run:
        return self.core.tables.runs[run]

    def admin(self) -> Wire:
        wire = self.connect()
        self.send(wire, 1, HelloAdmin())
        return wire

    def status(self, run: str = RUN) -> RunStatus:
        reply = self.send(self.admin(), 2, ListRuns(only=run))
        assert isinstance(reply, Runs), reply
        return reply.runs[0]

    def members(self, run: str = RUN) -> dict[str, MemberStatus]:
        reply = self.send(self.admin(), 2, Members(run=run))
        assert isinstance(reply, MemberPage), reply
        return {m.node_id: m for m in reply.members}

    def reported(self, event: str) -> list[Report]:
        return [r for r in self.reports if r.event == event]


class Node:
    """One launcher: hello at once, joins when told."""

    def __init__(
        self,
        lab: Lab,
        name: str,
        *,
        rules: Policy | None = None,
        run: str = RUN,
        node_id: str = "",
        incarnation: int = 1,
        lease_s: float = 5,
        peer: str = "10.0.0.9",
        local: str = "10.0.0.1",
        hint: int | None = None,
        expected: tuple[str, ...] = (),
        hello: bool = True,
    ) -> None:
        self.lab, self.name, self.run, self.hint = lab, name, run, hint
        self.rules = rules or policy(2)
        self.node_id = node_id or name
        self.incarnation = hashlib.sha256(f"{self.node_id}{incarnation}".encode()).digest()[:16]
        self.lease_s, self.peer, self.local = lease_s, peer, local
        self.expected = list(expected)
        self.attempt = 0
        self.wires: list[Wire] = []
        self.ids = iter(range(1, 1_000_000))
        self.join_id = 0
        self.welcome: Welcome | None = None
        self.refused: Error | None = None
        self.fence: Fence | None = None
        if hello:
            self.hello()

    def hello(self, resume: Resume | None = None) -> "Node":
        """Open a connection and say hello."""
        self.attempt += 1
        self.wire = self.lab.connect(self.peer, self.local)
        self.wires.append(self.wire)
        reply = self.lab.send(
            self.wire,
            next(self.ids),
            HelloNode(
                run=self.run,
                node_id=self.node_id,
                name=self.name,
                incarnation=self.incarnation,
                attempt=self.attempt,
                lease_ms=round(self.lease_s * 1000),
                resume=resume,
            ),
        )
        if isinstance(reply, Welcome):
            self.welcome, self.refused = reply, None
        else:
            assert isinstance(reply, Error)
            self.refused = reply
        return self

    @property
    def resume_proof(self) -> Resume:
        assert self.welcome is not None
        return Resume(self.welcome.epoch, self.welcome.session, self.welcome.token)

    def resume(self) -> "Node":
        """Come back on a new connection, with proof."""
        return self.hello(self.resume_proof)

    def ask(self, message: AnyRequest, request_id: int | None = None) -> AnyReply | AnyPush | None:
        return self.lab.send(self.wire, request_id or next(self.ids), message)

    def join(self, *, last: Fence | None = None, again: bool = True) -> "Node":
        """Join; `again` names the last generation as a rejoining agent does."""
        if self.joined is not None:
            self.fence = self.joined.fence
        if last is None and again:
            last = self.fence
        self.join_id = next(self.ids)
        self.ask(
            Join(policy=self.rules, last=last, rank_hint=self.hint, expected_nodes=self.expected),
            self.join_id,
        )
        return self

    def leave(self, kind: str = "finished", **more: object) -> None:
        assert kind in ("finished", "failed", "drained")
        self.ask(Leave(kind=kind, **more))  # type: ignore[arg-type]

    def finish(self) -> None:
        assert self.joined is not None
        self.ask(Finished(fence=self.joined.fence))

    def lose(self) -> None:
        """Its connection ends."""
        self.lab.lose(self.wire)

    def beat(self) -> None:
        self.ask(Heartbeat())

    @property
    def answer(self) -> AnyReply | AnyPush | None:
        """To the newest join."""
        replies = [m for wire in self.wires for m in wire.replies(self.join_id)]
        return replies[-1] if replies else None

    @property
    def joined(self) -> Joined | None:
        answer = self.answer
        return answer if isinstance(answer, Joined) else None

    @property
    def error(self) -> Error | None:
        answer = self.answer
        return answer if isinstance(answer, Error) else None

    @property
    def code(self) -> ErrorCode | None:
        return None if self.error is None else ErrorCode(self.error.code)

    @property
    def rank(self) -> int:
        assert self.joined is not None, self.answer
        return self.joined.group_rank

    @property
    def view(self) -> View:
        """As a client would hold it: the newest push, unless an assignment is newer."""
        push = self.wire.last(ViewChanged)
        view = View() if push is None else push.view
        joined = self.wire.last(Joined)
        if joined is not None and (view.fence is None or view.fence < joined.fence):
            return View(fence=joined.fence)
        return view

    @property
    def ended_kind(self) -> str:
        """How its generation ended; empty while it lives."""
        return "" if self.view.ended is None else self.view.ended.kind

    @property
    def waiting(self) -> int:
        return self.view.waiting

    @property
    def notices(self) -> list[str]:
        return [n.message for n in self.wire.all(Notice)]

    @property
    def progress(self) -> Progress | None:
        return self.wire.last(Progress)

    # --- keys ---------------------------------------------------------------------------------

    def live_fence(self) -> Fence:
        assert self.joined is not None
        return self.joined.fence

    def set(self, key: str, value: bytes = b"v", fence: Fence | None = None) -> object:
        return self.ask(KvSet(fence=fence or self.live_fence(), key=key, value=value))

    def add(self, key: str, delta: int = 1, request_id: int | None = None) -> object:
        return self.ask(KvAdd(fence=self.live_fence(), key=key, delta=delta), request_id)

    def get(self, key: str, timeout_s: float = 0, request_id: int | None = None) -> object:
        ask = KvGet(fence=self.live_fence(), key=key, timeout_ms=round(timeout_s * 1000))
        return self.ask(ask, request_id)

    def wait(self, *keys: str, timeout_s: float = 10, request_id: int | None = None) -> object:
        ask = KvWait(fence=self.live_fence(), keys=list(keys), timeout_ms=round(timeout_s * 1000))
        return self.ask(ask, request_id)

    # --- barriers -----------------------------------------------------------------------------

    def meet(
        self, name: str = "b", timeout_s: float = 10, request_id: int | None = None, **more: Any
    ) -> object:
        """Arrive at a barrier of this generation's nodes."""
        options: dict[str, Any] = {"timeout_ms": round(timeout_s * 1000)} | more
        ask = Barrier(fence=self.live_fence(), name=name, **options)
        return self.ask(ask, request_id)

    def worker(self, rank: int = 0, token: bytes | None = None) -> tuple[Wire, object]:
        """A training process of this node."""
        assert self.joined is not None
        wire = self.lab.connect()
        reply = self.lab.send(
            wire,
            1,
            HelloWorker(
                run=self.run,
                node_id=self.node_id,
                fence=self.joined.fence,
                rank=rank,
                worker_token=token or self.joined.worker_token,
                incarnation=hashlib.sha256(f"w{rank}".encode()).digest()[:16],
            ),
        )
        return wire, reply


def beat_all(lab: Lab, nodes: list[Node], seconds: float, every: float = 1.0) -> None:
    """Let time pass with heartbeats."""
    for _ in _steps(seconds, every):
        for node in nodes:
            node.beat()
        lab.advance(min(every, seconds))


def _steps(seconds: float, every: float) -> Iterator[int]:
    yield from range(max(1, round(seconds / every)))
