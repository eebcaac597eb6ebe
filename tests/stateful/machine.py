"""Clients that do anything in any order, on both servers of a `Pair`."""

import hashlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rdzv_proto.messages import (
    AnyRequest,
    Barrier,
    CloseRun,
    Fence,
    Finished,
    Heartbeat,
    HelloNode,
    HelloWorker,
    Join,
    Joined,
    KvAdd,
    KvAppend,
    KvCas,
    KvCheck,
    KvCount,
    KvDelete,
    KvGet,
    KvList,
    KvMultiGet,
    KvMultiSet,
    KvSet,
    KvWait,
    Leave,
    Policy,
    Resume,
    ViewChanged,
    Welcome,
)
from tests.stateful.pair import EPOCH, KEEP_S, Pair

NODES = ("n1", "n2", "n3", "n10", "n20")
RUNS = ("a", "a", "a", "a", "b")
"""Most of what happens is in one run; the other one shows that runs do not touch each other."""

LEASE_MS = 3000
WHO = st.integers(0, 23)
KEY = st.sampled_from(("k1", "k1", "k2", "k2", "k3"))
KEYS = st.sampled_from(
    (
        ["k1"],
        ["k2"],
        ["k1", "k2"],
        ["k1", "k2"],
        ["k2", "k1"],
        ["k1", "k2", "k3"],
        ["k2", "k3", "k2"],
    )
)
VALUE = st.sampled_from((b"", b"1", b"-7", b"x", b"9223372036854775807", b"y" * 40))
WAIT_MS = st.sampled_from((2500, 6000, 6000, 6000, 700, 0))
SCOPE = st.sampled_from(("now",) * 6 + ("run",) * 4 + ("before", "after", "epoch"))
BARRIER = st.sampled_from(("b1", "b1", "b1", "b2"))


@dataclass
class Process:
    """A client process: a node, or a worker of one."""

    run: str
    node: str
    incarnation: bytes
    conn: int = 0
    attempt: int = 0
    greeted: int = 0
    """The last connection on which it was welcomed."""
    proof: Resume | None = None
    requests: int = 0
    asked: list[tuple[int, AnyRequest]] = field(default_factory=list)
    generation: int = 0
    """The last one that it was told of."""
    worker_token: bytes = b""
    worker: HelloWorker | None = None
    """Its hello, if it is a worker."""


