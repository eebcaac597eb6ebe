"""The same things said to three servers: barriers, joins, keys, and idle clients.

TCPStore has neither barriers nor joins. Its barrier is what torch builds from it: every client adds 1 to
a counter, the last one sets a key, all wait for that key. It stands beside our joins as well, on
connections as fresh as theirs, since ranks by a counter are what a join replaces.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence

from rdzv_proto import codec
from rdzv_proto.framing import LENGTH_BYTES, PREAMBLE
from rdzv_proto.messages import (
    Barrier,
    Fence,
    Heartbeat,
    HelloNode,
    Join,
    KvAdd,
    KvGet,
    KvSet,
    Message,
    Policy,
)
from tests.bench.load import Client, Load
from tests.bench.servers import Server

VALUE = b"x" * 32
"""An address, or a pickled handle: what rendezvous values are like."""

ID = 1 << 31
"""A request id that takes four bytes; the generator writes the real one over it."""

ID_AT = LENGTH_BYTES + 3
"""Behind the array's head, the version and the mark of a four-byte number."""

ACKNOWLEDGE_EVERY = 512
"""Requests between acknowledgements: half of what the server keeps."""

KV_OPS = ("add", "set", "get")


class Dialect(ABC):
    """How to say it to one kind of server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._serial = itertools.count(1)

    @abstractmethod
    def barrier(self, n: int) -> Load:
        """All clients meet."""

    @abstractmethod
    def join(self, n: int) -> Load:
        """All clients get their ranks, once."""

    @abstractmethod
    def kv(self, op: str, n: int) -> Load:
        """Each client works on a key of its own."""

    @abstractmethod
    def idle(self, n: int, *, members: bool) -> Load:
        """Clients that only say that they are alive; as members of a world, where there are worlds."""


class Rdzv(Dialect):
    """Ours. Every run of a load is a run of its own here, so its first generation is number 1."""

    def barrier(self, n: int) -> Load:
        request = Barrier(fence=self._fence(), name="step", timeout_ms=60_000)
        return self._load(self._members(n), [request] * n, "released")

    def join(self, n: int) -> Load:
        return self._load(self._hellos(n), [_join(n)] * n, "joined")

    def kv(self, op: str, n: int) -> Load:
        setup = self._members(n)
        keys = [f"cnt{i:08d}" for i in range(n)]
        fence = self._fence()
        requests: list[Message]
        match op:
            case "add":
                requests = [KvAdd(fence=fence, key=key, delta=1) for key in keys]
                return self._load(setup, requests, "kv_number")
            case "set":
                requests = [KvSet(fence=fence, key=key, value=VALUE) for key in keys]
                return self._load(setup, requests, "done")
            case _:
                puts = [KvSet(fence=fence, key=key, value=VALUE) for key in keys]
                requests = [KvGet(fence=fence, key=key) for key in keys]
                return self._load(setup, requests, "kv_value", puts)

    def idle(self, n: int, *, members: bool) -> Load:
        setup = self._members(n) if members else self._hellos(n)
        return self._load(setup, [Heartbeat()] * n, "alive")

    def _hellos(self, n: int) -> list[list[bytes]]:
        run = f"bench{next(self._serial)}"
        return [
            [
                codec.encode(
                    1,
                    HelloNode(
                        run=run, node_id=f"node{i:05d}", name=f"node{i:05d}",
                        incarnation=i.to_bytes(16, "big"),
                    ),
                )
            ]
            for i in range(n)
        ]  # fmt: skip

    def _members(self, n: int) -> list[list[bytes]]:
        setup = self._hellos(n)
        join = codec.encode(2, _join(n))
        for frames in setup:
            frames.append(join)
        return setup

    def _fence(self) -> Fence:
        return Fence(self.server.epoch, 1)

    def _load(
        self,
        setup: list[list[bytes]],
        requests: Sequence[Message],
        answer: str,
        before: Sequence[Message] = (),
    ) -> Load:
        acknowledge = codec.encode(ID, Heartbeat(acknowledged=ID))
        at = acknowledge.rindex(ID.to_bytes(4, "big"))
        steps = [[(PREAMBLE + b"".join(frames), len(frames))] for frames in setup]
        for one, message in zip(steps, before, strict=False):
            one.append((codec.encode(3, message), 1))
        return Load(
            [
                Client(codec.encode(ID, request), tuple(one))
                for request, one in zip(requests, steps, strict=True)
            ],
            skip=codec.frame(0, b"")[LENGTH_BYTES:],
            expect=answer.encode(),
            id_at=ID_AT,
            acknowledge=(ACKNOWLEDGE_EVERY, at, acknowledge),
        )


def _join(n: int) -> Join:
    return Join(policy=Policy(min_nodes=n, max_nodes=n))


class Store(Dialect):
    """torch's TCPStore: an operation byte, strings and values with u64 lengths, little endian."""

    _OPEN = b"\0" + (0x3C85F7CE).to_bytes(4, "little")
    _SET, _GET, _ADD, _WAIT = b"\1", b"\3", b"\4", b"\6"
    _PING = b"\x0d" + bytes(4)
    _PING_BYTES = 4

    def barrier(self, n: int) -> Load:
        serial = next(self._serial)
        counter, last = _long(b"/count%06d...." % serial), _long(b"/last%06d...." % serial)
        add = self._ADD + counter + (1).to_bytes(8, "little")
        set_last = self._SET + last + _long(b"<val/>")
        wait = self._WAIT + (1).to_bytes(8, "little") + last
        win = n.to_bytes(8, "little")
        return Load(
            [Client(add, ((self._OPEN + self._PING, self._PING_BYTES),))] * n,
            fixed_bytes=8,
            round_at=add.index(b"...."),
            then=(win, set_last, wait, wait.index(b"...."), set_last.index(b"....")),
        )

    def join(self, n: int) -> Load:
        return self.barrier(n)

    def kv(self, op: str, n: int) -> Load:
        """A set has no answer in this protocol, so a ping follows it, as nothing else tells that it
        was done; a get is the bare one, without the wait that torch's client sends before it."""
        clients, fixed = [], {"add": 8, "set": self._PING_BYTES, "get": 8 + len(VALUE)}[op]
        for i in range(n):
            key = _long(b"/cnt%08d" % i)
            put = self._SET + _long(b"/key%08d" % i) + _long(VALUE)
            request = {
                "add": self._ADD + key + (1).to_bytes(8, "little"),
                "set": put + self._PING,
                "get": self._GET + _long(b"/key%08d" % i),
            }[op]
            setup = self._OPEN + (put if op == "get" else b"") + self._PING
            clients.append(Client(request, ((setup, self._PING_BYTES),)))
        return Load(clients, fixed_bytes=fixed)

    def idle(self, n: int, *, members: bool) -> Load:
        client = Client(self._PING, ((self._OPEN + self._PING, self._PING_BYTES),))
        return Load([client] * n, fixed_bytes=self._PING_BYTES)


