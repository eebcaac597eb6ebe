"""The checker itself: what is late, and what only the past shows, must be found, and its rule named."""

import pytest

from rdzv_proto.messages import Ended, KvGet
from rdzv_server.core import forming, generations
from rdzv_server.core.invariants import Monitor, check
from tests.lab import Lab, policy


def test_l1_a_last_call_that_lasts_too_long() -> None:
    lab = Lab()
    lab.nodes("a", "b", rules=policy(2, 4, last_call_s=2))[0].join()
    lab.node("c", rules=policy(2, 4)).join()
    lab.core.tables.t += 2.0
    check(lab.core.tables)
    lab.core.tables.t += 0.2
    with pytest.raises(AssertionError, match="L1: the last call lasts"):
        check(lab.core.tables)


def test_l2_a_session_that_should_be_lost() -> None:
    lab = Lab()
    (a,) = lab.nodes("a", rules=policy(2))
    lab.core.tables.t += a.lease_s + 0.2
    check(lab.core.tables)
    lab.core.tables.t += 0.2
    with pytest.raises(AssertionError, match="L2: a is lost"):
        check(lab.core.tables)
    lab.core.tables.read_only = "the disk is full"  # then nobody is
    check(lab.core.tables)


def test_l2_a_suspect_whose_grace_is_over() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    session = lab.run().members["a"].session
    a.lose()
    session.recover_until = 0.0
    session.heard_at -= a.lease_s
    lab.core.tables.t += 1.4
    with pytest.raises(AssertionError, match="L2: a is lost"):
        check(lab.core.tables)


def test_s17_a_round_whose_time_is_over() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    a.meet("step", timeout_s=3)
    lab.core.tables.t += 3.2
    check(lab.core.tables)
    lab.core.tables.t += 0.2
    with pytest.raises(AssertionError, match="S17: a round lasts"):
        check(lab.core.tables)


def test_s24_a_wait_for_keys_that_are_there() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    a.ask(KvGet(fence=a.live_fence(), key="k", timeout_ms=9_000))
    generation = lab.run().generation
    assert generation is not None
    generation.kv.waits()[0].missing.clear()
    with pytest.raises(AssertionError, match="S24"):
        check(lab.core.tables)


def test_s23_a_counter_that_says_something_else_than_its_digits() -> None:
    lab = Lab()
    (a,) = lab.world("a", rules=policy(1))
    a.add("n")
    check(lab.core.tables)
    generation = lab.run().generation
    assert generation is not None
    generation.kv.put("n", b"2", 3)
    with pytest.raises(AssertionError, match="S23: 'n' is b'2', and 3 was counted"):
        check(lab.core.tables)


def test_s11_keys_of_a_generation_that_ended() -> None:
    lab = Lab()
    _, b = lab.world("a", "b", rules=policy(2))
    generation = lab.run().generation
    assert generation is not None
    b.leave("drained")
    check(lab.core.tables)
    generation.kv.set(("k",), (b"v",))
    with pytest.raises(AssertionError, match="S11: keys of a dead generation"):
        check(lab.core.tables)


def test_s5_an_attempt_that_falls() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(2)).resume()
    monitor = Monitor()
    monitor.check(lab.core.tables)
    lab.core.tables.nodes["llama", "a"].attempt = a.attempt - 1
    with pytest.raises(AssertionError, match="S5: a: a late attempt"):
        monitor.check(lab.core.tables)


def test_s5_a_fenced_process_that_comes_back() -> None:
    lab = Lab()
    monitor = Monitor()
    for incarnation in (1, 2):
        lab.node("a", rules=policy(2), incarnation=incarnation).join()
        monitor.check(lab.core.tables)
    lab.core.tables.superseded.clear()
    lab.monitor = Monitor()  # that of the laboratory would find it first
    lab.node("a", rules=policy(2), incarnation=1).join()
    with pytest.raises(AssertionError, match="S5: a: a fenced process is back"):
        monitor.check(lab.core.tables)


def test_s12_an_end_by_somebody_outside() -> None:
    lab = Lab()
    lab.world("a", "b", rules=policy(2))
    tables, run, monitor = lab.core.tables, lab.run(), Monitor()
    monitor.check(tables)
    generations.end(tables, run, Ended(kind="scale_up", reason="c came", node_id="c"))
    forming.settle(tables, run)
    with pytest.raises(AssertionError, match=r"S12: .* was ended by c"):
        monitor.check(tables)


@pytest.mark.parametrize(
    ("ranks", "order", "rule"),
    [
        ({"a": 0, "b": 1}, {}, ""),
        ({"a": 1, "b": 0}, {}, "changed their order"),
        ({"b": 0}, {}, "rank 0 of 'llama' is a newcomer"),
        ({"a": 0}, {"c": 0}, "L8"),
    ],
)
def test_places_of_the_next_world(ranks: dict[str, int], order: dict[str, int], rule: str) -> None:
    """`ranks` is who was in the world before, as the monitor remembers it."""
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    for node in (a, b):
        node.join()
    lab.node("c", rules=policy(2)).join()
    run = lab.run()
    generation = run.generation
    assert generation is not None
    monitor = Monitor()
    ids = {p.node_id: p.session_id for p in generation.participants}
    monitor._places[run.id] = (1, {ids[name]: rank for name, rank in ranks.items()})
    for name, number in order.items():
        run.members[name].order = number
    if rule:
        with pytest.raises(AssertionError, match=rule):
            monitor._check_places(run, generation)
    else:
        monitor._check_places(run, generation)


def test_s9_a_round_that_waits_for_a_node_whose_work_is_done() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    a.meet("step")
    generation = lab.run().generation
    assert generation is not None
    generation.finished.add(generation.participants[b.rank].session_id)
    with pytest.raises(AssertionError, match="S9: a round waits"):
        check(lab.core.tables)


def test_l3_a_request_that_waits_for_nothing() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    a.ask(KvGet(fence=a.live_fence(), key="k", timeout_ms=9_000))
    generation = lab.run().generation
    assert generation is not None
    generation.kv.drop(generation.kv.waiters()[0])
    with pytest.raises(AssertionError, match="L3: 1 requests wait, 0 of them"):
        check(lab.core.tables)
