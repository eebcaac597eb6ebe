"""Barrier rounds over the whole core: S13 to S17, L3, L5, and what other systems promise of theirs."""

from collections.abc import Callable
from typing import Any

import pytest

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Barrier,
    Error,
    GenerationStatus,
    HelloWorker,
    KvCas,
    KvDelete,
    KvList,
    KvPage,
    KvSet,
    KvSwapped,
    Released,
    ShowGeneration,
    Welcome,
)
from rdzv_server.core.settings import Settings
from tests.lab import RUN, Lab, Node, Wire, beat_all, policy


def world(lab: Lab, *names: str) -> list[Node]:
    return lab.world(*names, rules=policy(len(names)))


def answers(node: Node, request_id: int) -> list[object]:
    return [m for wire in node.wires for m in wire.replies(request_id)]


def answer(node: Node, request_id: int) -> object:
    (only,) = answers(node, request_id)
    return only


def refused(reply: object) -> Error:
    assert isinstance(reply, Error), reply
    return reply


def code(reply: object) -> ErrorCode:
    return ErrorCode(refused(reply).code)


def visit(
    node: Node, name: str = "b", count: int = 2, timeout_s: float = 10, request_id: int = 900
) -> object:
    """Arrive at a barrier of so many clients of the run."""
    timeout_ms = round(timeout_s * 1000)
    return node.ask(Barrier(name=name, of="count", count=count, timeout_ms=timeout_ms), request_id)


class Workers:
    """Training processes of a world, one a node."""

    def __init__(self, lab: Lab, nodes: list[Node]) -> None:
        self.lab, self.nodes = lab, nodes
        self.wires: list[Wire] = []
        for rank, node in enumerate(nodes):
            wire, reply = node.worker(rank)
            assert isinstance(reply, Welcome), reply
            self.wires.append(wire)

    def meet(self, rank: int, request_id: int = 900, **more: object) -> object:
        options: dict[str, Any] = {
            "name": "b", "of": "workers", "count": len(self.wires), "timeout_ms": 10_000,
        } | more  # fmt: skip
        ask = Barrier(fence=self.nodes[0].live_fence(), **options)
        return self.lab.send(self.wires[rank], request_id, ask)

    def answer(self, rank: int, request_id: int = 900) -> object:
        (only,) = self.wires[rank].replies(request_id)
        return only


# --- S13: all members, once each, in this generation --------------------------------------------


def test_s13_a_round_is_released_when_every_member_is_there_and_not_before() -> None:
    lab = Lab()
    a, b, c = world(lab, "a", "b", "c")
    assert a.meet(request_id=900) is None
    assert b.meet(request_id=900) is None
    lab.advance(2)
    assert answers(a, 900) == []
    c.meet(request_id=900)
    assert [answer(n, 900) for n in (a, b, c)] == [Released(round=1)] * 3


def test_s13_a_member_that_comes_twice_counts_once_and_its_older_call_is_told() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.meet(request_id=900)
    a.meet(request_id=901)
    assert code(answer(a, 900)) is ErrorCode.SUPERSEDED
    assert answers(a, 901) == []
    b.meet(request_id=900)
    assert answer(a, 901) == answer(b, 900) == Released(round=1)


def test_s13_a_request_sent_again_on_a_new_connection_counts_once() -> None:
    lab = Lab()
    a, b, c = world(lab, "a", "b", "c")
    a.meet(request_id=900)
    a.lose()
    a.resume()
    assert a.meet(request_id=900) is None
    b.meet(request_id=900)
    assert answers(a, 900) == []
    c.meet(request_id=900)
    assert answer(a, 900) == Released(round=1)


def test_s13_an_arrival_of_an_earlier_generation_is_refused() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    old = a.live_fence()
    a.join()
    b.join()
    reply = a.ask(Barrier(fence=old, name="b", timeout_ms=1000))
    assert code(reply) is ErrorCode.STALE_GENERATION


def test_s13_every_generation_counts_its_rounds_from_1() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.meet()
    b.meet()
    a.meet()
    a.join()
    b.join()
    a.meet(request_id=900)
    b.meet(request_id=900)
    assert answer(a, 900) == Released(round=1)


def test_s13_a_subset_meets_without_the_others() -> None:
    lab = Lab()
    a, b, c = world(lab, "a", "b", "c")
    a.meet(members=[0, 2], request_id=900, payload=b"A")
    c.meet(members=[2, 0], request_id=900, payload=b"C")
    assert answer(a, 900) == Released(round=1, members=[0, 2], payloads=[b"A", b"C"])
    assert b.meet("other", request_id=900) is None


