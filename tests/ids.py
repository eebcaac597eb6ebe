"""Made-up unique ids for tests of the core, and processes that hand them round in the laboratory."""

import hashlib
import ipaddress
import itertools
from typing import Any

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyRequest,
    Done,
    Error,
    Fence,
    NcclFail,
    NcclGet,
    NcclIds,
    NcclPut,
    NcclReady,
    NcclRevoked,
    Welcome,
)
from tests.lab import Lab, Node, Wire, policy


def unique_id(number: int = 1, host: str = "10.0.0.1", port: int = 4711) -> bytes:
    """128 bytes as NCCL lays them out: magic, `sockaddr`, zeros."""
    magic = hashlib.sha256(f"magic {number}".encode()).digest()[:8]
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv4Address):
        where = (2).to_bytes(2, "little") + port.to_bytes(2, "big") + address.packed
    else:
        where = (10).to_bytes(2, "little") + port.to_bytes(2, "big") + bytes(4) + address.packed
    return (magic + where).ljust(128, b"\0")


class Process:
    """A process of the laboratory that takes part in communicators: a node or one of its workers."""

    request_ids = itertools.count(500_000)

    def __init__(self, lab: Lab, wire: Wire, fence: Fence, rank: int) -> None:
        self.lab, self.wire, self.fence, self.rank = lab, wire, fence, rank
        self.last = 0

    def ask(self, message: AnyRequest, request_id: int = 0) -> object:
        """Returns the answer, or None if there is none yet."""
        self.last = request_id or next(self.request_ids)
        return self.lab.send(self.wire, self.last, message)

    def get(
        self,
        nranks: int = 2,
        *,
        group: str = "dp",
        rank: int | None = None,
        timeout_s: float = 60,
        request_id: int = 0,
        **more: Any,
    ) -> object:
        number = self.rank if rank is None else rank
        ask = NcclGet(
            fence=self.fence, group=group, rank=number, nranks=nranks,
            timeout_ms=round(timeout_s * 1000), **more,
        )  # fmt: skip
        return self.ask(ask, request_id)

    def put(
        self, raw: bytes, *, index: int = 0, attempt: int = 0, rank: int | None = None
    ) -> object:
        number = self.rank if rank is None else rank
        return self.ask(
            NcclPut(fence=self.fence, group="dp", attempt=attempt, rank=number, index=index, id=raw)
        )

    def ready(self, *, attempt: int = 0, rank: int | None = None) -> object:
        number = self.rank if rank is None else rank
        return self.ask(NcclReady(fence=self.fence, group="dp", attempt=attempt, rank=number))

    def fail(self, reason: str = "it broke", *, attempt: int = 0) -> object:
        return self.ask(
            NcclFail(fence=self.fence, group="dp", attempt=attempt, rank=self.rank, reason=reason)
        )

    @property
    def answer(self) -> object:
        """To the newest request, as far as there is one."""
        replies = self.wire.replies(self.last)
        return replies[-1] if replies else None

    @property
    def revoked(self) -> list[NcclRevoked]:
        return self.wire.all(NcclRevoked)


def processes(lab: Lab, count: int = 2, **more: object) -> tuple[list[Node], list[Process]]:
    """A world of nodes that take part in communicators themselves, under their group ranks."""
    rules = policy(count)
    nodes = [lab.node(f"n{i}", rules=rules, **more) for i in range(count)]
    for node in nodes:
        node.join()
    return nodes, [Process(lab, node.wire, node.live_fence(), node.rank) for node in nodes]


def workers(lab: Lab, nodes: list[Node]) -> list[Process]:
    """One worker for each node."""
    found = []
    for node in nodes:
        wire, reply = node.worker(rank=node.rank)
        assert isinstance(reply, Welcome), reply
        found.append(Process(lab, wire, node.live_fence(), node.rank))
    return found


def publish(all_of: list[Process], number: int = 1, **more: Any) -> bytes:
    """Everybody asks, rank 0 mints, everybody has it."""
    raw = unique_id(number)
    assert isinstance(all_of[0].get(len(all_of), **more), NcclIds)
    for process in all_of[1:]:
        assert process.get(len(all_of), **more) is None
    attempt = more.get("attempt", 0)
    assert all_of[0].put(raw, attempt=attempt) == Done()
    all_of[0].get(len(all_of), **more)
    for process in all_of:
        assert process.answer == NcclIds(attempt=attempt, ids=[raw]), process.answer
    return raw


def error(reply: object, code: ErrorCode) -> Error:
    assert isinstance(reply, Error), reply
    assert reply.code == code, reply
    return reply
