"""The unique ids of one generation's communicators: who asked, who mints, what was handed out.

A record is one attempt to make one communicator. It goes OPEN → MINTING → PUBLISHED → SPENT, or to
FAILED from anywhere before the end. Ids are held only until it is over, and never again after that:
a spent or failed record keeps names and counts. The requests on it are in `nccl`.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_server.core.kv import Waiter
from rdzv_server.core.nccl import unique_id
from rdzv_server.core.refusal import Refused

ATTEMPTS_KEPT = 4
"""Finished attempts of one communicator that are remembered one by one; older ones only as a number."""

SHOWN_MAX = 8
"""Ranks that are named one by one; a list that is longer is not read."""


class State(enum.Enum):
    """Of a record."""

    OPEN = "open"
    MINTING = "minting"
    """A rank was told to mint."""
    PUBLISHED = "published"
    SPENT = "spent"
    """All ranks are ready."""
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Nothing more can happen to it."""
        return self is State.SPENT or self is State.FAILED


@dataclass(frozen=True, slots=True)
class Shape:
    """What all ranks of a communicator must agree on."""

    nranks: int
    n_ids: int
    minter: int | None
    """The rank that mints all ids; None: the first rank of each block mints one."""

    @staticmethod
    def of(nranks: int, n_ids: int, minter: int | None) -> "Shape":
        """A single id is rank 0's to mint, whether that is said or not.

        Raises:
            Refused: MALFORMED; the numbers cannot be those of a communicator.
        """
        if n_ids > nranks:
            raise Refused(
                ErrorCode.MALFORMED, f"{n_ids} ids for {nranks} ranks: at most one for each rank"
            )
        if minter is not None and minter >= nranks:
            raise Refused(
                ErrorCode.MALFORMED, f"minter {minter} is not among the ranks 0 to {nranks - 1}"
            )
        return Shape(nranks, n_ids, 0 if minter is None and n_ids == 1 else minter)

    def leader(self, index: int) -> int:
        """The rank that mints an id: the first of the block of ranks that reports to its root."""
        if self.minter is not None:
            return self.minter
        size, larger = divmod(self.nranks, self.n_ids)
        return index * size + min(index, larger)

    def slots(self, rank: int) -> list[int]:
        """The ids that a rank has to mint."""
        if self.minter is not None:
            return list(range(self.n_ids)) if rank == self.minter else []
        size, larger = divmod(self.nranks, self.n_ids)
        in_larger = larger * (size + 1)
        index = rank // (size + 1) if rank < in_larger else larger + (rank - in_larger) // size
        return [index] if self.leader(index) == rank else []

    def __str__(self) -> str:
        minter = "" if self.minter in (None, 0) else f", minter {self.minter}"
        return f"nranks {self.nranks}, n_ids {self.n_ids}{minter}"


@dataclass(slots=True)
class Rank:
    """A rank of a communicator that asked for its ids."""

    session_id: int
    who: str
    """The process, for texts."""
    host: str
    asked_at: float
    told_at: float | None = None
    """When it was told to mint."""
    fetched: bool = False
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """A request that waits for ids."""

    waiter: Waiter
    rank: int
    timeout_s: float


