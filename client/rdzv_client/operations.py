"""Requests and how to read their replies, without any waiting: both client classes use these."""

from collections.abc import Iterable
from typing import Literal, TypeVar

from rdzv_client.errors import InternalServerError, RdzvError, from_reply
from rdzv_client.session import Session
from rdzv_proto import limits
from rdzv_proto.messages import (
    AnyReply,
    CloseRun,
    Error,
    Fence,
    KvAdd,
    KvGet,
    KvMultiGet,
    KvMultiSet,
    KvSet,
    KvWait,
    Leave,
    Message,
)

R = TypeVar("R", bound=Message)
Data = bytes | str
LeaveKind = Literal["finished", "failed", "drained"]

OPERATION_S = 60.0
"""Patience for an operation that the server answers at once; long enough for a reconnect."""

SLACK_S = 5.0
"""The server keeps its own deadlines; the client waits this much longer for the answer."""

GET_S = 300.0
"""Default patience for a key, as in torch's stores."""

DETAIL_CHARS = limits.TEXT_CHARS_MAX // 2
"""The server puts a detail into a sentence of its own, which has the protocol's limit."""


def expect(reply: AnyReply, kind: type[R]) -> R:
    """The reply as the kind it must be.

    Raises:
        RdzvError: the server refused, or answered something else.
    """
    if isinstance(reply, kind):
        return reply
    if isinstance(reply, Error):
        raise from_reply(reply) from None
    raise InternalServerError(f"the server answered with {reply.op} instead of {kind.op}")


def located(error: RdzvError, session: Session) -> RdzvError:
    """The same error, saying which server told it: two servers at two addresses look alike."""
    welcome = session.welcome
    instance = "" if welcome is None else f", instance {welcome.instance}"
    return type(error)(f"{error.message} (server {session.where}{instance})", error.action)


def to_bytes(value: Data) -> bytes:
    """Text is stored as UTF-8."""
    return value.encode() if isinstance(value, str) else bytes(value)


def kv_set(fence: Fence, key: str, value: Data) -> KvSet:
    """Set a key."""
    return KvSet(fence=fence, key=key, value=to_bytes(value))


def kv_get(fence: Fence, key: str, timeout_s: float) -> KvGet:
    """Get a key, waiting for it."""
    return KvGet(fence=fence, key=key, timeout_ms=_ms(timeout_s))


def kv_wait(fence: Fence, keys: Iterable[str], timeout_s: float) -> KvWait:
    """Wait for keys."""
    return KvWait(fence=fence, keys=list(keys), timeout_ms=_ms(timeout_s))


def kv_add(fence: Fence, key: str, delta: int) -> KvAdd:
    """Add to a counter."""
    return KvAdd(fence=fence, key=key, delta=delta)


def kv_multi_get(fence: Fence, keys: Iterable[str], timeout_s: float) -> KvMultiGet:
    """Get keys, waiting for them."""
    return KvMultiGet(fence=fence, keys=list(keys), timeout_ms=_ms(timeout_s))


def kv_multi_set(fence: Fence, keys: Iterable[str], values: Iterable[Data]) -> KvMultiSet:
    """Set keys in one step."""
    return KvMultiSet(fence=fence, keys=list(keys), values=[to_bytes(v) for v in values])


def leave(kind: LeaveKind, detail: str, exit_code: int | None) -> Leave:
    """Leave the run, with a detail for the others to read."""
    return Leave(kind=kind, detail=_printable(detail), exit_code=exit_code)


def close_run(run: str, detail: str) -> CloseRun:
    """End a run, with a detail for its nodes to read."""
    return CloseRun(run=run, detail=_printable(detail))


def _printable(text: str) -> str:
    """One line that fits into a sentence of the server's; control characters become spaces."""
    return "".join(c if c.isprintable() else " " for c in text)[:DETAIL_CHARS]


def _ms(duration_s: float) -> int:
    return max(0, round(duration_s * 1000))
