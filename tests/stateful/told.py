"""What a message says, as plain tuples: the common language of the core and of the model.

Texts are for people and are not compared, but for the names in them that people act on: the missing keys of a
wait and the missing ranks of a barrier round.
"""

import re
from typing import Any

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyPush,
    AnyReply,
    Done,
    Error,
    Joined,
    KvMissing,
    KvNumber,
    KvPage,
    KvSwapped,
    KvValue,
    KvValues,
    Notice,
    Progress,
    Released,
    View,
    ViewChanged,
    Welcome,
)

Told = tuple[Any, ...]

_KEY = re.compile(r"'(k\d)'")
_RANK = re.compile(r"rank (\d+)")


def told(message: AnyReply | AnyPush) -> Told | None:
    """None: not compared (how far a forming is, warnings)."""
    match message:
        case Welcome():
            seen = None if message.view is None else view(message.view)
            return ("welcome", message.session, message.resumed, message.lease_ms, seen)
        case ViewChanged():
            return ("view", *view(message.view))
        case Joined():
            return ("joined", message.fence.generation, message.group_rank, message.world_size)
        case Error():
            return error(message)
        case Released():
            return (
                "released", message.round, tuple(message.members), tuple(message.payloads),
                message.committed, tuple(message.against),
            )  # fmt: skip
        case Progress() | Notice():
            return None
        case _:
            return _of_keys(message)


def view(seen: View) -> Told:
    ended = seen.ended
    how = () if ended is None else (ended.kind, ended.node_id, ended.exit_code)
    return (None if seen.fence is None else seen.fence.generation, seen.waiting, how)


def error(message: Error) -> Told:
    code = ErrorCode(message.code)
    text = message.message
    if code is ErrorCode.WAIT_TIMEOUT:
        return ("error", code.name, tuple(_KEY.findall(text)))
    if code is ErrorCode.BARRIER_TIMEOUT and "Missing: " in text:
        missing = text.partition("Missing: ")[2]
        return ("error", code.name, tuple(int(rank) for rank in _RANK.findall(missing)))
    return ("error", code.name)


def _of_keys(message: AnyReply | AnyPush) -> Told:
    match message:
        case Done():
            return ("done", message.revision)
        case KvValue():
            return ("value", message.value, message.revision)
        case KvValues():
            return ("values", tuple(message.values))
        case KvNumber():
            return ("number", message.value, message.revision)
        case KvSwapped():
            return ("swapped", message.swapped, message.value, message.revision)
        case KvMissing():
            return ("missing", tuple(message.keys))
        case KvPage():
            rows = tuple((e.key, e.revision, e.value_bytes, e.value) for e in message.entries)
            return ("page", rows, message.more, message.revision)
        case _:
            return (message.op,)
