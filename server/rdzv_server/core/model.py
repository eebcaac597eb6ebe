"""The data of the core: connections, sessions, members, generations, runs. No rules live here.

How they hang together: a *connection* carries at most one *session*; a session outlives its
connections. A node's session that has joined is a *member* of its *run*. A member with a rank in the
live *generation* is a *participant*. All times are running seconds (`clock.py`).
"""

import enum
from collections import deque
from dataclasses import dataclass, field

from rdzv_proto import PROTOCOL_VERSION, limits
from rdzv_proto.auth import EVERYTHING, Grant
from rdzv_proto.messages import (
    Address,
    AnyReply,
    AnyRequest,
    Ended,
    Fence,
    Joined,
    MasterProbe,
    Policy,
)
from rdzv_server.core.burst import Burst
from rdzv_server.core.kv import Namespace
from rdzv_server.core.nccl.ids import Ids
from rdzv_server.core.quorum import Tally
from rdzv_server.core.quota import Quota
from rdzv_server.core.ranks import Seat
from rdzv_server.core.rounds import Barriers
from rdzv_server.core.story import Story
from rdzv_server.core.tcpstore.model import Store


class Role(enum.Enum):
    """What a connection said it is."""

    NODE = "node"
    WORKER = "worker"
    ADMIN = "admin"

    __hash__ = object.__hash__  # `Enum` hashes the name in Python; roles are looked up per request


@dataclass(slots=True)
class Connection:
    """One TCP connection that sent a good preamble."""

    id: int
    peer_host: str
    local_host: str
    role: Role | None = None
    """None until its hello."""
    session: "Session | None" = None
    grant: Grant = EVERYTHING
    """What it may do."""
    names: tuple[str, ...] | None = None
    """Whom its certificate is for; none: it was not asked for one."""
    protocol: int = PROTOCOL_VERSION
    """Version that is spoken on it."""


@dataclass(slots=True)
class Session:
    """A node's or worker's standing with the server; survives its connections."""

    id: int
    role: Role
    run_id: str
    node_id: str
    name: str
    incarnation: bytes
    lease_s: float
    opened_at: float
    client: str = ""
    connection: Connection | None = None
    attempt: int = 0
    heard_at: float = 0.0
    peer_host: str = ""
    local_host: str = ""
    grant: Grant = EVERYTHING
    """Of the last connection."""
    protocol: int = 0
    """Version that was spoken on it; 0: there was none since the server was started."""
    dropped_at: float | None = None
    """Since when there is no connection: the session is under suspicion."""
    recover_until: float = 0.0
    """Until then a closed connection is no sign of death: most of the run's broke together, or the server
    was restarted, and clients that were turned away meanwhile try again only every two seconds."""
    expiring_since: float | None = None
    """When a tick found its time up; one more look at the sockets decides (S33)."""
    token_hash: bytes = b""
    """Of the secret that proves this session; the secret itself is nowhere."""
    worker_hashes: tuple[tuple[int, bytes], ...] = ()
    """Numbers of this node's last generations, and hashes of the tokens with which its workers attach to them."""
    replies: dict[int, AnyReply] = field(default_factory=dict)
    """Recorded replies by request id, until acknowledged (S23)."""
    transient: set[int] = field(default_factory=set)
    """Of these, the ones that are not stored: assignments, which are made anew, and decisions of barriers, which are
    stored with the barrier."""
    acknowledged: int = 0
    parked: dict[int, type[AnyRequest]] = field(default_factory=dict)
    """Ids of requests that wait for their answer, and what they are."""
    member: "Member | None" = None
    fence: Fence | None = None
    """The generation a worker is attached to."""
    rank: int = 0
    """Global rank of a worker."""

    @property
    def suspect(self) -> bool:
        """Without a connection right now."""
        return self.dropped_at is not None

    def record(self, request_id: int, reply: AnyReply, *, apart: bool = False) -> None:
        """Keep a reply for a retry; with `apart` it is stored somewhere else, if at all."""
        self.replies[request_id] = reply
        if apart or type(reply) is Joined:
            self.transient.add(request_id)