# --- S14: one decision ---------------------------------------------------------------------------


def test_s14_a_retry_after_the_release_gets_the_recorded_decision() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.meet(request_id=900, payload=b"A")
    a.lose()
    b.meet(request_id=900, payload=b"B")
    b.meet(request_id=901)
    a.resume()
    again = a.meet(request_id=900, payload=b"A")
    assert again == answer(b, 900) == Released(round=1, payloads=[b"A", b"B"])


def test_s14_everybody_gets_the_same_error() -> None:
    lab = Lab()
    nodes = world(lab, "a", "b", "c")
    nodes[0].meet(timeout_s=2, request_id=900)
    nodes[1].meet(timeout_s=60, request_id=900)
    beat_all(lab, nodes, 3)
    late = nodes[2].meet(timeout_s=60, request_id=900)
    assert answer(nodes[0], 900) == answer(nodes[1], 900) == late
    assert code(late) is ErrorCode.BARRIER_TIMEOUT


def test_s14_the_decision_is_asked_for_by_its_number() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.meet(payload=b"1")
    b.meet()
    reply = a.meet(round=1, request_id=900)
    assert reply == Released(round=1, payloads=[b"1", None])


# --- S15: rounds ---------------------------------------------------------------------------------


def test_s15_a_fast_member_counts_for_the_next_round_before_others_have_read_the_release() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    b.meet(request_id=900)
    a.meet(request_id=900)
    a.meet(request_id=901)
    assert answers(a, 901) == []
    assert answers(b, 900) == [Released(round=1)]
    b.meet(request_id=901)
    assert answer(a, 901) == answer(b, 901) == Released(round=2)


def test_s15_a_hundred_rounds_are_numbered_without_gaps() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    for number in range(1, 101):
        first, second = (a, b) if number % 3 else (b, a)
        first.meet(request_id=1000 + number)
        second.meet(request_id=1000 + number)
        assert answer(first, 1000 + number) == Released(round=number)


@pytest.mark.parametrize("number", [0, 3, 99])
def test_s15_a_round_that_is_neither_open_nor_remembered_is_refused(number: int) -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.meet()
    b.meet()
    assert code(a.meet(round=number)) is ErrorCode.BAD_ROUND
    a.meet(round=2, request_id=900)
    b.meet(request_id=900)
    assert answer(a, 900) == Released(round=2)


def test_s15_old_decisions_are_forgotten() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    for _ in range(limits.BARRIER_ROUNDS_KEPT + 1):
        a.meet()
        b.meet()
    assert code(a.meet(round=1)) is ErrorCode.BAD_ROUND
    assert isinstance(a.meet(round=2), Released)


# --- S16: disagreement and strangers -------------------------------------------------------------


@pytest.mark.parametrize("other", [{"members": [0, 1]}, {"members": [0, 1, 2]}])
def test_s16_members_that_disagree_on_who_takes_part_fail_the_round_for_all(
    other: dict[str, Any],
) -> None:
    lab = Lab()
    a, b, c = world(lab, "a", "b", "c")
    a.meet(request_id=900)
    b.meet(request_id=900, **other)
    for node in (a, b):
        assert code(answer(node, 900)) is ErrorCode.BARRIER_MISMATCH
        assert "b (group rank 1) came for nodes" in refused(answer(node, 900)).message
    assert code(c.meet()) is ErrorCode.BARRIER_MISMATCH


def test_s16_a_stranger_to_the_subset_is_refused_and_harms_nobody() -> None:
    lab = Lab()
    a, b, c = world(lab, "a", "b", "c")
    a.meet(members=[0, 1], request_id=900)
    for members in ([0, 1], [0, 1, 2], []):
        reply = refused(c.meet(members=members))
        assert ErrorCode(reply.code) is ErrorCode.NOT_A_MEMBER
        assert "c (group rank 2) is not" in reply.message or "c is not one" in reply.message
    b.meet(members=[0, 1], request_id=900)
    assert answer(a, 900) == Released(round=1, members=[0, 1])


