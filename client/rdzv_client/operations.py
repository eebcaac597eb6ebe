"""Requests and how to read their replies, without any waiting: both client classes use these."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeVar

from rdzv_client import names
from rdzv_client.errors import InternalServerError, RdzvError, RequestTimeout, from_reply
from rdzv_client.session import Session
from rdzv_proto import limits
from rdzv_proto.messages import (
    AnyReply,
    AnyRequest,
    Barrier,
    CloseRun,
    Error,
    Fence,
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
    KvPage,
    KvSet,
    KvSwapped,
    KvWait,
    Leave,
    Message,
    Released,
)

R = TypeVar("R", bound=Message)
Data = bytes | str
LeaveKind = Literal["finished", "failed", "drained"]

BarrierKind = Literal["nodes", "workers", "count"]


class KeyEntry(NamedTuple):
    """One key."""

    key: str
    revision: int
    """Number of the change that gave it its value."""
    value_bytes: int
    value: bytes | None = None
    """If it was asked for."""


class Swapped(NamedTuple):
    """What a compare-and-set did, and how the key is now."""

    swapped: bool
    value: bytes | None
    """None: the key is not there."""
    revision: int


class Meeting(NamedTuple):
    """A barrier round that was released: the same for all of its members."""

    round: int
    """From 1, counted by the server for each name."""
    payloads: list[bytes | None]
    """One for each member, by rank; empty if nobody gave one."""
    committed: bool | None
    """True: all voted yes. False: somebody did not. None: nobody voted."""
    against: list[int]
    """Ranks that did not vote yes, where anybody voted."""


OPERATION_S = 60.0
"""Patience for an operation that the server answers at once; long enough for a reconnect."""

SLACK_S = 5.0
"""The server keeps its own deadlines; the client waits this much longer for the answer."""

GET_S = 300.0
"""Default patience for a key, as in torch's stores."""

BARRIER_S = 60.0
"""Default patience at a barrier, from its first member's arrival."""

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


def unanswered(message: AnyRequest, session: Session, timeout_s: float | None) -> RequestTimeout:
    """The error of a request whose answer did not come within `timeout_s`."""
    return RequestTimeout(f"{message.op}: no answer from {session.where} for {timeout_s:g} s")


def to_bytes(value: Data) -> bytes:
    """Text is stored as UTF-8."""
    return value.encode() if isinstance(value, str) else bytes(value)


def kv_set(fence: Fence | None, key: str, value: Data) -> KvSet:
    """Set a key."""
    return KvSet(fence=fence, key=_key(key), value=to_bytes(value))


def kv_get(fence: Fence | None, key: str, timeout_s: float) -> KvGet:
    """Get a key, waiting for it."""
    return KvGet(fence=fence, key=_key(key), timeout_ms=_ms(timeout_s))


def kv_wait(fence: Fence | None, keys: Iterable[str], timeout_s: float) -> KvWait:
    """Wait for keys."""
    return KvWait(fence=fence, keys=_keys(keys), timeout_ms=_ms(timeout_s))


def kv_add(fence: Fence | None, key: str, delta: int) -> KvAdd:
    """Add to a counter."""
    if not -(1 << 63) <= delta < 1 << 63:
        raise ValueError(f"a counter has 64 bits; {delta} does not fit")
    return KvAdd(fence=fence, key=_key(key), delta=delta)


def kv_multi_get(fence: Fence | None, keys: Iterable[str], timeout_s: float) -> KvMultiGet:
    """Get keys, waiting for them."""
    return KvMultiGet(fence=fence, keys=_keys(keys), timeout_ms=_ms(timeout_s))


def kv_multi_set(fence: Fence | None, keys: Iterable[str], values: Iterable[Data]) -> KvMultiSet:
    """Set keys in one step."""
    names, new = _keys(keys), [to_bytes(value) for value in values]
    if len(names) != len(new):
        raise ValueError(f"{len(names)} keys and {len(new)} values")
    return KvMultiSet(fence=fence, keys=names, values=new)


def kv_check(fence: Fence | None, keys: Iterable[str]) -> KvCheck:
    """Ask which keys are missing."""
    return KvCheck(fence=fence, keys=_keys(keys))


