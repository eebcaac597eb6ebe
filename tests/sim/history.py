"""What the clients of one simulated history asked and were told, for checkers that know nothing of the server.

Its operations are those of `tests.sim.check`, in order of their starts; times are virtual seconds. Epochs are numbered
in their order, from 1: the clock on the wall, which they are made of, may have been set back. Operations on keys of a
run have the number of the life of these keys (`lives`) in the place of an epoch.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rdzv_proto.errors import ErrorCode, info
from rdzv_proto.messages import (
    AnyReply,
    AnyRequest,
    Barrier,
    Done,
    Error,
    Fence,
    Join,
    Joined,
    KvAdd,
    KvAppend,
    KvCas,
    KvDelete,
    KvGet,
    KvMultiGet,
    KvMultiSet,
    KvNumber,
    KvSet,
    KvSwapped,
    KvValue,
    KvValues,
    NcclGet,
    NcclIds,
    NcclPut,
    Released,
)
from tests.sim.check.entries import ON_KEYS, Entry
from tests.sim.lives import Lives

Fields = dict[str, Any]

NAMES: dict[type[AnyRequest], str] = {
    KvSet: "put", KvMultiSet: "put", KvGet: "get", KvMultiGet: "get", KvAdd: "add", KvAppend: "append", KvCas: "cas",
    KvDelete: "delete", Join: "join", Barrier: "barrier", NcclGet: "id", NcclPut: "id",
}  # fmt: skip
"""Of the requests that are recorded."""

ROUND = re.compile(r", round (\d+)")
"""In what a member is told when a round fails."""


class Recorder:
    """The operations of one history, as they begin and end.

    Args:
        epochs: of the server, in their order; they may become more.
        lives: of the keys of runs.
    """

    def __init__(self, epochs: Sequence[int], lives: Lives) -> None:
        self._entries: list[Entry] = []
        self._epochs, self._lives = epochs, lives

    def history(self) -> list[Entry]:
        """All operations. A write to the keys of a run whose outcome is not known may have been done in the life in which
        it began, or in any that came after it; it is in each of them."""
        late = [
            replace(one, epoch=number)
            for one in self._entries
            if one.generation is None and not one.known and one.op in ON_KEYS - {"get"}
            for number in self._lives.after(one.run, one.epoch or 0)
        ]
        return (
            sorted([*self._entries, *late], key=lambda one: one.start_s) if late else self._entries
        )

    def asked(
        self, client: str, run: str, message: AnyRequest, now: float, mine: Joined | None
    ) -> list[Entry]:
        """A request is made: its operations, one for each key; none if it is of no kind that is recorded.

        Args:
            client: unlike any other process of the history, also of one with the same node id.
            mine: the place of this process, if it has one.
        """
        name = NAMES.get(type(message))
        if name is None:
            return []
        fence: Fence | None = getattr(message, "fence", None)
        if fence is None and name != "join" and name not in ON_KEYS:
            return []
        begun = [
            Entry(client, run, name, key, args, now, math.inf, None, {})
            for key, args in _asked(message)
        ]
        if name in ON_KEYS and fence is None:
            number, over = self._lives.of(run)
            if over and name == "get":
                return []  # of no life, and of the last one still, until something happens
            for one in begun:
                one.epoch = number
        elif fence is not None:
            place = None if mine is None or mine.fence != fence else mine
            for one in begun:
                self._put(one, fence, place)
        self._entries += begun
        return begun

    def attaches(self, client: str, run: str, agent: str, mine: Joined, now: float) -> Entry:
        """A training process that its agent started goes to its place."""
        begun = Entry(client, run, "attach", "", {"agent": agent}, now, math.inf, None, {})
        self._put(begun, mine.fence, mine)
        self._entries.append(begun)
        return begun

    def attached(self, begun: Entry, now: float) -> None:
        """The server knows it there."""
        begun.end_s, begun.ok = now, True

    def answered(self, begun: list[Entry], reply: AnyReply, now: float) -> None:
        """A request was answered."""
        if isinstance(reply, Error) and not info(reply.code).definite:
            return
        if begun and not self._in_its_life(begun[0], refused=isinstance(reply, Error)):
            return
        for index, one in enumerate(begun):
            one.end_s = now
            if not isinstance(reply, Error):
                one.ok, one.result = True, _result(one.op, index, len(begun), reply)
            elif reply.code == ErrorCode.WAIT_TIMEOUT and one.op == "get" and len(begun) == 1:
                one.ok, one.result = True, {"value": None}  # there was nothing
            else:
                one.ok, one.result = False, {"error": ErrorCode(reply.code).name}
                if one.op == "barrier" and (found := ROUND.search(reply.message)) is not None:
                    one.round = int(found[1])
            if isinstance(reply, Joined):
                self._put(one, reply.fence, reply)
            elif isinstance(reply, Released):
                one.round = reply.round

    def _in_its_life(self, one: Entry, *, refused: bool) -> bool:
        """If it was done, it was in the life in which it began."""
        if one.generation is not None or one.op not in ON_KEYS or (refused and one.op != "get"):
            return True
        number, over = self._lives.of(one.run)
        return number == one.epoch and not (over and one.op == "get")

    def _put(self, one: Entry, fence: Fence, place: Joined | None) -> None:
        one.epoch, one.generation = self._epochs.index(fence.epoch) + 1, fence.generation
        if place is not None:
            one.rank, one.world = place.group_rank, place.world_size


def _asked(message: AnyRequest) -> list[tuple[str, Fields]]:
    """Keys and arguments of its operations."""
    match message:
        case KvSet() | KvAppend():
            return [(message.key, {"value": _text(message.value)})]
        case KvMultiSet():
            values = map(_text, message.values)
            return [(k, {"value": v}) for k, v in zip(message.keys, values, strict=True)]
        case KvAdd():
            return [(message.key, {"delta": message.delta})]
        case KvCas():
            args: Fields = {"value": _text(message.value)}
            if message.revision is not None:
                args["revision"] = message.revision
            else:
                args["expected"] = _text(message.expected)
            return [(message.key, args)]
        case KvGet():
            return [(message.key, {})]
        case KvMultiGet() | KvDelete():
            return [(key, {}) for key in message.keys]
        case Barrier():
            args = {"payload": _text(message.payload)}
            if message.members:
                args["members"] = list(message.members)
            return [(message.name, args)]
        case NcclGet():
            return [(message.group, {})]
        case NcclPut():
            return [(message.group, {"minted": _fingerprint(message.id)})]
        case _:
            return [("", {})]


def _result(op: str, index: int, count: int, reply: AnyReply) -> Fields:
    """What one operation of a request was told.

    Args:
        index: of the operation in its request.
        count: operations of the request.
    """
    match reply:
        case Done() if op == "put" and count == 1:
            return {"revision": reply.revision}
        case KvNumber() if op == "delete":
            return {"deleted": reply.value, "revision": reply.revision} if count == 1 else {}
        case KvNumber():
            name = "length" if op == "append" else "value"
            return {name: reply.value, "revision": reply.revision}
        case KvValue():
            return {"value": _text(reply.value), "revision": reply.revision}
        case KvValues():
            return {"value": _text(reply.values[index])}
        case KvSwapped():
            value = _text(reply.value)
            return {"swapped": reply.swapped, "value": value, "revision": reply.revision}
        case Released():
            return {"payloads": [_text(payload) for payload in reply.payloads]}
        case Joined():
            return {"digest": reply.digest.hex()}
        case NcclIds() if reply.ids:
            return {"attempt": reply.attempt, "id": _fingerprint(b"".join(reply.ids))}
        case _:
            return {}


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _fingerprint(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]
