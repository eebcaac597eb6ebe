"""What a member knows of a generation, shared by both client classes."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from rdzv_client.operations import BarrierKind
from rdzv_proto.messages import Address, Ended, Fence, Joined, MemberStatus, View
from rdzv_proto.text import visible

log = logging.getLogger("rdzv")


class EndedFlag:
    """Is set when the generation ends, with the one reason for it.

    Waiting blocks the calling thread; in asyncio code use `AsyncGeneration.wait_ended`.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._ended: Ended | None = None
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def is_set(self) -> bool:
        """True once the generation has ended."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it has ended, or for `timeout` seconds; True if it has."""
        return self._event.wait(timeout)

    @property
    def kind(self) -> str:
        """`lost`, `failed`, `scale_up`, …; empty while the generation lives."""
        return "" if self._ended is None else self._ended.kind

    @property
    def reason(self) -> str:
        """One sentence: who, why, when; empty while the generation lives."""
        return "" if self._ended is None else self._ended.reason

    def set(self, ended: Ended) -> None:
        """The library learned of the end; the first reason stays."""
        with self._lock:
            if self._ended is not None:
                return
            self._ended = ended
            self._event.set()
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            _call(listener)

    def when_set(self, listener: Callable[[], None]) -> None:
        """Call once it is set, on whichever thread sets it; at once if it is. What a listener
        raises is logged: it must not end the thread that keeps this node's lease."""
        with self._lock:
            if self._ended is None:
                self._listeners.append(listener)
                return
        _call(listener)


def _call(listener: Callable[[], None]) -> None:
    try:
        listener()
    except Exception:
        log.exception("rdzv: a listener for the end of a generation failed")


@dataclass(frozen=True)
class Member:
    """A participant of a generation."""

    node_id: str
    name: str
    rank: int
    """Group rank."""
    address: Address


@dataclass
class GenerationState:
    """One agreed membership, as one of its members sees it."""

    run: str
    rank: int
    """Group rank of a node; global rank of a worker."""
    world_size: int
    """Nodes for a node; workers for a worker."""
    fence: Fence
    reason: str = ""
    """The quorum decision in one sentence."""
    digest: bytes = b""
    """Of the member table: equal on all members."""
    master: Address = field(default_factory=Address)
    """Address of group rank 0."""
    master_reason: str = ""
    worker_token: bytes = field(default=b"", repr=False)
    store_port: int = 0
    """Where the server serves the workers' store, on the address it was reached at; 0: it does not."""
    ended: EndedFlag = field(default_factory=EndedFlag, repr=False)
    barrier_kind: BarrierKind = "nodes"
    """Whom this member meets at barriers: other nodes, or other workers."""
    waiting: int = 0
    """Nodes that would be admitted if the participants rejoined now; positive after an end."""

    @property
    def number(self) -> int:
        """Counts the run's generations."""
        return self.fence.generation

    def see(self, view: View) -> None:
        """Take a view: of this generation, or of a later one (then this one has ended)."""
        if view.fence is None or view.fence < self.fence:
            return
        if view.fence > self.fence:
            self.waiting = max(1, self.waiting)
            self.ended.set(Ended(kind="superseded", reason=f"generation {view.fence} has formed"))
            return
        self.waiting = view.waiting
        if view.ended is not None:
            reason = visible(view.ended.reason)
            self.ended.set(replace(view.ended, reason=reason))


def fields_of(run: str, joined: Joined) -> dict[str, object]:
    """The constructor arguments that an assignment gives; texts of the server are escaped, since
    they go into logs."""
    return {
        "run": run,
        "rank": joined.group_rank,
        "world_size": joined.world_size,
        "fence": joined.fence,
        "reason": visible(joined.reason),
        "digest": joined.digest,
        "master": joined.master,
        "master_reason": visible(joined.master_reason),
        "worker_token": joined.worker_token,
        "store_port": joined.store_port,
    }


def participants(rows: list[MemberStatus]) -> list[Member]:
    """The rows of a member page that have a rank."""
    return [
        Member(row.node_id, row.name, row.group_rank, row.address)
        for row in rows
        if row.group_rank is not None
    ]