def kv_cas(
    fence: Fence | None, key: str, expected: Data | None, value: Data, revision: int | None
) -> KvCas:
    """Set a key if it is as expected."""
    before = None if expected is None else to_bytes(expected)
    new = to_bytes(value)
    return KvCas(fence=fence, key=_key(key), expected=before, value=new, revision=revision)


def kv_append(fence: Fence | None, key: str, value: Data) -> KvAppend:
    """Append to a key."""
    return KvAppend(fence=fence, key=_key(key), value=to_bytes(value))


def kv_delete(fence: Fence | None, keys: Iterable[str]) -> KvDelete:
    """Delete keys."""
    return KvDelete(fence=fence, keys=_keys(keys))


def kv_count(fence: Fence | None, prefix: str) -> KvCount:
    """Count keys."""
    return KvCount(fence=fence, prefix=_short(prefix, "prefix"))


def kv_list(fence: Fence | None, prefix: str, after: str, values: bool) -> KvList:
    """One page of keys."""
    return KvList(fence=fence, prefix=_short(prefix, "prefix"), after=after, values=values)


def entries(page: KvPage) -> "list[KeyEntry]":
    """The rows of a page."""
    return [KeyEntry(e.key, e.revision, e.value_bytes, e.value) for e in page.entries]


def swapped(reply: KvSwapped) -> Swapped:
    """What a compare-and-set did."""
    return Swapped(reply.swapped, reply.value, reply.revision)


def barrier(
    fence: Fence | None,
    name: str,
    of: BarrierKind,
    *,
    members: Iterable[int] | None,
    count: int,
    payload: Data | None,
    vote: bool | None,
    round: int | None,
    timeout_s: float,
) -> Barrier:
    """Meet at a barrier.

    Raises:
        ValueError: an argument is wrong; it is named.
    """
    ranks = [] if members is None else sorted(set(members))
    if members is not None and not ranks:
        raise ValueError("members is empty; leave it out where all take part")
    if of == "count" and count < 1:
        raise ValueError(f"count is {count}; nobody would meet")
    for number, what in ((count, "count"), *((rank, "rank") for rank in ranks)):
        if not 0 <= number <= limits.RANKS_MAX:
            raise ValueError(f"{what} {number} is not between 0 and {limits.RANKS_MAX}")
    return Barrier(
        fence=fence,
        name=names.checked(name, "barrier name"),
        of=of,
        members=ranks,
        count=count,
        round=round,
        payload=None if payload is None else to_bytes(payload),
        vote=vote,
        timeout_ms=_ms(timeout_s),
    )


def meeting(reply: Released) -> Meeting:
    """A barrier round that was released."""
    return Meeting(reply.round, reply.payloads, reply.committed, reply.against)


def leave(kind: LeaveKind, detail: str, exit_code: int | None) -> Leave:
    """Leave the run, with a detail for the others to read."""
    return Leave(kind=kind, detail=printable(detail), exit_code=exit_code)


def close_run(run: str, detail: str) -> CloseRun:
    """End a run, with a detail for its nodes to read."""
    return CloseRun(run=run, detail=printable(detail))


def printable(text: str) -> str:
    """One line that fits into a sentence of the server's; control characters become spaces."""
    return "".join(c if c.isprintable() else " " for c in text)[:DETAIL_CHARS]


def _key(key: str) -> str:
    if not key:
        raise ValueError("a key must not be empty")
    return _short(key, "key")


def _keys(keys: Iterable[str]) -> list[str]:
    names = [_key(key) for key in keys]
    if not 0 < len(names) <= limits.KEYS_PER_REQUEST_MAX:
        raise ValueError(
            f"{len(names)} keys at once; it must be 1 to {limits.KEYS_PER_REQUEST_MAX}"
        )
    return names


def _short(text: str, what: str) -> str:
    if len(text) > limits.KEY_CHARS_MAX:
        raise ValueError(
            f"the {what} {text[:32]!r}… has {len(text)} characters; the limit is "
            f"{limits.KEY_CHARS_MAX}"
        )
    return text


def _ms(duration_s: float) -> int:
    return max(0, round(min(duration_s * 1000, limits.DURATION_MS_MAX)))
