"""A real core with something going on in it, made the same way for every input: tests/lab.py, peopled."""

from rdzv_proto import codec
from rdzv_proto.messages import AnyRequest, Goodbye, Joined, KvSet
from rdzv_proto.messages import Barrier as MeetAt
from rdzv_server.core.clock import TICK_S
from rdzv_server.core.events import Broadcast, Close, Effect, Event, Received, Release, Send
from tests.fuzz.grammar import Known
from tests.fuzz.watch import Watch
from tests.ids import unique_id
from tests.lab import EPOCH, RUN, Lab, Node, StoreWire, Wire, policy

OTHER = "other"
SETTLE_TICKS = 2, 12
"""Before everybody goes, and after: longer than the grace of a connection."""


class Scene:
    """A live generation of two, one of them with a worker; a standby; a run that still forms; a tool; a connection
    without a hello; and a TCPStore client.

    Args:
        watch: takes the time of what the core does.
        durable: the core tells what must be kept, and that is compared with its state after every step.
        served: the server serves the workers' store.
    """

    def __init__(self, watch: Watch, *, durable: bool = False, served: bool = False) -> None:
        self.watch = watch
        self.lab = lab = Lab(durable=durable)
        rules = policy(2, 3, last_call_s=0, worker_store="server" if served else "rank0")
        self.nodes = lab.nodes("n0", "n1", rules=rules)
        for node in self.nodes:
            node.join()
        lab.advance(2 * TICK_S)
        joined = self.nodes[0].joined
        assert joined is not None, self.nodes[0].answer
        self.joined: Joined = joined
        worker, _ = self.nodes[0].worker(0)
        standby = Node(lab, "n2", rules=rules).join()
        alone = Node(lab, "m0", run=OTHER, rules=policy(2)).join()
        self.nodes[0].ask(KvSet(fence=joined.fence, key="k", value=b"1"))
        self.nodes[0].ask(MeetAt(fence=joined.fence, name="b", timeout_ms=60_000))
        self.store: StoreWire = lab.store(joined.store_port)
        self.store.send(b"")
        self.wires: list[Wire] = [
            *(node.wire for node in self.nodes), worker, standby.wire, alone.wire, lab.admin(), lab.connect(),
        ]  # fmt: skip

    def known(self) -> Known:
        """What means something in here."""
        known = Known()
        fence = [EPOCH, 1]
        known.learn("run", RUN, OTHER, "new")
        known.learn("only", RUN, "")
        known.learn("node_id", "n0", "n1", "n2", "m0", "x")
        known.learn("fence", *[fence] * 9, [EPOCH, 2], [EPOCH - 1, 1], None)
        known.learn("last", fence, [EPOCH, 2], None)
        known.learn("key", "k", "l", "")
        known.learn("keys", ["k"], ["l"], ["k", "l"], ["k", "k"], [])
        known.learn("name", "b", "c", "d")
        known.learn("group", "g", "g", "h")
        known.learn("of", "nodes", "workers", "count")
        known.learn("count", 1, 2, 3)
        known.learn("members", [0], [0, 1], [1], [])
        known.learn("round", None, 1, 2, 3)
        known.learn("rank", 0, 0, 1, 1, 2)
        known.learn("nranks", 1, 2, 2)
        known.learn("n_ids", 1, 1, 2)
        known.learn("attempt", 0, 0, 1)
        known.learn("index", 0, 0, 1)
        known.learn("minter", None, 0)
        known.learn("version", 0)
        known.learn("worker_token", self.joined.worker_token)
        known.learn("incarnation", *(node.incarnation for node in self.nodes), b"i" * 16)
        known.learn(
            "policy", *({"min_nodes": 2, "max_nodes": n, "last_call_timeout_ms": 0} for n in (2, 3))
        )
        known.learn("id", *(unique_id(n) for n in range(3)), b"\0" * 128)
        known.learn("acknowledged", 0, 0, 1)
        known.learn("timeout_ms", 0, 1, 500, 60_000)
        for node in self.nodes:
            proof = node.resume_proof
            known.learn(
                "resume",
                {"epoch": proof.epoch, "session": proof.session, "token": proof.token},
                None,
            )
        return known

    # --- what can happen ----------------------------------------------------------------------

    def frame(self, place: int, body: bytes) -> None:
        """A body comes on one of the connections, as the shell would hand it on."""
        wire = self.wires[place % len(self.wires)]
        try:
            request_id, message = self.watch.call(codec.decode_request, body)
        except codec.MalformedError:
            return
        self._request(wire, request_id, message)

    def lose(self, place: int) -> None:
        """A connection ends; a new one takes its place."""
        place %= len(self.wires)
        if not self.wires[place].closed:
            self.lab.lose(self.wires[place])
        self.wires[place] = self.lab.connect()

    def store_bytes(self, data: bytes) -> None:
        """The TCPStore client sends; one that was turned away comes again, at the main port."""
        if self.store.closed:
            self.store = self.lab.store()
        self.store.send(data)

    def wait(self, ticks: int) -> None:
        """Time passes."""
        for _ in range(ticks):
            self.lab.now += TICK_S
            self.apply(self.watch.call(self.lab.core.tick, self.lab.now))

    def settle(self) -> None:
        """Everybody goes, and time passes: nothing may be left that is not as it should be."""
        self.wait(SETTLE_TICKS[0])
        for wire in self.wires:
            if not wire.closed:
                self.lab.lose(wire)
        if not self.store.closed:
            self.store.lose()
        self.wait(SETTLE_TICKS[1])

    # --- inside -------------------------------------------------------------------------------

    def _request(self, wire: Wire, request_id: int, message: AnyRequest) -> None:
        if wire.closed:
            return
        event: Event = Received(wire.conn, request_id, message)
        self.apply(self.watch.call(self.lab.core.handle, self.lab.now, event))

    def apply(self, effects: list[Effect]) -> None:
        """Do them, with every check of the laboratory; and clients can read every one."""
        for effect in effects:
            check_readable(effect)
        self.lab.apply(effects)


def check_readable(effect: Effect) -> None:
    """What the server says is a message that a client takes.

    Raises:
        MalformedError: it is none.
    """
    match effect:
        case Send(_, request_id, message):
            _read(request_id, message)
        case Broadcast(_, message):
            _read(0, message)
        case Release(_, message):
            _read(1, message)
        case Close(_, Goodbye() as goodbye):
            _read(0, goodbye)
        case _:
            pass


def _read(request_id: int, message: object) -> None:
    frame = codec.encode(request_id, message)  # type: ignore[arg-type]
    assert codec.decode_answer(frame[4:]) == (request_id, message), f"read otherwise: {message!r}"
