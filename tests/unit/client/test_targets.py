"""Which server is tried next."""

from rdzv_client.endpoint import parse
from rdzv_client.targets import Targets


def order(targets: Targets, count: int) -> list[str]:
    return [targets.next().host for _ in range(count)]


def test_all_are_tried_in_turn() -> None:
    assert order(Targets(parse("a,b,c")), 5) == ["a", "b", "c", "a", "b"]


def test_the_one_that_let_us_in_is_asked_first_and_then_the_others() -> None:
    targets = Targets(parse("a,b"))
    assert order(targets, 2) == ["a", "b"]
    targets.welcomed()
    assert order(targets, 3) == ["b", "a", "b"]


def test_a_leader_is_asked_once_and_need_not_be_among_those_that_were_named() -> None:
    targets = Targets(parse("a,b"))
    assert order(targets, 1) == ["a"]
    targets.redirected("[::1]:7")
    assert targets.next() == parse("[::1]:7")[0]
    assert order(targets, 2) == ["b", "a"]


def test_a_leader_s_name_that_cannot_be_one_is_passed_over() -> None:
    targets = Targets(parse("a,b"))
    targets.next()
    targets.redirected("no leader: yet")
    assert order(targets, 1) == ["b"]


def test_one_that_has_fallen_silent_is_asked_after_the_others() -> None:
    targets = Targets(parse("a,b"))
    assert order(targets, 1) == ["a"]
    targets.welcomed()
    targets.silent()
    assert order(targets, 2) == ["b", "a"]
    targets.welcomed()
    targets.silent()
    assert order(targets, 2) == ["b", "a"]


def test_one_alone_is_asked_again_however_silent_it_is() -> None:
    targets = Targets(parse("a"))
    targets.next()
    targets.silent()
    assert order(targets, 2) == ["a", "a"]
