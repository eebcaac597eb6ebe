"""The data of the stores that the server serves to torch's TCPStore clients. No rules live here."""

import enum
from dataclasses import dataclass, field

from rdzv_proto.messages import Fence
from rdzv_proto.tcpstore import Parser
from rdzv_server.core.quota import Quota
from rdzv_server.core.tcpstore.exchanges import Exchanges
from rdzv_server.core.tcpstore.space import KeySpace

SHARED = 0
"""Number of the one store that is not of a run: plain TCPStore clients at the main port."""


class Stage(enum.Enum):
    """How far a store's listener is."""

    OPENING = "opening"
    """The shell was asked for it and has not answered."""
    OPEN = "open"
    FAILED = "failed"
    """Asked for again at `retry_at`."""
    CLOSING = "closing"
    """Its generation is over: no new clients, and the present ones go soon."""


@dataclass(slots=True, eq=False)
class StoreClient:
    """One connection to a store."""

    conn: int
    peer_host: str
    store: "Store"
    parser: Parser = field(default_factory=Parser)
    held_bytes: int = 0
    """Of an incomplete request, counted against the quota."""
    pid: int | None = None
    """Of the worker, as its first ping tells."""
    rank: int | None = None
    """Global rank, if its keys told."""

    def __repr__(self) -> str:
        return f"StoreClient({self.conn}, {self.peer_host})"


@dataclass(slots=True, eq=False)
class Store:
    """One listener with its key space: of one generation, and of no other."""

    listener: int
    run_id: str
    keys: KeySpace[StoreClient]
    quota: Quota
    """Of its run."""
    stage: Stage = Stage.OPENING
    port: int = 0
    reason: str = ""
    """Why it could not be opened."""
    retry_at: float = 0.0
    fence: Fence | None = None
    """Of the generation that has it."""
    clients: dict[int, StoreClient] = field(default_factory=dict)
    accepted: int = 0
    """Clients so far."""
    hosts: frozenset[str] = frozenset()
    """Addresses that its nodes had when it was last looked (where a token is in force)."""
    exchanges: Exchanges[StoreClient] = field(default_factory=Exchanges)
    refusals: int = 0
    """Not reported yet."""
    refusal_told_at: float | None = None