def test_s16_a_node_that_is_not_in_the_generation_is_refused_and_harms_nobody() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    stranger = lab.node("x", rules=policy(2))
    a.meet(request_id=900)
    reply = stranger.ask(Barrier(fence=a.live_fence(), name="b", timeout_ms=1000))
    assert code(reply) is ErrorCode.NOT_A_MEMBER
    assert "'x'" in refused(reply).message
    b.meet(request_id=900)
    assert answer(a, 900) == Released(round=1)


def test_s16_clients_that_disagree_on_the_count_fail_the_round_for_all() -> None:
    lab = Lab()
    a, b = lab.nodes("a", "b")
    visit(a, count=3)
    visit(b, count=2)
    assert code(answer(a, 900)) is code(answer(b, 900)) is ErrorCode.BARRIER_MISMATCH


@pytest.mark.parametrize(
    "ask",
    [
        Barrier(name="b", timeout_ms=1),
        Barrier(name="b", of="workers", count=1, timeout_ms=1),
        Barrier(name="b", of="count", timeout_ms=1),
        Barrier(name="b", of="count", count=1, members=[1], timeout_ms=1),
    ],
)
def test_a_barrier_that_makes_no_sense_is_refused(ask: Barrier) -> None:
    a, _ = world(Lab(), "a", "b")
    assert code(a.ask(ask)) is ErrorCode.MALFORMED


def test_a_rank_outside_the_world_is_refused() -> None:
    a, _ = world(Lab(), "a", "b")
    assert code(a.meet(members=[0, 2])) is ErrorCode.MALFORMED


def test_agents_and_workers_do_not_meet_each_other() -> None:
    lab = Lab()
    nodes = world(lab, "a", "b")
    workers = Workers(lab, nodes)
    fence = nodes[0].live_fence()
    as_worker = nodes[0].ask(Barrier(fence=fence, name="b", of="workers", count=2, timeout_ms=1))
    assert code(as_worker) is ErrorCode.NOT_A_MEMBER
    assert code(workers.meet(0, of="nodes")) is ErrorCode.NOT_A_MEMBER


# --- S17, L5: time -------------------------------------------------------------------------------


def test_s17_the_time_counts_from_the_first_arrival_and_the_missing_are_named() -> None:
    lab = Lab()
    nodes = world(lab, "a", "b", "c", "d")
    nodes[0].meet("ckpt", timeout_s=3, request_id=900)
    beat_all(lab, nodes, 2)
    nodes[1].meet("ckpt", timeout_s=3, request_id=900)
    nodes[3].meet("ckpt", timeout_s=3, request_id=900)
    beat_all(lab, nodes, 1)
    lab.advance(0.2)
    texts = {refused(answer(nodes[i], 900)).message for i in (0, 1, 3)}
    (text,) = texts
    assert "barrier 'ckpt' of run 'llama' generation 1000.1, round 1: 3 of 4 came" in text
    assert "Missing: c (group rank 2), alive, last heard" in text
    assert "d (group" not in text


def test_l5_a_round_ends_one_tick_after_its_time_at_the_latest() -> None:
    lab = Lab()
    nodes = world(lab, "a", "b")
    nodes[0].meet(timeout_s=3, request_id=900)
    beat_all(lab, nodes, 2.9, 0.1)
    assert answers(nodes[0], 900) == []
    beat_all(lab, nodes, 0.2, 0.1)
    assert code(answer(nodes[0], 900)) is ErrorCode.BARRIER_TIMEOUT


def test_s17_a_late_member_gets_the_recorded_error_and_then_the_next_round() -> None:
    lab = Lab()
    nodes = world(lab, "a", "b")
    nodes[0].meet(timeout_s=1, request_id=900)
    beat_all(lab, nodes, 2)
    assert nodes[1].meet(request_id=900) == answer(nodes[0], 900)
    assert nodes[1].meet(request_id=901) is None
    nodes[0].meet(request_id=901)
    assert answer(nodes[1], 901) == Released(round=2)


def test_s17_the_servers_own_stall_is_not_charged_to_a_round() -> None:
    lab = Lab()
    nodes = world(lab, "a", "b")
    nodes[0].meet(timeout_s=3, request_id=900)
    lab.stall(8)
    nodes[1].meet(request_id=900)
    assert answer(nodes[0], 900) == Released(round=1)


# --- L3: everything that waits comes to an end ----------------------------------------------------


