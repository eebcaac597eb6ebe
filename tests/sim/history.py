"""What the clients of one simulated history asked and were told, for checkers that know nothing of the server.

One JSON object a line, in order of the operations' starts; the fields of `Op` are its keys. Times are virtual seconds.
Only keys of generations are among the operations: one generation's keys are one register each, and begin empty.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyReply,
    AnyRequest,
    Barrier,
    Error,
    Fence,
    Join,
    Joined,
    KvAdd,
    KvAppend,
    KvCas,
    KvDelete,
    KvGet,
    KvNumber,
    KvSet,
    KvSwapped,
    KvValue,
    NcclGet,
    NcclIds,
    Released,
)

UNKNOWN = frozenset(
    (ErrorCode.SESSION_LOST, ErrorCode.UNKNOWN_EPOCH, ErrorCode.CONNECTION_LOST, ErrorCode.FENCED)
)
"""Errors of the client library itself: the server may have done what was asked."""

NAMES: dict[type[AnyRequest], str] = {
    KvSet: "put", KvGet: "get", KvAdd: "add", KvAppend: "append", KvCas: "cas", KvDelete: "delete",
    Join: "join", Barrier: "barrier", NcclGet: "id",
}  # fmt: skip
"""Of the operations that are recorded."""


@dataclass
class Op:
    """One operation."""

    client: str
    """Unlike any other process of the history, also of one with the same node id."""
    run: str
    op: str
    """put, get, add, append, cas, delete, join, barrier or id."""
    key: str | None
    """Of a key, a barrier or a communicator."""
    args: Any
    start_s: float
    end_s: float | None = None
    """None: nobody knows how it ended; it may have been done at any time after its start."""
    ok: bool | None = None
    """False: it was refused, and changed nothing; None: nobody knows."""
    result: Any = None
    epoch: int | None = None
    generation: int | None = None
    rank: int | None = None
    world: int | None = None
    round: int | None = None


@dataclass
class Recorder:
    """The operations of one history, as they begin and end."""

    ops: list[Op] = field(default_factory=list)

    def asked(
        self,
        client: str,
        run: str,
        message: AnyRequest,
        now: float,
        rank: int | None,
        world: int | None,
    ) -> Op | None:
        """An operation begins; None: it is of no kind that is recorded."""
        name = NAMES.get(type(message))
        fence: Fence | None = getattr(message, "fence", None)
        if name is None or (fence is None and not isinstance(message, Join)):
            return None
        key, args = _asked(message)
        op = Op(client, run, name, key, args, now, rank=rank, world=world)
        if fence is not None:
            op.epoch, op.generation = fence.epoch, fence.generation
        self.ops.append(op)
        return op

    def answered(self, op: Op, reply: AnyReply, now: float) -> None:
        """It ended."""
        if isinstance(reply, Error):
            if reply.code in UNKNOWN:
                return
            if reply.code == ErrorCode.WAIT_TIMEOUT and op.op == "get":
                op.end_s, op.ok = now, True  # there was nothing
                return
            op.end_s, op.ok, op.result = now, False, ErrorCode(reply.code).name
            return
        op.end_s, op.ok, op.result = now, True, _result(reply)
        if isinstance(reply, Joined):
            op.epoch, op.generation = reply.fence.epoch, reply.fence.generation
            op.rank, op.world = reply.group_rank, reply.world_size
        elif isinstance(reply, Released):
            op.round = reply.round

    def write(self, path: Path) -> None:
        """Write all operations.

        Raises:
            OSError: the file cannot be written.
        """
        path.write_text("".join(f"{line}\n" for line in lines(self.ops)))


def lines(ops: Iterable[Op]) -> Iterable[str]:
    """The operations as JSON."""
    return (json.dumps(asdict(op), sort_keys=True) for op in ops)


def _asked(message: AnyRequest) -> tuple[str | None, Any]:
    match message:
        case KvSet() | KvAppend():
            return message.key, {"value": _text(message.value)}
        case KvAdd():
            return message.key, {"delta": message.delta}
        case KvCas():
            return message.key, {
                "value": _text(message.value), "revision": message.revision,
                "expected": _text(message.expected),
            }  # fmt: skip
        case KvGet():
            return message.key, {"timeout_s": message.timeout_ms / 1000}
        case KvDelete():
            return message.keys[0], {}
        case Barrier():
            return message.name, {
                "members": list(message.members), "payload": _text(message.payload),
                "timeout_s": message.timeout_ms / 1000,
            }  # fmt: skip
        case NcclGet():
            return message.group, {"rank": message.rank, "nranks": message.nranks}
        case _:
            return None, {}


def _result(reply: AnyReply) -> Any:
    match reply:
        case KvNumber():
            return reply.value
        case KvValue():
            return _text(reply.value)
        case KvSwapped():
            return {
                "swapped": reply.swapped,
                "value": _text(reply.value),
                "revision": reply.revision,
            }
        case Released():
            return [_text(payload) for payload in reply.payloads]
        case Joined():
            return {"digest": reply.digest.hex()}
        case NcclIds():
            return {
                "attempt": reply.attempt,
                "mint": list(reply.mint),
                "ids": [raw.hex() for raw in reply.ids],
            }
        case _:
            return None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
