"""What goes into the core and what comes out of it. All of it: there is no other way in or out.

The shell turns bytes into events and executes effects in the order given. It never looks inside.
"""

from dataclasses import dataclass, field
from typing import Literal

from rdzv_proto.auth import Grant
from rdzv_proto.messages import AnyPush, AnyReply, AnyRequest, Goodbye


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection was accepted and sent a good preamble."""

    conn: int
    """Given by the shell, never reused."""
    peer_host: str = ""
    """Address of the other end."""
    local_host: str = ""
    """The server's own address on this connection."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """Both sides of a connection speak this version of the protocol, before its hello is told. For status."""

    conn: int
    version: int


@dataclass(frozen=True, slots=True)
class Identified:
    """The other end of a connection proved who it is, before its hello is told. Without this event it
    may do everything."""

    conn: int
    grant: Grant
    """What its token allows."""
    names: tuple[str, ...] | None = None
    """Whom its certificate is for; none: it was not asked for one."""


@dataclass(frozen=True, slots=True)
class Denied:
    """Somebody could not prove who he is, and was turned away."""


@dataclass(frozen=True, slots=True)
class Alive:
    """A peer takes what it is sent, though none of its requests is read meanwhile."""

    conn: int


@dataclass(frozen=True, slots=True)
class StorageTrouble:
    """Nothing can be stored, for this reason; or it can be again (an empty one)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Behind:
    """Connections wait to be accepted, or none does any more: who is not back yet may be among them."""

    behind: bool


@dataclass(frozen=True, slots=True)
class Received:
    """A request arrived."""

    conn: int
    request_id: int
    message: AnyRequest


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection is gone: end of stream, reset, or cut by the shell."""

    conn: int
    reason: str = "connection closed"


@dataclass(frozen=True, slots=True)
class ListenerOpened:
    """The port that was asked for is there."""

    listener: int
    port: int


@dataclass(frozen=True, slots=True)
class ListenerFailed:
    """The port that was asked for could not be had."""

    listener: int
    reason: str
    """For people."""


@dataclass(frozen=True, slots=True)
class StoreOpened:
    """A TCPStore client connected to a store's port, or said its hello at the main port."""

    conn: int
    """Given by the shell, never reused; one row of numbers with the other connections."""
    listener: int
    """0: the main port."""
    peer_host: str = ""


@dataclass(frozen=True, slots=True)
class StoreReceived:
    """Bytes of a TCPStore client."""

    conn: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoreLost:
    """A TCPStore client is gone."""

    conn: int


Event = (
    Opened | Agreed | Identified | Denied | Alive | Behind | StorageTrouble | Received | Lost
    | ListenerOpened | ListenerFailed | StoreOpened | StoreReceived | StoreLost
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Send:
    """Send one message on one connection."""

    conn: int
    request_id: int
    message: AnyReply | AnyPush


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send the same push on many connections; it is encoded once."""

    conns: tuple[int, ...]
    message: AnyPush


@dataclass(frozen=True, slots=True)
class Release:
    """Send the same reply to many requests; it is encoded once and framed with each request's id."""

    to: tuple[tuple[int, int], ...]
    """(connection, request id), in the order in which they are written."""
    message: AnyReply


@dataclass(frozen=True, slots=True)
class Close:
    """Cut a connection. With a goodbye, that is sent first."""

    conn: int
    goodbye: Goodbye | None = None


@dataclass(frozen=True, slots=True)
class OpenListener:
    """Listen on a port for a workers' store; answered at once by `ListenerOpened` or
    `ListenerFailed`."""

    listener: int
    """Given by the core, never reused; after a failure it is asked for again."""


@dataclass(frozen=True, slots=True)
class CloseListener:
    """Take no new connections there; the present ones stay."""

    listener: int


@dataclass(frozen=True, slots=True)
class StoreSend:
    """Answer a TCPStore client."""

    conn: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoreClose:
    """Close a TCPStore client's connection, after what it was sent."""

    conn: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Records that must be safe before any later effect is done (S26)."""

    changes: dict[bytes, bytes | None] = field(repr=False)
    """By key; None: it is gone."""


Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Report:
    """Something the operator should read: one line in the log."""

    event: str
    level: Level = "info"
    run: str = "-"
    node: str = "-"
    fence: str = "-"
    fields: dict[str, str | int | float] = field(default_factory=dict)


Effect = (
    Persist | Send | Broadcast | Release | Close | Report | OpenListener | CloseListener | StoreSend
    | StoreClose
)  # fmt: skip