@dataclass(slots=True, eq=False)
class Record:
    """One attempt to make one communicator."""

    group: str
    attempt: int
    serial: int
    """Names its deadline."""
    shape: Shape
    by: str
    """Who fixed the shape, for the text of a refusal."""
    opened_at: float
    init_timeout_s: float
    version: int = 0
    version_by: str = ""
    state: State = State.OPEN
    since: float = 0.0
    """When its state last changed."""
    ids: list[bytes] = field(default_factory=list, repr=False)
    """By index; empty where one is not there yet. Cleared when it is over."""
    digests: list[bytes] = field(default_factory=list, repr=False)
    ranks: dict[int, Rank] = field(default_factory=dict)
    of_session: dict[int, list[int]] = field(default_factory=dict)
    """Ranks by session id."""
    gone: dict[int, str] = field(default_factory=dict)
    """Ranks whose process was lost before the ids were there."""
    hosts: set[str] = field(default_factory=set)
    """Where its ranks run, as far as they asked."""
    loopback: str = ""
    """A root that only its own host can reach."""
    unready: int = 0
    """Ranks that are not ready yet; those that never asked too."""
    waits: dict[Waiter, Wait] = field(default_factory=dict)
    failure: Refused | None = None
    revoked: set[int] = field(default_factory=set)
    """Sessions that hold ids of a failed attempt and have not said that they know."""

    @property
    def to_mint(self) -> list[int]:
        """Ids that are not there."""
        return [index for index, raw in enumerate(self.digests) if not raw]

    def count(self, flag: str) -> int:
        """Ranks with a flag: `fetched` or `ready`."""
        return sum(getattr(rank, flag) for rank in self.ranks.values())

    def without(self, flag: str) -> tuple[list[int], int]:
        """Ranks that lack a flag (`asked`, `fetched`, `ready`): the first ones, and how many."""
        have = {r for r, at in self.ranks.items() if flag == "asked" or getattr(at, flag)}
        lack = (rank for rank in range(self.shape.nranks) if rank not in have)
        return list(islice(lack, SHOWN_MAX)), self.shape.nranks - len(have)


@dataclass(slots=True)
class Group:
    """One communicator's attempts."""

    records: dict[int, Record] = field(default_factory=dict)
    next: dict[int, int] = field(default_factory=dict)
    """By rank: the attempt that it has not finished yet."""
    floor: int = 0
    """Attempts below are over and forgotten."""


