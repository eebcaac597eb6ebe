"""What a client session tells its shell."""

import enum
from dataclasses import dataclass

from rdzv_proto.messages import AnyReply, NcclRevoked, Notice, Progress, View


class State(enum.Enum):
    """What may be assumed about the session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No connection right now; the lease may still hold."""
    OVER = "over"
    """For good: fenced, refused, given up or closed."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A request has its answer (`Error` included)."""

    request_id: int
    reply: AnyReply


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The session became connected, suspended or over."""

    state: State
    reason: str
    away_s: float = 0.0
    """How long the connection was gone, on becoming connected again; 0 on first contact."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Still no connection; emitted at most every five seconds."""

    elapsed_s: float
    limit_s: float
    reason: str


Event = Answered | StateChanged | Unreachable | View | Progress | Notice | NcclRevoked
