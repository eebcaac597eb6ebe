"""Of the model: what there is, and what was said. No rules."""

from dataclasses import dataclass, field
from typing import Any

from rdzv_proto.messages import Policy
from tests.stateful.model_barriers import Barrier
from tests.stateful.model_keys import NoError, Space
from tests.stateful.model_worlds import Member
from tests.stateful.told import Told


@dataclass
class Conn:
    opened: float
    role: str = ""
    session: int | None = None


@dataclass
class Session:
    id: int
    role: str
    run: str
    node: str
    incarnation: bytes
    lease: float
    conn: int | None = None
    attempt: int = 0
    heard: float = 0.0
    gone_since: float | None = None
    """When its connection closed."""
    spared_until: float = 0.0
    """Most of the run's connections closed with it."""
    marked: float | None = None
    """When its time was found to be up; it gets one more look."""
    answers: dict[int, Told] = field(default_factory=dict)
    """By request, until the client says that it has them."""
    acknowledged: int = 0
    waiting: list[int] = field(default_factory=list)
    generation: int = 0
    """A worker's."""
    rank: int = 0


@dataclass
class Generation:
    number: int
    nodes: list[str]
    """By rank."""
    ranks: dict[int, int]
    """By session."""
    formed: float
    finished: list[int] = field(default_factory=list)
    ended: Told = ()
    """(kind, node, exit code)."""
    keys: Space = field(default_factory=Space)
    barriers: dict[str, Barrier] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Its keys and barriers answer: agents meet once more after a good end."""
        return not self.ended or self.ended[0] == "finished"


@dataclass
class Burst:
    """Connections of a run that closed together."""

    began: float = float("-inf")
    last: float = float("-inf")
    away: list[int] = field(default_factory=list)
    spared: list[int] = field(default_factory=list)
    """Of these, whom only silence can end now."""

    def back(self, session: int) -> None:
        """It has a connection again, or is over; if it breaks once more in this moment, that counts by itself."""
        for names in (self.away, self.spared):
            if session in names:
                names.remove(session)


@dataclass
class Run:
    policy: Policy | None = None
    """None: it only has keys or barriers of its own."""
    over: bool = True
    """No life now: it has ended, or none began."""
    closed: bool = False
    since: float = 0.0
    """When it came to rest."""
    members: dict[str, Member] = field(default_factory=dict)
    joining: list[str] = field(default_factory=list)
    """Nodes whose join waits, in order of arrival."""
    rivals: list[str] = field(default_factory=list)
    arrivals: int = 0
    generation: Generation | None = None
    last_end: Told = ()
    formed: int = 0
    """Worlds of this life."""
    enough_since: float | None = None
    renewed: float = 0.0
    renewals: int = 0
    met: list[str] = field(default_factory=list)
    cannot_return: int | None = None
    """Somebody failed or finished; members who had arrived by then share the run's fate."""
    burst: Burst = field(default_factory=Burst)
    newcomer_first: float | None = None
    newcomer_last: float = 0.0
    announced: int = 0
    scale_ups: list[float] = field(default_factory=list)
    keys: Space = field(default_factory=Space)
    stale_keys: bool = False
    """They are of a life that is over: the next write or join clears them."""
    barriers: dict[str, Barrier] = field(default_factory=dict)
    used: float = 0.0
    forget_at: float | None = None

    @property
    def live(self) -> Generation | None:
        g = self.generation
        return g if g is not None and not g.ended else None

    @property
    def forming(self) -> bool:
        return not self.over and not self.closed and self.live is None

    @property
    def ready(self) -> list[Member]:
        return [m for m in self.members.values() if m.ready]

    @property
    def possible(self) -> int:
        return sum(m.counted for m in self.members.values())

    @property
    def last_nodes(self) -> list[str]:
        return self.generation.nodes if self.generation is not None and self.formed else []


class State:
    """Everything, and what is said in this step."""

    def __init__(self, *, grace: float, scale_up: tuple[float, float], keep: float) -> None:
        self.grace, self.scale_up, self.keep = grace, scale_up, keep
        self.t = 0.0
        self.conns: dict[int, Conn] = {}
        self.sessions: dict[int, Session] = {}
        self.runs: dict[str, Run] = {}
        self.numbers: dict[str, int] = {}
        """The last generation of every run there ever was."""
        self.sent: list[tuple[int, int, Told]] = []
        """(connection, request or 0, what)."""
        self.cut: list[tuple[int, str]] = []
        """(connection, why; empty: without a word)."""
        self.limits = (100_000, 64 << 20)
        """Keys and bytes of a run."""

    def reply(self, session: Session, request: int, told: Told, *, keep: bool) -> None:
        if request in session.waiting:
            session.waiting.remove(request)
        if keep:
            session.answers[request] = told
        if session.conn is not None:
            self.sent.append((session.conn, request, told))

    def push(self, session: Session, told: Told) -> None:
        if session.conn is not None:
            self.sent.append((session.conn, 0, told))

    def close_conn(self, conn: int, why: str = "") -> None:
        self.cut.append((conn, why))
        del self.conns[conn]

    def member_of(self, session: Session) -> Member | None:
        run = self.runs.get(session.run)
        member = None if run is None else run.members.get(session.node)
        return member if member is not None and member.session == session.id else None

    def open_run(self, name: str) -> Run:
        if name not in self.runs:
            self.runs[name] = Run(since=self.t)
        return self.runs[name]

    def use_run(self, name: str) -> Run:
        """Its own keys or barriers are used: it stays for a while."""
        run = self.open_run(name)
        run.used = self.t
        if (run.over or run.closed) and not run.members:
            run.forget_at = self.t + self.keep
        return run

    def generation_of(self, session: Session, fence: Any, epoch: int) -> tuple[Run, Generation]:
        """The generation that a request names, if this session may use it."""
        run = self.runs.get(session.run)
        g = None if run is None else run.generation
        if run is None or g is None or (fence.epoch, fence.generation) != (epoch, g.number):
            raise NoError("STALE_GENERATION")
        if not g.usable:
            raise NoError("STALE_GENERATION")
        inside = (
            session.generation == g.number if session.role == "worker" else session.id in g.ranks
        )
        if not inside:
            raise NoError("NOT_A_MEMBER")
        return run, g
