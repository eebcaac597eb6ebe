"""Barrier rounds as data: who must come, who is there, what was decided.

A round is named (scope, name, number). It is decided once, for all of its members alike, and the
decision is kept for those who have not had it yet: a retry, or a member that comes too late (S14, S17).
A member's next arrival after a decision counts for the next round, however slow the others are to read
the release (S15). The rules of asking are in `barriers`.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from rdzv_proto import limits
from rdzv_proto.messages import Error, Released

if TYPE_CHECKING:
    from rdzv_server.core.model import Session


@dataclass(frozen=True, slots=True)
class Terms:
    """What the members of a round must agree on."""

    of: str
    """`nodes`, `workers` or `count`."""
    needed: int
    members: frozenset[int] | None = None
    """Ranks; None: all from 0 to `needed`, or (`count`) anybody."""

    def includes(self, member: int) -> bool:
        """True if that member takes part."""
        if self.members is not None:
            return member in self.members
        return self.of == "count" or member < self.needed

    def ranks(self) -> Iterator[int]:
        """All who take part; none can be named with `count`."""
        if self.members is not None:
            yield from sorted(self.members)
        elif self.of != "count":
            yield from range(self.needed)

    def __str__(self) -> str:
        if self.of == "count":
            return f"any {self.needed}"
        return (
            f"{self.of} {sorted(self.members)}" if self.members else f"all {self.needed} {self.of}"
        )


class Arrival(msgspec.Struct, frozen=True):
    """A member that is there."""

    member: int
    """Its rank; its session id with `count`."""
    session: "Session"
    request_id: int
    payload: bytes | None
    vote: bool | None


@dataclass(frozen=True, slots=True)
class Decision:
    """How a round ended, for all its members."""

    round: int
    terms: Terms
    reply: Released | Error
    answered: tuple[tuple[int, int], ...] = ()
    """(session id, request id) of those that waited for it."""


@dataclass(slots=True, eq=False)
class Barrier:
    """All rounds of one name."""

    name: str
    where: str
    """Run and generation, for texts."""
    round: int = 1
    """The open round, or the next one."""
    terms: Terms | None = None
    """Of the open round; None while nobody is there."""
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    payload_bytes: int = 0
    began_at: float = 0.0
    timeout_s: float = 0.0
    serial: int = 0
    """Of the open round; names its deadline."""
    decisions: deque[Decision] = field(
        default_factory=lambda: deque(maxlen=limits.BARRIER_ROUNDS_KEPT)
    )
    had: dict[int, int] = field(default_factory=dict)
    """The last round whose decision a member has had."""

    @property
    def complete(self) -> bool:
        """Everybody is there."""
        return self.terms is not None and len(self.arrivals) == self.terms.needed

    def missing(self) -> list[int]:
        """Ranks that have not come, rising."""
        return [] if self.terms is None else [
            rank for rank in self.terms.ranks() if rank not in self.arrivals
        ]  # fmt: skip

    def owed(self, member: int) -> Decision | None:
        """The oldest decision that this member takes part in and has not had."""
        decisions, had = self.decisions, self.had.get(member, 0)
        if not decisions or decisions[-1].round <= had:
            return None  # most of the time
        for decision in decisions:
            if decision.round > had and decision.terms.includes(member):
                return decision
        return None

    def decision(self, number: int) -> Decision | None:
        """Of one round, if it is still kept."""
        return next((d for d in self.decisions if d.round == number), None)

    def decide(self, reply: Released | Error) -> list[Arrival]:
        """Close the open round; returns those who wait for it."""
        assert self.terms is not None, "a decision on a round that is not open"
        answered = tuple((a.session.id, a.request_id) for a in self.arrivals.values())
        self.decisions.append(Decision(self.round, self.terms, reply, answered))
        for member in self.arrivals:
            self.had[member] = self.round
        self.round += 1
        return self.take()

    def enter(self, arrival: Arrival) -> None:
        """Count a member; a newer arrival of it replaces the older one."""
        self.withdraw(arrival.member)
        self.arrivals[arrival.member] = arrival
        self.payload_bytes += len(arrival.payload or b"")

    def withdraw(self, member: int) -> None:
        """It does not count any more, if it did."""
        old = self.arrivals.pop(member, None)
        if old is not None:
            self.payload_bytes -= len(old.payload or b"")

    def take(self) -> list[Arrival]:
        """Empty the open round without a decision."""
        arrivals = list(self.arrivals.values())
        self.arrivals.clear()
        self.terms = None
        self.payload_bytes = 0
        return arrivals


class Barriers:
    """The barriers of one generation, or of a run."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[str, Barrier] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str) -> Barrier | None:
        """The barrier of that name, if it is known."""
        return self._by_name.get(name)

    def make_way(self) -> Barrier | None:
        """Remove the one that has been idle longest, if there are as many as there may be.

        Raises:
            OverflowError: all are in use.
        """
        if len(self._by_name) < limits.BARRIER_NAMES_MAX:
            return None
        idle = next((b for b in self._by_name.values() if not b.arrivals), None)
        if idle is None:
            raise OverflowError
        return self._by_name.pop(idle.name)

    def add(self, barrier: Barrier) -> None:
        """Enter a new one, or one that was stored."""
        self._by_name[barrier.name] = barrier

    def used(self, barrier: Barrier) -> None:
        """A round was decided: it is the last one to make way."""
        if self._by_name.pop(barrier.name, None) is not None:
            self._by_name[barrier.name] = barrier

    def clear(self) -> None:
        """Forget all of them, with their decisions and payloads."""
        self._by_name.clear()

    def all(self) -> list[Barrier]:
        """Every barrier that is remembered."""
        return list(self._by_name.values())

    def waiting(self) -> list[Barrier]:
        """Those with somebody in the open round."""
        return [barrier for barrier in self._by_name.values() if barrier.arrivals]