def test_l3_a_lost_member_ends_the_round_for_all_with_the_reason() -> None:
    lab = Lab()
    nodes = world(lab, "a", "b", "c")
    nodes[0].meet(timeout_s=60, request_id=900)
    nodes[1].meet(timeout_s=60, request_id=900)
    nodes[2].lose()
    beat_all(lab, nodes[:2], 1.2, 0.2)
    for node in nodes[:2]:
        assert code(answer(node, 900)) is ErrorCode.STALE_GENERATION
        assert "c (group rank 2) was lost" in refused(answer(node, 900)).message
    assert answers(nodes[2], 900) == []


def test_l3_a_member_that_was_there_and_is_lost_is_answered_once() -> None:
    lab = Lab()
    nodes = world(lab, "a", "b", "c")
    nodes[2].meet(timeout_s=60, request_id=900)
    nodes[2].ask(KvSet(fence=nodes[2].live_fence(), key="x", value=b""))
    nodes[2].leave("drained")
    assert len(answers(nodes[2], 900)) == 1


def test_l3_a_node_that_has_finished_breaks_the_rounds_that_need_it() -> None:
    lab = Lab()
    a, b, c = world(lab, "a", "b", "c")
    a.meet(timeout_s=60, request_id=900)
    a.meet("pair", timeout_s=60, request_id=901, members=[0, 1])
    c.finish()
    assert code(answer(a, 900)) is ErrorCode.BARRIER_BROKEN
    assert "c (group rank 2) has finished" in refused(answer(a, 900)).message
    assert answers(a, 901) == []
    b.meet("late", request_id=900)
    assert code(answer(b, 900)) is ErrorCode.BARRIER_BROKEN


def test_l3_a_rejoin_ends_the_round_of_those_who_wait() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.meet(timeout_s=60, request_id=900)
    b.join()
    assert code(answer(a, 900)) is ErrorCode.STALE_GENERATION


# --- payloads and votes --------------------------------------------------------------------------


def test_payloads_come_back_by_rank_and_absent_ones_are_told_from_empty_ones() -> None:
    lab = Lab()
    a, b, c = world(lab, "a", "b", "c")
    c.meet(payload=b"", request_id=900)
    b.meet(request_id=900)
    a.meet(payload=b"\x00\xff", request_id=900)
    assert answer(b, 900) == Released(round=1, payloads=[b"\x00\xff", None, b""])