class Ids:
    """All records of one generation."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.dropped: list[str] = []
        """Groups that made way, for whoever keeps records of them."""
        self._active: dict[int, Record] = {}
        self._waits: dict[Waiter, Record] = {}
        self._serial = 0

    def __repr__(self) -> str:
        return f"Ids({len(self.groups)} groups, {len(self._active)} active)"

    # --- looking ------------------------------------------------------------------------------

    def records(self) -> list[Record]:
        """All that are remembered, oldest group first."""
        return [r for group in self.groups.values() for r in group.records.values()]

    def active(self) -> list[Record]:
        """Those that are not over, oldest first."""
        return list(self._active.values())

    def by_serial(self, serial: int) -> Record | None:
        """The active record of a deadline."""
        return self._active.get(serial)

    def find(self, group: str, attempt: int) -> Record | None:
        """One record, over or not."""
        known = self.groups.get(group)
        return None if known is None else known.records.get(attempt)

    def attempt_of(self, group: str, rank: int) -> int:
        """The attempt that a rank means if it does not say: the first it has not finished."""
        known = self.groups.get(group)
        return 0 if known is None else max(known.next.get(rank, 0), known.floor)

    def forgotten(self, group: str, attempt: int) -> bool:
        """That attempt is over for so long that only its number is known."""
        known = self.groups.get(group)
        return known is not None and attempt < known.floor

    def of_session(self, session_id: int) -> Iterator[Record]:
        """Active records with ranks of a session."""
        return (r for r in self.active() if session_id in r.of_session)

    # --- rules --------------------------------------------------------------------------------

    def open(self, record: Record) -> Record:
        """Enter a new record.

        Raises:
            Refused: LIMIT_EXCEEDED.
        """
        if len(self._active) >= limits.NCCL_GROUPS_MAX:
            raise Refused(
                ErrorCode.LIMIT_EXCEEDED,
                f"{limits.NCCL_GROUPS_MAX} communicators of this generation are in the making",
            )
        group = self.groups.get(record.group)
        if group is None:
            self._make_room()
            group = self.groups[record.group] = Group()
        self._serial += 1
        record.serial = self._serial
        record.ids = [b""] * record.shape.n_ids
        record.digests = [b""] * record.shape.n_ids
        record.unready = record.shape.nranks
        group.records[record.attempt] = self._active[record.serial] = record
        over = [r for r in sorted(group.records) if group.records[r].state.over]
        for attempt in over[:-ATTEMPTS_KEPT]:
            del group.records[attempt]
            group.floor = max(group.floor, attempt + 1)
        return record

    def enter(self, record: Record, number: int, rank: Rank) -> Rank:
        """A rank asks, for the first time or again.

        Raises:
            Refused: DUPLICATE_RANK; another process has that rank.
        """
        known = record.ranks.get(number)
        if known is None:
            record.ranks[number] = known = rank
            record.of_session.setdefault(rank.session_id, []).append(number)
            record.gone.pop(number, None)
            record.hosts.add(rank.host)
        elif known.session_id != rank.session_id:
            raise Refused(
                ErrorCode.DUPLICATE_RANK,
                f"rank {number} of communicator {record.group!r} is {known.who} already; "
                f"{rank.who} asks for the same rank",
                "Give each process its own rank in the communicator.",
            )
        return known

    def wait(self, record: Record, wait: Wait) -> None:
        """Enter a request that waits."""
        record.waits[wait.waiter] = wait
        self._waits[wait.waiter] = record

    def waiting(self, waiter: Waiter) -> bool:
        """That request waits."""
        return waiter in self._waits

    def waiters(self) -> list[Waiter]:
        """All requests that wait."""
        return list(self._waits)

    def drop(self, waiter: Waiter) -> tuple[Record, Wait] | None:
        """Remove a request that waits, if it is there."""
        record = self._waits.pop(waiter, None)
        return None if record is None else (record, record.waits.pop(waiter))

    def put(self, record: Record, index: int, raw: bytes, at: float) -> bool:
        """An id is there; True if it was the last one that was missing."""
        record.ids[index], record.digests[index] = raw, unique_id.digest(raw)
        root = unique_id.root_of(raw)
        if root.loopback:
            record.loopback = str(root)
        if record.to_mint:
            return False
        record.state, record.since = State.PUBLISHED, at
        return True

    def release(self, record: Record, session_id: int, why: str) -> None:
        """A process is lost that the communicator can still do without: another may take its place."""
        for number in record.of_session.pop(session_id, ()):
            record.gone[number] = f"{record.ranks.pop(number).who}: {why}"
        record.hosts = {rank.host for rank in record.ranks.values()}

    def ready(self, record: Record, number: int) -> bool:
        """A rank's communicator stands; True if it was the last one."""
        rank = record.ranks[number]
        record.unready -= not rank.ready
        rank.ready = True
        self.finish(record, number)
        return not record.unready

    def finish(self, record: Record, number: int) -> None:
        """A rank is done with an attempt: it got ready, or learned that it failed."""
        group = self.groups[record.group]
        group.next[number] = max(group.next.get(number, 0), record.attempt + 1)

    def close(
        self, record: Record, state: State, at: float, why: Refused | None = None
    ) -> list[Wait]:
        """The record is over; its ids are forgotten. Returns the requests that still waited."""
        record.state, record.since, record.failure = state, at, why
        record.ids = []
        waits = list(record.waits.values())
        for wait in waits:
            self.drop(wait.waiter)
        self._active.pop(record.serial, None)
        return waits

    def _make_room(self) -> None:
        """A communicator whose attempts are all over makes way, so that names with a step number in
        them cannot fill the memory."""
        if len(self.groups) < limits.NCCL_GROUPS_MAX:
            return
        idle = (n for n, g in self.groups.items() if all(r.state.over for r in g.records.values()))
        name = next(idle, None)
        if name is None:
            raise Refused(
                ErrorCode.LIMIT_EXCEEDED,
                f"this generation has {limits.NCCL_GROUPS_MAX} communicators in the making",
            )
        del self.groups[name]
        self.dropped.append(name)