class Kind(enum.IntEnum):
    """What a member is to the quorum decision; every member is exactly one of these."""

    READY_PRIOR = 0
    READY_NEW = 1
    AWAITED_PRIOR = 2
    AWAITED_NEW = 3
    ASIDE = 4
    """Finished, or its rank hint is in conflict: not counted."""


@dataclass(slots=True)
class PendingJoin:
    """A join that waits for its generation."""

    request_id: int
    since: float
    address: Address


@dataclass(slots=True, eq=False)
class Member:
    """A node with a live session in a run."""

    session: Session
    order: int
    """Arrival in the run; smaller came earlier."""
    join: PendingJoin | None = None
    seat: int | None = None
    """Group rank in the run's last generation."""
    hint: int | None = None
    """Wished order among the nodes."""
    rival: "Member | None" = None
    """A suspect that holds the same hint; the join waits until that is settled."""
    finished: bool = False
    kind: Kind = Kind.ASIDE

    @property
    def node_id(self) -> str:
        """Of its session."""
        return self.session.node_id

    @property
    def name(self) -> str:
        """Of its session."""
        return self.session.name

    @property
    def ready(self) -> bool:
        """Could be in a world formed now."""
        return self.kind in (Kind.READY_PRIOR, Kind.READY_NEW)


@dataclass(frozen=True, slots=True)
class Participant:
    """A row of a generation's member table. Never changes once the generation has formed."""

    node_id: str
    name: str
    session_id: int
    incarnation: bytes
    address: Address


@dataclass(slots=True)
class Generation:
    """One agreed membership."""

    fence: Fence
    participants: tuple[Participant, ...]
    """By group rank."""
    rank_of: dict[int, int]
    """Session id to group rank."""
    digest: bytes
    reason: str
    master: Address
    master_reason: str
    formed_at: float
    kv: Namespace
    barriers: Barriers = field(default_factory=Barriers)
    seats: tuple[Seat, ...] = ()
    """Who sat where, for the next world's ranks."""
    store: Store | None = None
    """The workers' store, if the server serves it."""
    served: bool = False
    """It had one when it formed; the store itself ends with the server."""
    finished: set[int] = field(default_factory=set)
    """Session ids of participants whose work is done."""
    probes: dict[int, MasterProbe] = field(default_factory=dict)
    """By session id: the last word of each node on MASTER_ADDR and MASTER_PORT."""
    worker_pids: dict[int, dict[int, int]] = field(default_factory=dict)
    """By session id: process id to global rank of the node's workers."""
    worker_world: int = 0
    """Number of workers of all nodes together; 0: no node has told."""
    ended: Ended | None = None
    ids: Ids = field(default_factory=Ids)
    """Unique ids of its communicators."""

    @property
    def live(self) -> bool:
        """Not ended."""
        return self.ended is None

    @property
    def usable(self) -> bool:
        """Its KV still answers: live, or ended in success (agents meet once more at the exit)."""
        return self.ended is None or self.ended.kind == "finished"


class Phase(enum.Enum):
    """Where a run is."""

    FORMING = "forming"
    LAST_CALL = "last_call"
    LIVE = "live"
    CLOSED = "closed"
    ENDED = "ended"


