"""Barrier rounds as data."""

from types import SimpleNamespace
from typing import cast

import pytest

from rdzv_proto import limits
from rdzv_proto.messages import Released
from rdzv_server.core.model import Session
from rdzv_server.core.rounds import Arrival, Barrier, Barriers, Terms

NOBODY = cast("Session", SimpleNamespace(id=7))


def arrive(barrier: Barrier, *members: int) -> None:
    for member in members:
        barrier.arrivals[member] = Arrival(member, NOBODY, 1, None, None)


def opened(terms: Terms, *members: int) -> Barrier:
    barrier = Barrier("b", "run 'r'", terms=terms)
    arrive(barrier, *members)
    return barrier


@pytest.mark.parametrize(
    ("terms", "inside", "outside", "ranks", "text"),
    [
        (Terms("nodes", 3), [0, 2], [3], [0, 1, 2], "all 3 nodes"),
        (Terms("workers", 2, frozenset({7, 1})), [1, 7], [0], [1, 7], "workers [1, 7]"),
        (Terms("count", 2), [0, 99], [], [], "any 2"),
    ],
)
def test_terms_say_who_takes_part(
    terms: Terms, inside: list[int], outside: list[int], ranks: list[int], text: str
) -> None:
    assert all(terms.includes(member) for member in inside)
    assert not any(terms.includes(member) for member in outside)
    assert list(terms.ranks()) == ranks
    assert str(terms) == text


def test_s13_a_round_is_complete_when_as_many_members_as_needed_are_there() -> None:
    barrier = opened(Terms("nodes", 2), 1)
    assert (barrier.complete, barrier.missing()) == (False, [0])
    arrive(barrier, 0)
    assert barrier.complete
    assert barrier.missing() == []


def test_s14_a_decision_is_owed_to_members_that_were_not_there_and_to_nobody_else() -> None:
    barrier = opened(Terms("nodes", 3, frozenset({0, 1})), 0)
    reply = Released(round=1)
    assert [a.member for a in barrier.decide(reply)] == [0]
    assert barrier.owed(0) is None
    assert barrier.owed(2) is None
    decision = barrier.owed(1)
    assert decision is not None
    assert decision.reply is reply


def test_s15_decisions_are_kept_for_a_while_and_rounds_rise_by_one() -> None:
    barrier = Barrier("b", "run 'r'")
    for number in range(1, 20):
        barrier.terms = Terms("nodes", 1)
        arrive(barrier, 0)
        assert barrier.round == number
        barrier.decide(Released(round=number))
    assert barrier.decision(19 - limits.BARRIER_ROUNDS_KEPT) is None
    assert barrier.decision(20 - limits.BARRIER_ROUNDS_KEPT) is not None
    assert barrier.terms is None


def test_an_emptied_round_keeps_its_number() -> None:
    barrier = opened(Terms("nodes", 2), 0)
    assert [a.member for a in barrier.take()] == [0]
    assert (barrier.round, barrier.terms, barrier.missing()) == (1, None, [])


def test_the_barrier_that_was_idle_longest_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BARRIER_NAMES_MAX", 2)
    barriers = Barriers()
    first, second = Barrier("1", ""), Barrier("2", "")
    for barrier in (first, second):
        assert barriers.make_way() is None
        barriers.add(barrier)
    barriers.used(first)
    assert barriers.make_way() is second
    barriers.add(Barrier("3", ""))
    assert barriers.find("2") is None
    assert barriers.find("1") is first
    for barrier in barriers.all():
        arrive(barrier, 0)
    with pytest.raises(OverflowError):
        barriers.make_way()
    assert {b.name for b in barriers.waiting()} == {"1", "3"}
