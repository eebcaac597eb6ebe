"""Of the model: barrier rounds of one name (S13 to S17)."""

from dataclasses import dataclass, field

from tests.stateful.told import Told

ROUNDS_KEPT = 8
"""Decisions of a barrier that late members can still hear."""

Terms = tuple[str, int, tuple[int, ...] | None]
"""Who meets, how many, and which ranks if not all."""


@dataclass
class Arrival:
    session: int
    request: int
    payload: bytes | None
    vote: bool | None


@dataclass
class Round:
    terms: Terms
    until: float
    came: dict[int, Arrival] = field(default_factory=dict)
    """By rank; by session for a barrier of so many."""


@dataclass
class Barrier:
    number: int = 1
    """Of the open round, or of the next one."""
    open: Round | None = None
    past: list[tuple[int, Terms, Told]] = field(default_factory=list)
    had: dict[int, int] = field(default_factory=dict)
    """The last round whose decision a member was told."""

    def owed(self, member: int) -> tuple[int, Told] | None:
        """The oldest decision on the member's own rounds that it was not told."""
        for number, terms, decision in self.past:
            if number > self.had.get(member, 0) and takes_part(terms, member):
                return number, decision
        return None

    def decide(self, decision: Told) -> list[Arrival]:
        """The round is over; returns who has to be told now."""
        assert self.open is not None
        came = self.open.came
        self.past = [*self.past, (self.number, self.open.terms, decision)][-ROUNDS_KEPT:]
        for member in came:
            self.had[member] = self.number
        self.number += 1
        self.open = None
        return list(came.values())


def takes_part(terms: Terms, member: int) -> bool:
    of, needed, ranks = terms
    if ranks is not None:
        return member in ranks
    return of == "count" or member < needed


def missing(round_: Round) -> tuple[int, ...]:
    """Ranks that have not come."""
    of, needed, ranks = round_.terms
    if of == "count":
        return ()
    return tuple(r for r in (ranks or range(needed)) if r not in round_.came)


def released(number: int, round_: Round) -> Told:
    """What everybody is told when all are there."""
    of, needed, ranks = round_.terms
    order = list(round_.came) if of == "count" else list(ranks or range(needed))
    here = [round_.came[member] for member in order]
    names = range(len(order)) if of == "count" else order
    payloads = [a.payload for a in here]
    votes = [a.vote for a in here]
    voted = any(vote is not None for vote in votes)
    against = [name for name, vote in zip(names, votes, strict=True) if vote is not True]
    return (
        "released",
        number,
        tuple(order) if ranks is not None else (),
        tuple(payloads) if any(p is not None for p in payloads) else (),
        (not against) if voted else None,
        tuple(against) if voted else (),
    )