@dataclass(slots=True)
class Run:
    """One training job's rendezvous."""

    id: str
    number: int
    """Generation number used last; carried over from earlier lives of the same id."""
    phase: Phase = Phase.ENDED
    phase_at: float = 0.0
    policy: Policy | None = None
    policy_from: str = ""
    """Who fixed the policy: node id, for the text of a refusal."""
    members: dict[str, Member] = field(default_factory=dict)
    workers: dict[int, Session] = field(default_factory=dict)
    joins: dict[str, Member] = field(default_factory=dict)
    """Members whose join waits, in order of arrival."""
    tally: list[int] = field(default_factory=lambda: [0] * len(Kind))
    """Members by kind; kept in step by `roster.recount`."""
    hints: dict[int, Member] = field(default_factory=dict)
    """Who holds which rank hint."""
    rivals: dict[str, Member] = field(default_factory=dict)
    """Members whose rank hint a suspect holds."""
    expected: dict[str, None] = field(default_factory=dict)
    """Names or node ids that the nodes said to wait for."""
    generation: Generation | None = None
    """The live generation, or the last one."""
    store: Store | None = None
    """The workers' store of the generation that forms next."""
    last_ended: Ended | None = None
    """How the last generation ended; stays while the next one lives."""
    formed: int = 0
    """Generations of this life of the run."""
    forming_at: float = 0.0
    min_met_at: float | None = None
    seen: dict[str, None] = field(default_factory=dict)
    """Node ids met in this life; a new one renews the patience of the others' joins."""
    renewed_at: float = 0.0
    renewals: int = 0
    departed: list[str] = field(default_factory=list)
    """Sentences about nodes of the last generation that cannot come back (failed or finished)."""
    departed_order: int = 0
    """Members that arrived up to here share the fate of the run if too few are left."""
    burst: Burst = field(default_factory=Burst)
    """Connections that broke within the last moments."""
    newcomer_at: float | None = None
    """When the first newcomer to the live generation came."""
    newcomer_last_at: float = 0.0
    announced: int = 0
    """Newcomers the participants were told of."""
    scale_ups: deque[float] = field(default_factory=deque)
    arrivals: int = 0
    reason: str = ""
    """Of the last decision, or how the run ended."""
    reason_at: float = 0.0
    progress_at: float | None = None
    progress_told: object = None
    warned: set[str] = field(default_factory=set)
    story: Story = field(default_factory=Story)
    quota: Quota = field(
        default_factory=lambda: Quota(limits.KV_BYTES_PER_RUN_MAX, limits.KV_KEYS_PER_RUN_MAX)
    )
    """What all key spaces of the run may hold together."""
    kv: Namespace = field(init=False)
    """The keys of the run itself: they outlive its generations, and end with its life."""
    kv_over: bool = False
    """A life of the run ended: its keys can still be read, and the next write or join clears them."""
    barriers: Barriers = field(default_factory=Barriers)
    """Rounds of any so many clients."""
    used_at: float = 0.0
    """When its keys or barriers were last asked for."""

    def __post_init__(self) -> None:
        self.kv = Namespace(self.quota)

    @property
    def counts(self) -> Tally:
        """For the quorum decision."""
        return Tally(*self.tally[: Kind.ASIDE])

    def worker(self, rank: int, fence: Fence | None) -> Session | None:
        """The training process with a global rank of a generation, if it ever attached."""
        found = (w for w in self.workers.values() if w.rank == rank and w.fence == fence)
        return next(found, None)

    @property
    def awaited(self) -> bool:
        """Somebody waits for a key or at a barrier: of the run itself, or of a generation that ended well."""
        generation = self.generation
        inside = generation is not None and (
            generation.kv.waiters() or generation.barriers.waiting()
        )
        return bool(self.kv.waiters() or self.barriers.waiting() or inside)

    @property
    def forming(self) -> bool:
        """Joins are being collected."""
        return self.phase in (Phase.FORMING, Phase.LAST_CALL)

    @property
    def live(self) -> Generation | None:
        """The live generation, if there is one."""
        generation = self.generation
        return generation if generation is not None and generation.ended is None else None

    @property
    def fence(self) -> Fence | None:
        """Of the live generation, or of the last one."""
        return None if self.generation is None else self.generation.fence

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Places of the last generation of this life."""
        return self.generation.seats if self.generation is not None and self.formed else ()
