"""What a client is told, as a sentence about it."""

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyPush,
    AnyReply,
    Done,
    Error,
    Goodbye,
    Joined,
    KvNumber,
    KvSwapped,
    KvValue,
    NcclIds,
    NcclRevoked,
    Notice,
    Progress,
    Released,
    View,
    ViewChanged,
    Welcome,
)


def sentence(message: AnyReply | AnyPush) -> str | None:
    """None: nothing that anybody would tell (a heartbeat was heard, a session is open)."""
    match message:
        case Joined():
            return (
                f"is rank {message.group_rank} of {message.world_size} in generation "
                f"{message.fence}: {message.reason}"
            )
        case ViewChanged(view=view):
            return _view(view)
        case Welcome(resumed=True):
            return "resumes the session"
        case Error():
            return f"is refused ({ErrorCode(message.code).name}): {message.message}"
        case Goodbye():
            return f"is cut off ({ErrorCode(message.code).name}): {message.message}"
        case Notice():
            return f"is warned: {message.message}"
        case Progress():
            return _progress(message)
        case Released():
            return _released(message)
        case NcclIds() | NcclRevoked():
            return _nccl(message)
        case _:
            return _value(message)


def _view(view: View) -> str:
    if view.ended is not None:
        return f"learns that generation {view.fence} ended ({view.ended.kind}): {view.ended.reason}"
    if view.waiting:
        return f"learns that {view.waiting} could be let in: {view.reason}"
    return "learns that nobody waits any more"


def _progress(message: Progress) -> str:
    if message.standby:
        return f"stands by beside a world of {message.joined}: {message.reason}"
    left = "" if message.left_ms is None else f", {message.left_ms / 1000:.1f} s left"
    names = f" (missing: {', '.join(message.waiting_for)})" if message.waiting_for else ""
    return f"waits{left}: {message.reason}{names}"


def _released(message: Released) -> str:
    text = f"passes round {message.round}"
    if message.payloads:
        given = ", ".join("nothing" if p is None else p.decode() for p in message.payloads)
        text += f" with {given}"
    if message.committed is not None:
        text += (
            ": committed" if message.committed else f": not committed, against: {message.against}"
        )
    return text


def _nccl(message: NcclIds | NcclRevoked) -> str:
    if isinstance(message, NcclRevoked):
        return f"must abort attempt {message.attempt} of {message.group!r}: {message.message}"
    if message.mint:
        return f"must mint the id of attempt {message.attempt}"
    return f"gets the id {message.ids[0][:4].decode()!r}... of attempt {message.attempt}"


def _value(message: AnyReply | AnyPush) -> str | None:
    match message:
        case Done():
            return "is done"
        case KvValue():
            return f"gets {message.value.decode()!r}"
        case KvNumber():
            return f"gets {message.value}"
        case KvSwapped():
            held = "nothing" if message.value is None else repr(message.value.decode())
            return f"has swapped it: {held}" if message.swapped else f"finds {held} instead"
        case _:
            return None
