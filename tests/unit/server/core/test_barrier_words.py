"""What is said of barriers, word for word."""

import pytest

from rdzv_server.core import barrier_words
from rdzv_server.core.rounds import Barrier, Terms
from tests.lab import Lab, Node, policy


def gather(lab: Lab, *names: str) -> tuple[list[Node], Barrier]:
    """A world of which the first node waits at a barrier."""
    nodes = lab.world(*names, rules=policy(len(names)))
    nodes[0].meet("step")
    generation = lab.run().live
    assert generation is not None
    barrier = generation.barriers.find("step")
    assert barrier is not None
    return nodes, barrier


def describe(lab: Lab, barrier: Barrier) -> str:
    run = lab.run()
    return barrier_words.describe(lab.core.tables, run, run.live, "nodes", barrier.missing())


def test_a_round_is_named_with_its_run_generation_and_number() -> None:
    lab = Lab()
    nodes, barrier = gather(lab, "a", "b")
    fence = nodes[0].live_fence()
    assert barrier_words.title(barrier) == (
        f"barrier 'step' of run 'llama' generation {fence}, round 1"
    )


@pytest.mark.parametrize(
    ("of", "shown"),
    [("nodes", "a (group rank 3)"), ("workers", "rank 3 on a"), ("count", "a")],
)
def test_who_came_is_named_as_what_he_came_as(of: str, shown: str) -> None:
    lab = Lab()
    lab.world("a", rules=policy(1))
    session = lab.core.tables.nodes[("llama", "a")]
    assert barrier_words.who(session, 3, Terms(of, 4)) == shown


def test_who_is_missing_is_told_with_what_was_heard_of_him() -> None:
    lab = Lab()
    (_, b, _), barrier = gather(lab, "a", "b", "c")
    lab.advance(0.4)
    b.lose()
    assert describe(lab, barrier) == (
        "b (group rank 1), connection lost, last heard 0.4 s ago; "
        "c (group rank 2), alive, last heard 0.4 s ago"
    )


def test_of_many_missing_some_are_named_and_the_others_counted() -> None:
    lab = Lab()
    _, barrier = gather(lab, *(f"n{i:02}" for i in range(12)))
    text = describe(lab, barrier)
    assert text.count("group rank") == 8
    assert text.endswith("; and 3 more")
    assert (
        len(barrier_words.missing_names(lab.core.tables, lab.run(), lab.run().live, barrier)) == 8
    )


def test_a_worker_that_never_came_is_named_by_its_rank_alone() -> None:
    lab = Lab()
    gather(lab, "a", "b")
    tables, run = lab.core.tables, lab.run()
    told = barrier_words.member(tables, run, run.live, "workers", 5)
    assert told == ("rank 5", "not connected to the server")
