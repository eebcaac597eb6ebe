"""Which server is tried next."""

import random

from rdzv_client.endpoint import parse
from rdzv_client.reconnect import Reconnect
from rdzv_client.targets import Targets


def ended(leader: str = "", silent: bool = False) -> Reconnect:
    """How the last connection ended."""
    again = Reconnect(0.0, random.Random(1), 1.0, 1.0)
    again.leader, again.silent = leader, silent
    return again


def order(targets: Targets, count: int, again: Reconnect | None = None) -> list[str]:
    again = again or ended()
    return [targets.next(again).host for _ in range(count)]


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
    again = ended(leader="[::1]:7")
    assert targets.next(again) == parse("[::1]:7")[0]
    assert order(targets, 2, again) == ["b", "a"]


def test_a_leader_s_name_that_cannot_be_one_is_passed_over() -> None:
    targets = Targets(parse("a,b"))
    order(targets, 1)
    assert order(targets, 1, ended(leader="no leader: yet")) == ["b"]


def test_one_that_has_fallen_silent_is_asked_after_the_others() -> None:
    targets = Targets(parse("a,b"))
    assert order(targets, 1) == ["a"]
    targets.welcomed()
    assert order(targets, 2, ended(silent=True)) == ["b", "a"]
    targets.welcomed()
    assert order(targets, 2, ended(silent=True)) == ["b", "a"]


def test_one_alone_is_asked_again_however_silent_it_is() -> None:
    targets = Targets(parse("a"))
    order(targets, 1)
    assert order(targets, 2, ended(silent=True)) == ["a", "a"]


def test_after_the_one_that_let_us_in_has_failed_it_is_not_its_turn_at_once() -> None:
    targets = Targets(parse("a,b"))
    assert order(targets, 2) == ["a", "b"]
    targets.welcomed()  # by b; in turn it would be a, b, …
    assert order(targets, 1) == ["b"]
    assert order(targets, 2) == ["a", "b"]
    targets = Targets(parse("a,b"))
    assert order(targets, 1) == ["a"]
    assert order(targets, 1, ended(leader="b")) == ["b"]
    targets.welcomed()
    assert order(targets, 2) == ["b", "a"]


def reached(targets: Targets, again: Reconnect | None = None) -> tuple[str, bool]:
    """The next one, and whether it is doubted; a name stands for an address here."""
    host = targets.next(again or ended()).host
    return host, targets.reached({"a.example": "a"}.get(host, host))


def test_one_that_has_fallen_silent_is_doubtful_when_another_says_that_it_leads() -> None:
    targets = Targets(parse("a,b"))
    assert reached(targets) == ("a", False)
    targets.welcomed()
    assert reached(targets, ended(silent=True)) == ("b", False)
    assert reached(targets, ended(leader="a.example:29500")) == ("a.example", True)
    assert reached(targets, ended(leader="a.example:29501")) == ("a.example", False)
    assert reached(targets, ended(leader="b")) == ("b", False)
    targets.welcomed()
    assert reached(targets) == ("b", False)
    assert reached(targets) == ("a", False), "what was before the last welcome is forgotten"


def test_a_leader_s_port_is_the_one_that_was_left_out() -> None:
    targets = Targets(parse("a,b"))
    assert order(targets, 1) == ["a"]
    assert order(targets, 2, ended(leader="b:29500")) == ["b", "a"]


def test_one_alone_is_not_doubted_there_is_nothing_to_hurry_to() -> None:
    targets = Targets(parse("a"))
    reached(targets)
    targets.welcomed()
    assert reached(targets, ended(silent=True)) == ("a", False)
