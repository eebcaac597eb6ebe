"""Who takes part, and with which rank."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_server.core.ranks import Candidate, Seat, arrange, choose, natural_key


def names(ranked: list[Candidate]) -> list[str]:
    return [c.node_id for c in ranked]


def c(name: str, order: int = 0, seat: int | None = None, hint: int | None = None) -> Candidate:
    return Candidate(name, name, order, seat, hint)


def seats(*held: str) -> list[Seat]:
    return [Seat(name, name) for name in held]


@pytest.mark.parametrize(
    ("low", "high"),
    [("node7", "node66"), ("node7", "node8"), ("n-1-9", "n-1-10"), ("a", "b"), ("a", "a1")],
)
def test_names_sort_as_people_read_them(low: str, high: str) -> None:
    assert natural_key(low) < natural_key(high)


@given(st.lists(st.text(max_size=8)))
def test_any_names_can_be_compared(texts: list[str]) -> None:
    sorted(texts, key=natural_key)


def test_b27_the_first_world_follows_the_natural_order_of_names() -> None:
    nodes = [c(name, i) for i, name in enumerate(("node7", "node66", "node8", "node70"))]
    for _ in range(20):
        random.Random(1).shuffle(nodes)
        assert names(arrange(nodes, [])) == ["node7", "node8", "node66", "node70"]


def test_b27_hints_decide_the_first_world_and_the_rest_follows_by_name() -> None:
    nodes = [c("a", hint=2), c("b", hint=0), c("d"), c("c")]
    assert names(arrange(nodes, [])) == ["b", "a", "c", "d"]


def test_hints_for_every_node_decide_later_worlds_too() -> None:
    nodes = [c("a", seat=0, hint=1), c("b", seat=1, hint=0)]
    assert names(arrange(nodes, seats("a", "b"))) == ["b", "a"]


def test_survivors_keep_their_order_and_close_up() -> None:
    nodes = [c("d", seat=3), c("a", seat=0), c("b", seat=1)]
    assert names(arrange(nodes, seats("a", "b", "x", "d"))) == ["a", "b", "d"]


def test_a_newcomer_takes_the_place_that_was_vacated() -> None:
    nodes = [c("a", seat=0), c("c", seat=2), c("new", order=9)]
    assert names(arrange(nodes, seats("a", "b", "c"))) == ["a", "new", "c"]


def test_a_newcomer_without_a_vacated_place_comes_last() -> None:
    nodes = [c("new", order=9), c("a", seat=0), c("b", seat=1)]
    assert names(arrange(nodes, seats("a", "b"))) == ["a", "b", "new"]


def test_b28_the_lowest_survivor_becomes_rank_0_never_a_newcomer() -> None:
    nodes = [c("b", seat=1), c("c", seat=2), c("d", seat=3), c("new", order=9)]
    assert names(arrange(nodes, seats("a", "b", "c", "d"))) == ["b", "new", "c", "d"]


def test_a_node_that_came_back_prefers_its_old_place() -> None:
    last = seats("a", "b", "c", "d")
    nodes = [c("a", seat=0), c("x", order=8), c("d", order=9), c("c", seat=2)]
    assert names(arrange(nodes, last)) == ["a", "x", "c", "d"]


def test_the_same_host_prefers_its_old_place() -> None:
    last = [Seat("a1", "a"), Seat("b1", "b"), Seat("c1", "c")]
    nodes = [
        Candidate("a1", "a", 0, 0),
        Candidate("x1", "x", 7),
        Candidate("c2", "c", 8),
    ]
    assert names(arrange(nodes, last)) == ["a1", "x1", "c2"]


def test_survivors_are_chosen_before_newcomers_and_those_in_order_of_arrival() -> None:
    nodes = [c("new1", order=5), c("new2", order=4), c("b", seat=1), c("a", seat=0)]
    assert names(choose(nodes, 3)) == ["a", "b", "new2"]


@given(
    st.lists(
        st.tuples(st.booleans(), st.one_of(st.none(), st.integers(0, 9))), min_size=1, max_size=8
    ),
    st.integers(0, 8),
)
def test_every_chosen_node_gets_exactly_one_rank(
    kinds: list[tuple[bool, int | None]], world: int
) -> None:
    held = list(range(world))
    nodes = [
        c(f"n{i}", i, held.pop(0) if prior and held else None, hint)
        for i, (prior, hint) in enumerate(kinds)
    ]
    last = seats(*(f"old{i}" for i in range(world)))
    ranked = arrange(nodes, last)
    assert sorted(names(ranked)) == sorted(names(nodes))
    survivors = [n for n in ranked if n.seat is not None]
    if survivors and not all(n.hint is not None for n in nodes):
        assert ranked[0].seat is not None, "a newcomer has rank 0 while a survivor is there"
        assert [n.seat for n in survivors] == sorted(n.seat or 0 for n in survivors)