def _long(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


class Reference(Dialect):
    """The C reference: it echoes, and collects frames called barrier or join until all are there."""

    _NOTHING = b"\0\0\0\1\xc0"

    def barrier(self, n: int) -> Load:
        return self._collective(n, b"\x94", b"\xa7barrier\xa4step")

    def join(self, n: int) -> Load:
        return self._collective(n, b"\x95", b"\xa4join\xa6bench0\xa9node00000")

    def kv(self, op: str, n: int) -> Load:
        load = Rdzv(self.server).kv(op, n)
        clients = [Client(client.request, ((self._NOTHING, 1),)) for client in load.clients]
        return Load(clients, id_at=ID_AT)

    def idle(self, n: int, *, members: bool) -> Load:
        return Load([Client(self._NOTHING, ((self._NOTHING, 1),))] * n)

    def _collective(self, n: int, head: bytes, what: bytes) -> Load:
        body = head + b"\xce" + ID.to_bytes(4, "big") + what + b"\xce" + n.to_bytes(4, "big")
        frame = len(body).to_bytes(LENGTH_BYTES, "big") + body
        return Load([Client(frame, ((self._NOTHING, 1),))] * n, id_at=LENGTH_BYTES + 2)


DIALECTS = {"rdzv": Rdzv, "TCPStore": Store, "C": Reference}