def test_payloads_are_bounded_together_and_the_one_too_many_harms_nobody() -> None:
    lab = Lab()
    nodes = world(lab, "a", "b", "c", "d", "e")
    big = b"x" * (limits.BARRIER_PAYLOADS_BYTES_MAX // 4)
    for node in nodes[:4]:
        node.meet(payload=big, request_id=900)
    assert code(nodes[4].meet(payload=b"y", request_id=900)) is ErrorCode.LIMIT_EXCEEDED
    nodes[4].meet(request_id=901)
    released = answer(nodes[0], 900)
    assert isinstance(released, Released)
    assert released.payloads == [big] * 4 + [None]


@pytest.mark.parametrize(
    ("votes", "committed", "against"),
    [
        ((True, True), True, []),
        ((True, False), False, [1]),
        ((None, True), False, [0]),
        ((None, None), None, []),
    ],
)
def test_a_vote_commits_only_if_all_say_yes(
    votes: tuple[bool | None, ...], committed: bool | None, against: list[int]
) -> None:
    lab = Lab()
    nodes = world(lab, "a", "b")
    for node, vote in zip(nodes, votes, strict=True):
        node.meet(vote=vote, request_id=900)
    assert answer(nodes[0], 900) == Released(round=1, committed=committed, against=against)


# --- workers -------------------------------------------------------------------------------------


def test_workers_meet_by_their_global_rank() -> None:
    lab = Lab()
    workers = Workers(lab, world(lab, "a", "b"))
    assert workers.meet(1, payload=b"1") is None
    workers.meet(0, payload=b"0")
    assert workers.answer(0) == workers.answer(1) == Released(round=1, payloads=[b"0", b"1"])


def test_a_worker_that_is_lost_while_it_waits_breaks_the_round() -> None:
    lab = Lab()
    nodes = world(lab, "a", "b", "c")
    workers = Workers(lab, nodes)
    workers.meet(0)
    workers.meet(2)
    lab.lose(workers.wires[2])
    beat_all(lab, nodes, 1.4, 0.2)
    reply = refused(workers.answer(0))
    assert ErrorCode(reply.code) is ErrorCode.BARRIER_BROKEN
    assert "rank 2 on c was lost" in reply.message


def test_a_timeout_names_missing_workers_by_node_if_they_were_ever_there() -> None:
    lab = Lab()
    nodes = world(lab, "a", "b")
    workers = Workers(lab, nodes)
    workers.meet(0, count=3, timeout_ms=1000)
    beat_all(lab, nodes, 1.2, 0.2)
    text = refused(workers.answer(0)).message
    assert "rank 1 on b, alive" in text
    assert "rank 2, not connected to the server" in text


def test_two_processes_with_one_rank_are_not_two_members() -> None:
    lab = Lab()
    nodes = world(lab, "a", "b")
    workers = Workers(lab, nodes)
    workers.meet(0)
    joined = nodes[1].joined
    assert joined is not None
    twin = lab.connect()
    hello = HelloWorker(
        run=RUN, node_id="b", fence=joined.fence, rank=0, worker_token=joined.worker_token,
        incarnation=b"t" * 16,
    )  # fmt: skip
    lab.send(twin, 1, hello)
    reply = lab.send(
        twin, 2, Barrier(fence=joined.fence, name="b", of="workers", count=2, timeout_ms=1000)
    )
    assert code(reply) is ErrorCode.DUPLICATE_RANK
    workers.meet(1)
    assert workers.answer(0) == Released(round=1)


# --- so many of anybody --------------------------------------------------------------------------


def test_any_so_many_clients_of_a_run_meet_without_joining_it() -> None:
    lab = Lab()
    a, b = lab.nodes("a", "b")
    assert visit(a) is None
    assert lab.status().phase == "idle"
    visit(b)
    assert answer(a, 900) == answer(b, 900) == Released(round=1)


def test_a_client_that_goes_while_it_waits_is_not_counted_any_more() -> None:
    lab = Lab()
    a, b, c = lab.nodes("a", "b", "c")
    visit(a)
    a.lose()
    beat_all(lab, [b, c], 1.4, 0.2)
    visit(b)
    assert answers(b, 900) == []
    visit(c)
    assert answer(b, 900) == Released(round=1)


def test_a_timeout_of_so_many_says_who_is_there() -> None:
    lab = Lab()
    (a,) = lab.nodes("a")
    visit(a, count=2, timeout_s=1)
    beat_all(lab, [a], 1.2, 0.2)
    assert "1 of 2 came within 1.0 s. Here: a." in refused(answer(a, 900)).message


def test_a_run_is_not_forgotten_while_somebody_waits_in_it() -> None:
    lab = Lab(Settings(run_keep_s=2))
    a, b = lab.nodes("a", "b")
    visit(a, timeout_s=30)
    beat_all(lab, [a, b], 8)
    visit(b)
    assert answer(a, 900) == Released(round=1)
    beat_all(lab, [a, b], 3)
    assert RUN not in lab.core.tables.runs


def test_two_runs_and_two_names_never_meet() -> None:
    lab = Lab()
    a, b = lab.node("a", run="one"), lab.node("b", run="two")
    visit(a)
    visit(b)
    visit(b, name="other", request_id=901)
    assert answers(a, 900) == answers(b, 900) == answers(b, 901) == []


# --- limits and status ---------------------------------------------------------------------------


def test_names_that_are_not_in_use_make_way_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BARRIER_NAMES_MAX", 3)
    lab = Lab()
    a, b = world(lab, "a", "b")
    for step in range(10):
        a.meet(f"step-{step}", request_id=900 + step)
        b.meet(f"step-{step}", request_id=900 + step)
        assert answer(a, 900 + step) == Released(round=1)
    assert len(lab.run().generation.barriers) == 3  # type: ignore[union-attr]
    for name in ("x", "y", "z"):
        a.meet(name, timeout_s=60)
    assert code(a.meet("one-too-many")) is ErrorCode.LIMIT_EXCEEDED


def test_status_shows_who_is_waited_for() -> None:
    lab = Lab()
    nodes = world(lab, "a", "b", "c")
    nodes[0].meet("ckpt", timeout_s=30)
    nodes[0].meet("ckpt", timeout_s=30)
    beat_all(lab, nodes, 2)
    reply = lab.send(lab.admin(), 2, ShowGeneration(run=RUN))
    assert isinstance(reply, GenerationStatus)
    (row,) = reply.barriers
    assert (row.name, row.round, row.arrived, row.needed) == ("ckpt", 1, 1, 3)
    assert row.missing == ["b (group rank 1)", "c (group rank 2)"]
    assert (round(row.age_ms, -2), round(row.left_ms, -2)) == (2000, 28_000)


# --- what other systems promise (PEERS.md) --------------------------------------------------------


def _jax_first_caller_fixes_the_deadline(lab: Lab) -> None:
    nodes = world(lab, "a", "b", "c")
    nodes[0].meet(timeout_s=1, request_id=900)
    nodes[1].meet(timeout_s=500, request_id=900)
    beat_all(lab, nodes, 1.2, 0.2)
    assert code(answer(nodes[1], 900)) is ErrorCode.BARRIER_TIMEOUT


def _jax_other_arguments_fail_everyone(lab: Lab) -> None:
    a, b = world(lab, "a", "b")
    a.meet(request_id=900)
    b.meet(members=[1, 0], request_id=900)
    assert code(answer(a, 900)) is code(answer(b, 900)) is ErrorCode.BARRIER_MISMATCH


def _jax_a_result_is_replayed(lab: Lab) -> None:
    a, b = world(lab, "a", "b")
    a.meet(request_id=900)
    b.meet(request_id=900)
    assert a.meet(request_id=900) == b.meet(request_id=900) == Released(round=1)


def _jax_a_dead_member_fails_it(lab: Lab) -> None:
    nodes = world(lab, "a", "b")
    nodes[0].meet(timeout_s=600, request_id=900)
    nodes[1].lose()
    beat_all(lab, nodes[:1], 1.4, 0.2)
    assert isinstance(answer(nodes[0], 900), Error)


def _jax_a_member_that_restarted_is_no_arrival(lab: Lab) -> None:
    nodes = world(lab, "a", "b", "c")
    nodes[2].meet(timeout_s=600, request_id=900)
    lab.node("c", rules=policy(3), incarnation=2)
    nodes[0].ask(Barrier(fence=nodes[0].live_fence(), name="b", timeout_ms=1), 900)
    assert code(answer(nodes[0], 900)) is ErrorCode.STALE_GENERATION


def _jax_stragglers_are_named_and_cut(lab: Lab) -> None:
    nodes = world(lab, *(f"n{i:02}" for i in range(12)))
    nodes[0].meet(timeout_s=1, request_id=900)
    beat_all(lab, nodes, 1.2, 0.2)
    text = refused(answer(nodes[0], 900)).message
    assert "n01 (group rank 1)" in text
    assert "and 3 more" in text


def _not_jax_a_stranger_fails_nobody(lab: Lab) -> None:
    a, b, c = world(lab, "a", "b", "c")
    a.meet(members=[0, 1], request_id=900)
    c.meet(members=[0, 1])
    b.meet(members=[0, 1], request_id=900)
    assert isinstance(answer(a, 900), Released)


def _not_xla_outcomes_do_not_pile_up(lab: Lab) -> None:
    a, b = world(lab, "a", "b")
    for _ in range(50):
        a.meet()
        b.meet()
    barrier = lab.run().generation.barriers.find("b")  # type: ignore[union-attr]
    assert barrier is not None
    assert len(barrier.decisions) == limits.BARRIER_ROUNDS_KEPT


def _kazoo_a_lost_client_leaves_the_double_barrier(lab: Lab) -> None:
    a, b = lab.nodes("a", "b")
    visit(a)
    a.lose()
    beat_all(lab, [b], 1.4, 0.2)
    visit(b)
    assert answers(b, 900) == []


def _kazoo_a_barrier_is_left_as_it_was_entered(lab: Lab) -> None:
    a, b = lab.nodes("a", "b")
    for request_id in (900, 901):  # enter and leave are two rounds
        visit(a, request_id=request_id)
        visit(b, request_id=request_id)
    assert answer(a, 901) == Released(round=2)


def _etcd_create_if_absent(lab: Lab) -> None:
    a, b = world(lab, "a", "b")
    mine = a.ask(KvCas(fence=a.live_fence(), key="leader", value=b"a", revision=0))
    theirs = b.ask(KvCas(fence=b.live_fence(), key="leader", value=b"b", revision=0))
    assert mine == KvSwapped(swapped=True, value=b"a", revision=1)
    assert theirs == KvSwapped(swapped=False, value=b"a", revision=1)


def _etcd_compare_on_the_revision_sees_a_value_that_came_back(lab: Lab) -> None:
    a, b = world(lab, "a", "b")
    a.set("k", b"1")
    b.set("k", b"2")
    b.set("k", b"1")
    stale = KvCas(fence=a.live_fence(), key="k", value=b"3", revision=1)
    assert a.ask(stale) == KvSwapped(swapped=False, value=b"1", revision=3)


def _etcd_a_deleted_key_starts_anew_with_a_later_revision(lab: Lab) -> None:
    a, _ = world(lab, "a", "b")
    a.set("k", b"1")
    a.ask(KvDelete(fence=a.live_fence(), keys=["k"]))
    again = a.ask(KvCas(fence=a.live_fence(), key="k", value=b"2"))
    assert again == KvSwapped(swapped=True, value=b"2", revision=3)


def _etcd_a_range_is_in_order(lab: Lab) -> None:
    a, _ = world(lab, "a", "b")
    for key in ("n/2", "n/10", "m", "n/1"):
        a.set(key)
    page = a.ask(KvList(fence=a.live_fence(), prefix="n/"))
    assert isinstance(page, KvPage)
    assert [entry.key for entry in page.entries] == ["n/1", "n/10", "n/2"]
    assert page.revision == 4


PROMISES: list[Callable[[Lab], None]] = [
    _jax_first_caller_fixes_the_deadline,
    _jax_other_arguments_fail_everyone,
    _jax_a_result_is_replayed,
    _jax_a_dead_member_fails_it,
    _jax_a_member_that_restarted_is_no_arrival,
    _jax_stragglers_are_named_and_cut,
    _not_jax_a_stranger_fails_nobody,
    _not_xla_outcomes_do_not_pile_up,
    _kazoo_a_lost_client_leaves_the_double_barrier,
    _kazoo_a_barrier_is_left_as_it_was_entered,
    _etcd_create_if_absent,
    _etcd_compare_on_the_revision_sees_a_value_that_came_back,
    _etcd_a_deleted_key_starts_anew_with_a_later_revision,
    _etcd_a_range_is_in_order,
]


@pytest.mark.parametrize("promise", PROMISES, ids=[p.__name__.strip("_") for p in PROMISES])
def test_promises_of_other_systems(promise: Callable[[Lab], None]) -> None:
    promise(Lab())


def test_a_round_whose_member_is_lost_in_the_moment_in_which_its_time_is_up_is_decided_once() -> (
    None
):
    lab = Lab()
    a, b = world(lab, "a", "b")
    b.lose()
    a.meet(timeout_s=1.0, request_id=900)
    lab.stall(0.19)
    for _ in range(5):
        lab.stall(0.19)  # each look at the clock finds more than one thing due
    lab.advance(1)
    assert len(answers(a, 900)) == 1


def test_a_barrier_of_workers_needs_to_know_how_many() -> None:
    lab = Lab()
    (a,) = world(lab, "a")
    wire, _ = a.worker()
    ask = Barrier(fence=a.live_fence(), name="b", of="workers", timeout_ms=1000)
    reply = lab.send(wire, 2, ask)
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.MALFORMED
    assert lab.send(
        wire, 3, Barrier(fence=a.live_fence(), name="b", of="workers", count=1, timeout_ms=1)
    )


def test_a_client_that_goes_while_it_waits_takes_its_payload_along() -> None:
    lab = Lab()
    big = b"x" * (limits.BARRIER_PAYLOADS_BYTES_MAX // 2)
    keeper, *others = lab.nodes("keeper", "a", "b", "c")
    ask = Barrier(name="b", of="count", count=3, timeout_ms=60_000)
    keeper.ask(ask, 900)
    for node in others:
        node.ask(Barrier(name="b", of="count", count=3, timeout_ms=60_000, payload=big), 900)
        assert answers(node, 900) == []
        node.leave("drained")
    assert answers(keeper, 900) == []


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "x\x7f", "\u2028", "ends\n"])
def test_t16_a_name_with_control_characters_is_refused_and_makes_no_barrier(name: str) -> None:
    lab = Lab()
    a, _ = world(lab, "a", "b")
    error = refused(a.meet(name))
    assert error.code == ErrorCode.MALFORMED
    assert error.message.isprintable()
    assert code(visit(a, name)) == ErrorCode.MALFORMED
    generation = lab.run().live
    assert generation is not None
    assert not len(generation.barriers)
    assert not len(lab.run().barriers)
    assert a.waiting == 0