class Clients(RuleBasedStateMachine):
    """Rules are things that clients, the network and the server's machine do."""

    rules_played: ClassVar[int] = 0
    """Of all machines, for the report."""
    steps: ClassVar[int] = 0
    """Events and ticks that were compared."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()
        self.processes: list[Process] = []
        self.policy = Policy(min_nodes=1, max_nodes=1)

    def teardown(self) -> None:
        Clients.steps += self.pair.steps

    @invariant()
    def count(self) -> None:
        """Called after each rule."""
        Clients.rules_played += 1

    @initialize(
        sizes=st.sampled_from(((1, 3, 1), (2, 2, 1), (2, 2, 1), (2, 3, 1), (2, 4, 2), (3, 5, 1))),
        last_call=st.sampled_from((0, 500, 2000)),
        patience=st.sampled_from((1000, 8000, 60_000)),
        below_min=st.sampled_from(("stop", "wait")),
        first=st.integers(0, 5),
    )
    def begin(
        self, sizes: tuple[int, int, int], last_call: int, patience: int, below_min: Any, first: int
    ) -> None:
        self.policy = Policy(
            min_nodes=sizes[0], max_nodes=sizes[1], node_unit=sizes[2], below_min=below_min,
            join_timeout_ms=patience, last_call_timeout_ms=last_call,
        )  # fmt: skip
        for number in range(first):  # most interesting things need a world
            self.start(number, 0)
            self._ask(self.processes[-1], Join(policy=self.policy))
        self.pair.until(self.pair.now + last_call / 1000)
        self._hear()

    # --- helpers ------------------------------------------------------------------------------

    def _one(self, who: int, *, connected: bool = True) -> Process | None:
        """Mostly one that was in a world lately, sometimes any other."""
        some = [p for p in self.processes if not connected or p.conn in self.pair.open]
        newest = max((p.generation for p in some), default=0)
        greeted = [p for p in some if p.greeted == p.conn]
        inside = [p for p in greeted if newest and p.generation == newest]
        if who % 8:
            some = (inside if who % 4 else greeted) or greeted or some
        return some[who // 4 % len(some)] if some else None

    def _in_session(self, process: Process) -> bool:
        return process.greeted == process.conn and process.conn in self.pair.open

    def _ask(self, process: Process, ask: AnyRequest, request: int | None = None) -> None:
        if request is None:
            process.requests += 1
            request = process.requests
            process.asked.append((request, ask))
        self.pair.send(process.conn, request, ask)
        self._hear()

    def _hear(self) -> None:
        """Clients note what they were told."""
        for process in self.processes:
            for _, message in self.pair.got.get(process.conn, ()):
                if isinstance(message, Joined):
                    assert message.fence.generation >= process.generation, "S3: a fence fell"
                    process.generation = message.fence.generation
                    process.worker_token = message.worker_token
                elif isinstance(message, ViewChanged) and process.worker is None:
                    fence = message.view.fence
                    assert fence is not None, "a push of no generation"
                    assert fence.generation >= process.generation, "S3: news of an older generation"
                elif isinstance(message, Welcome):
                    process.greeted = process.conn
                    process.proof = Resume(message.epoch, message.session, message.token)

    def _fence(self, process: Process, scope: str) -> Fence | None:
        g = process.generation
        match scope:
            case "run":
                return None
            case "now" if g == 0:
                return None
            case "before":
                return Fence(EPOCH, max(0, g - 1))
            case "after":
                return Fence(EPOCH, g + 1)
            case "epoch":
                return Fence(EPOCH - 1, g)
            case _:
                return Fence(EPOCH, g)

    def _hello(self, process: Process, resume: Resume | None, attempt: int) -> None:
        process.attempt += 1
        process.conn = self.pair.connect()
        if process.worker is not None:
            worker = process.worker
            self._ask(
                process,
                HelloWorker(
                    run=worker.run, node_id=worker.node_id, fence=worker.fence, rank=worker.rank,
                    worker_token=worker.worker_token, incarnation=worker.incarnation,
                    lease_ms=LEASE_MS, resume=resume, attempt=process.attempt - attempt,
                ),
                process.attempt * 1_000_000,
            )  # fmt: skip
        else:
            self._ask(
                process,
                HelloNode(
                    run=process.run, node_id=process.node, name=process.node,
                    incarnation=process.incarnation, lease_ms=LEASE_MS, resume=resume,
                    attempt=max(0, process.attempt - attempt),
                ),
                process.attempt * 1_000_000,
            )  # fmt: skip

    # --- processes and connections ------------------------------------------------------------

    @rule(node=st.integers(0, len(NODES) - 1), run=st.integers(0, len(RUNS) - 1))
    def start(self, node: int, run: int) -> None:
        """A new process, maybe in place of another one."""
        name = f"{len(self.processes)}".encode()
        process = Process(RUNS[run], NODES[node], hashlib.sha256(name).digest()[:16])
        self.processes.append(process)
        self._hello(process, None, 0)

    @precondition(lambda self: bool(self.processes))
    @rule(
        who=WHO,
        other=WHO,
        how=st.sampled_from(("resume",) * 4 + ("plain", "late", "theft", "guess", "epoch")),
    )
    def come_back(self, who: int, other: int, how: str) -> None:
        """On a new connection, the old one may still be there."""
        process = self._one(who, connected=False)
        assert process is not None
        proof, late = process.proof, 0
        match how:
            case "plain":
                proof = None
            case "late":
                late = 2
            case "theft":
                thief = self._one(other, connected=False)
                proof = None if thief is None else thief.proof
            case "guess" if proof is not None:
                proof = Resume(proof.epoch, proof.session, b"?" * 16)
            case "epoch" if proof is not None:
                proof = Resume(proof.epoch - 1, proof.session, proof.token)
        self._hello(process, proof, min(late, process.attempt))

    @precondition(lambda self: self.pair.open)
    @rule(who=WHO, several=st.sampled_from((1, 1, 1, 3, 9)))
    def drop(self, who: int, several: int) -> None:
        """Connections close."""
        conns = sorted(self.pair.open)
        for number in range(min(several, len(conns))):
            self.pair.lose(conns[(who + number) % len(conns)])
            self._hear()

    @precondition(lambda self: any(p.worker_token for p in self.processes))
    @rule(
        who=WHO, rank=st.integers(0, 2), scope=SCOPE, wrong=st.sampled_from((False,) * 5 + (True,))
    )
    def start_worker(self, who: int, rank: int, scope: str, wrong: bool) -> None:
        agents = [p for p in self.processes if p.worker_token]
        agent = agents[who % len(agents)]
        name = f"{len(self.processes)}".encode()
        process = Process(agent.run, agent.node, hashlib.sha256(name).digest()[:16])
        process.generation = agent.generation
        process.worker = HelloWorker(
            run=agent.run, node_id=agent.node, rank=rank, incarnation=process.incarnation,
            fence=self._fence(agent, scope) or Fence(EPOCH, agent.generation),
            worker_token=b"?" * 32 if wrong else agent.worker_token,
        )  # fmt: skip
        self.processes.append(process)
        self._hello(process, None, 0)

    # --- membership ---------------------------------------------------------------------------

    @precondition(lambda self: self.pair.open)
    @rule(
        who=WHO, last=st.sampled_from(("now",) * 6 + ("run", "before", "after")),
        hint=st.sampled_from((None,) * 6 + (0, 0, 1)),
        policy=st.sampled_from(("agreed",) * 12 + ("other", "impossible")),
    )  # fmt: skip
    def join(self, who: int, last: str, hint: int | None, policy: str) -> None:
        process = self._one(who)
        if process is None:
            return
        wanted = self.policy
        if policy == "other":
            wanted = Policy(min_nodes=1, max_nodes=9)
        elif policy == "impossible":
            wanted = Policy(min_nodes=3, max_nodes=3, node_unit=2)
        known = self._fence(process, last) if process.generation else None
        self._ask(process, Join(policy=wanted, last=known, rank_hint=hint))

    @precondition(lambda self: self.pair.open)
    @rule(who=WHO)
    def join_all(self, who: int) -> None:
        """As agents do when they are told that their generation ended."""
        for process in list(self.processes):
            if self._in_session(process) and process.worker is None:
                known = Fence(EPOCH, process.generation) if process.generation else None
                self._ask(process, Join(policy=self.policy, last=known))

    @precondition(lambda self: self.pair.open)
    @rule(who=WHO, scope=st.sampled_from(("now", "now", "now", "before", "after")))
    def finish(self, who: int, scope: str) -> None:
        process = self._one(who)
        if process is not None:
            fence = self._fence(process, scope) or Fence(EPOCH, 0)
            self._ask(process, Finished(fence=fence))

    @precondition(lambda self: self.pair.open)
    @rule(
        who=WHO,
        kind=st.sampled_from(("finished", "failed", "drained")),
        code=st.sampled_from((None, 3)),
    )
    def leave(self, who: int, kind: Any, code: int | None) -> None:
        process = self._one(who)
        if process is not None:
            self._ask(process, Leave(kind=kind, exit_code=code))

    @precondition(lambda self: self.pair.open)
    @rule(
        kind=st.sampled_from(("finished", "drained")),
        seconds=st.sampled_from((0.0, 1.0, KEEP_S + 1)),
    )
    def leave_all(self, kind: Any, seconds: float) -> None:
        """The job is over, and maybe forgotten."""
        for process in list(self.processes):
            if self._in_session(process) and process.worker is None:
                self._ask(process, Leave(kind=kind))
        self.let_time_pass(seconds, -1)

    @precondition(lambda self: self.pair.open)
    @rule(who=WHO, run=st.sampled_from(("a", "a", "a", "b")), really=st.integers(0, 5))
    def close(self, who: int, run: str, really: int) -> None:
        """Seldom: it ends most of what could happen."""
        process = self._one(who)
        if process is not None and not really:
            self._ask(process, CloseRun(run=run))

    # --- keys ---------------------------------------------------------------------------------

    @precondition(lambda self: self.pair.open)
    @rule(who=WHO, scope=SCOPE, key=KEY, value=VALUE, kind=st.sampled_from(("set", "append")))
    def put(self, who: int, scope: str, key: str, value: bytes, kind: str) -> None:
        process = self._one(who)
        if process is not None:
            fence = self._fence(process, scope)
            make = KvSet if kind == "set" else KvAppend
            self._ask(process, make(fence=fence, key=key, value=value))

    @precondition(lambda self: self.pair.open)
    @rule(
        who=WHO, other=WHO, scope=st.sampled_from(("now", "run")),
        changes=st.lists(st.tuples(st.booleans(), st.sampled_from(("k1", "k2"))), min_size=2, max_size=5),
    )  # fmt: skip
    def come_and_go(
        self, who: int, other: int, scope: str, changes: list[tuple[bool, str]]
    ) -> None:  # fmt: skip
        """Keys are set and deleted in short order, while somebody waits for both."""
        process, waits = self._one(who), self._one(other)
        if process is None or waits is None:
            return
        fence = self._fence(waits, scope)
        self._ask(waits, KvWait(fence=fence, keys=["k1", "k2"], timeout_ms=2500))
        for there, key in changes:
            fence = self._fence(process, scope)
            ask = (
                KvSet(fence=fence, key=key, value=b"1")
                if there
                else KvDelete(fence=fence, keys=[key])
            )
            self._ask(process, ask)

    @precondition(lambda self: self.pair.open)
    @rule(who=WHO, scope=SCOPE, key=KEY, delta=st.sampled_from((1, 1, -3, 2**62)))
    def add(self, who: int, scope: str, key: str, delta: int) -> None:
        process = self._one(who)
        if process is not None:
            self._ask(process, KvAdd(fence=self._fence(process, scope), key=key, delta=delta))

    @precondition(lambda self: self.pair.open)
    @rule(
        who=WHO, scope=SCOPE, key=KEY, value=VALUE, expected=st.one_of(st.none(), VALUE),
        revision=st.sampled_from((None, None, 0, 1, 2)),
    )  # fmt: skip
    def compare_and_set(
        self, who: int, scope: str, key: str, value: bytes, expected: bytes | None, revision: int | None
    ) -> None:  # fmt: skip
        process = self._one(who)
        if process is not None:
            fence = self._fence(process, scope)
            ask = KvCas(fence=fence, key=key, value=value, expected=expected, revision=revision)
            self._ask(process, ask)

    @precondition(lambda self: self.pair.open)
    @rule(
        who=WHO,
        scope=SCOPE,
        keys=KEYS,
        values=st.lists(VALUE, min_size=1, max_size=3),
        kind=st.sampled_from(("set", "delete")),
    )
    def put_many(
        self, who: int, scope: str, keys: list[str], values: list[bytes], kind: str
    ) -> None:
        process = self._one(who)
        if process is not None:
            fence = self._fence(process, scope)
            if kind == "delete":
                self._ask(process, KvDelete(fence=fence, keys=keys))
            else:
                self._ask(process, KvMultiSet(fence=fence, keys=keys, values=values))

    @precondition(lambda self: self.pair.open)
    @rule(
        who=WHO,
        scope=SCOPE,
        keys=KEYS,
        wait_ms=WAIT_MS,
        kind=st.sampled_from(("get", "wait", "multi")),
    )
    def read(self, who: int, scope: str, keys: list[str], wait_ms: int, kind: str) -> None:
        process = self._one(who)
        if process is None:
            return
        fence = self._fence(process, scope)
        if kind == "get":
            self._ask(process, KvGet(fence=fence, key=keys[0], timeout_ms=wait_ms))
        elif kind == "wait":
            self._ask(process, KvWait(fence=fence, keys=keys, timeout_ms=wait_ms))
        else:
            self._ask(process, KvMultiGet(fence=fence, keys=keys, timeout_ms=wait_ms))

    @precondition(lambda self: self.pair.open)
    @rule(
        who=WHO,
        scope=SCOPE,
        keys=KEYS,
        prefix=st.sampled_from(("", "k", "k2")),
        kind=st.sampled_from(("check", "count", "list")),
    )
    def look(self, who: int, scope: str, keys: list[str], prefix: str, kind: str) -> None:
        process = self._one(who)
        if process is None:
            return
        fence = self._fence(process, scope)
        if kind == "check":
            self._ask(process, KvCheck(fence=fence, keys=keys))
        elif kind == "count":
            self._ask(process, KvCount(fence=fence, prefix=prefix))
        else:
            values = prefix != "k"
            self._ask(process, KvList(fence=fence, prefix=prefix, after=keys[0], values=values))

    # --- barriers -----------------------------------------------------------------------------

    @precondition(lambda self: self.pair.open)
    @rule(
        who=WHO, scope=st.sampled_from(("now",) * 6 + ("before", "run")), name=BARRIER,
        members=st.sampled_from(((),) * 9 + ((0, 1), (1,), (0, 2), (7,))),
        number=st.sampled_from((None,) * 9 + (1, 2, 5)), wait_ms=WAIT_MS,
        payload=st.sampled_from((None, None, b"p", b"q")), vote=st.sampled_from((None, None, True, False)),
        count=st.sampled_from((2, 2, 2, 1, 3, 0)),
    )  # fmt: skip
    def meet(self, who: int, scope: str, name: str, members: tuple[int, ...], number: int | None,
             wait_ms: int, payload: bytes | None, vote: bool | None, count: int) -> None:  # fmt: skip
        process = self._one(who)
        if process is None:
            return
        fence = self._fence(process, scope)
        of: Any = "count" if fence is None else "nodes" if process.worker is None else "workers"
        ask = Barrier(
            fence=fence, name=name, of=of, members=list(members), round=number,
            payload=payload, vote=vote, timeout_ms=wait_ms, count=0 if of == "nodes" else count,
        )  # fmt: skip
        self._ask(process, ask)

    @precondition(lambda self: self.pair.open)
    @rule(
        who=st.integers(-6, 5), name=BARRIER, vote=st.sampled_from(("", "yes", "no", "mixed")), wait_ms=WAIT_MS,
        of=st.sampled_from(("nodes", "nodes", "workers")), members=st.sampled_from(((), (), (), (0, 1), (0, 2))),
        count=st.sampled_from((2, 2, 1, 3)), story=st.sampled_from(("", "", "twice", "late", "late")),
    )  # fmt: skip
    def meet_all(self, who: int, name: str, vote: str, wait_ms: int, of: Any,
                 members: tuple[int, ...], count: int, story: str) -> None:  # fmt: skip
        """All agents, or all workers, but maybe one, who comes too late; or all ask twice."""
        come = [
            p for p in self.processes
            if p.generation and self._in_session(p) and (p.worker is None) == (of == "nodes")
        ]  # fmt: skip
        late = [come.pop(who)] if 0 <= who < len(come) else []
        asks = [
            Barrier(
                fence=Fence(EPOCH, process.generation), name=name, timeout_ms=wait_ms, of=of,
                vote=(vote == "yes" or (vote == "mixed" and number % 2 == 0)) if vote else None,
                payload=str(number).encode(), members=list(members), count=0 if of == "nodes" else count,
            )
            for number, process in enumerate(come + late)
        ]  # fmt: skip
        for process, ask in zip(come, asks, strict=False):
            self._ask(process, ask)
            if story == "twice":
                self._ask(process, ask)
        if story == "late" and late:
            self.let_time_pass(wait_ms / 1000 + 0.1, -1)
            if self._in_session(late[0]):
                self._ask(late[0], asks[-1])

    # --- requests again, and time -------------------------------------------------------------

    @precondition(lambda self: any(p.asked for p in self.processes))
    @rule(who=WHO, back=st.integers(0, 5))
    def ask_again(self, who: int, back: int) -> None:
        """A retry: the same request id. It may have been done, wait, or never have arrived."""
        process = self._one(who)
        if process is not None and process.asked:
            request, ask = process.asked[-1 - back % len(process.asked)]
            self._ask(process, ask, request)

    @precondition(lambda self: self.pair.open)
    @rule(who=WHO, up_to=st.integers(0, 3))
    def acknowledge(self, who: int, up_to: int) -> None:
        process = self._one(who)
        if process is not None:
            done = max(0, process.requests - up_to)
            process.requests += 1
            self._ask(process, Heartbeat(acknowledged=done), process.requests)

    @rule(seconds=st.sampled_from((0.02, 0.3, 1.1, 2.2, 4.0)), silent=st.integers(-4, 7))
    def let_time_pass(self, seconds: float, silent: int) -> None:
        """With heartbeats of everybody who is connected, or of everybody but one."""
        end = self.pair.now + seconds
        while self.pair.now < end:
            for number, process in enumerate(list(self.processes)):
                if self._in_session(process) and number != silent:
                    process.requests += 1
                    self._ask(process, Heartbeat(), process.requests)
            self.pair.until(min(end, self.pair.now + 1.0))
            self._hear()

    @precondition(lambda self: bool(self.processes))
    @rule(seconds=st.sampled_from((0.15, 0.5, 3.0, 30.0)))
    def stop_the_server(self, seconds: float) -> None:
        """It does not run for a while, and nobody is heard."""
        self.pair.stall(seconds)
        self._hear()
