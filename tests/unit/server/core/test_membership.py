"""Join, finish, leave, close: what is accepted, what is refused, and with which words."""

import pytest

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import CloseRun, Done, Error, Fence, Finished, Join, Joined, KvSet, Leave
from rdzv_server.core.settings import Settings
from tests.lab import EPOCH, RUN, Lab, beat_all, policy

# --- the policy of a run -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "word"),
    [
        (policy(1, 2), "min_nodes"),
        (policy(2, 3), "max_nodes"),
        (policy(2, 2, node_unit=2), "node_unit"),
    ],
)
def test_a_node_that_disagrees_is_refused_with_both_values(mine: object, word: str) -> None:
    lab = Lab()
    lab.node("a", rules=policy(2)).join()
    b = lab.node("b", rules=mine).join()
    assert b.code is ErrorCode.POLICY_MISMATCH
    assert b.error is not None
    assert word in b.error.message
    assert "from a" in b.error.message
    assert "b asks for" in b.error.message
    assert lab.reported("policy_mismatch")


def test_other_timeouts_are_a_notice_and_the_first_ones_stay() -> None:
    lab = Lab()
    lab.node("a", rules=policy(3, join_timeout_s=30)).join()
    b = lab.node("b", rules=policy(3, join_timeout_s=60)).join()
    assert b.error is None
    assert "join_timeout: the run keeps 30000" in b.notices[0]


def test_the_policy_is_free_again_when_the_last_node_has_left() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(2)).join()
    a.leave("drained")
    b = lab.node("b", rules=policy(1)).join()
    assert b.joined is not None


def test_a_policy_that_no_world_can_meet_is_refused_and_leaves_no_run_behind() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(3, 3, node_unit=2)).join()
    assert a.code is ErrorCode.MALFORMED
    assert a.error is not None
    assert "multiple of node_unit 2" in a.error.message
    assert RUN not in lab.core.tables.runs


def test_b04d_strangers_under_the_default_run_id_are_never_merged() -> None:
    lab = Lab()
    ours = policy(2, owner="ann/1111")
    a = lab.node("a", run="none", rules=ours).join()
    stranger = lab.node("b", run="none", rules=policy(2, owner="bob/2222")).join()
    assert stranger.code is ErrorCode.POLICY_MISMATCH
    (report,) = lab.reported("policy_mismatch")
    assert (report.level, report.run, report.node) == ("warning", "none", "b")
    assert report.fields["first"] == "a"
    friend = lab.node("c", run="none", rules=ours).join()
    assert friend.joined is not None
    assert any("--rdzv-id" in notice for notice in a.notices)


def test_owners_do_not_matter_under_an_id_of_its_own() -> None:
    lab = Lab()
    lab.node("a", rules=policy(2, owner="ann")).join()
    assert lab.node("b", rules=policy(2, owner="bob")).join().joined is not None


def test_too_many_members_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MEMBERS_PER_RUN_MAX", 2)
    lab = Lab()
    lab.world("a", "b", rules=policy(2))
    assert lab.node("c", rules=policy(2)).join().code is ErrorCode.LIMIT_EXCEEDED


def test_too_many_runs_are_refused_unless_one_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RUNS_MAX", 2)
    lab = Lab()
    first = lab.node("a", run="r1", rules=policy(2)).join()
    lab.node("a", run="r2", rules=policy(2)).join()
    assert lab.node("a", run="r3", rules=policy(1)).join().code is ErrorCode.LIMIT_EXCEEDED
    first.leave("drained")
    assert lab.node("b", run="r3", rules=policy(1)).join().joined is not None
    assert "r1" not in lab.core.tables.runs


# --- joining -------------------------------------------------------------------------------------


def test_s5_a_join_under_the_same_request_id_counts_once() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(2)).join()
    a.ask(Join(policy=policy(2)), a.join_id)
    assert lab.status().members == 1
    lab.node("b", rules=policy(2)).join()
    assert len(a.wire.replies(a.join_id)) == 1


def test_a_newer_join_of_a_node_takes_the_place_of_its_older_one() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(2)).join()
    older = a.join_id
    a.join()
    (refused,) = a.wire.replies(older)
    assert isinstance(refused, Error)
    assert refused.code == ErrorCode.SUPERSEDED
    lab.node("b", rules=policy(2)).join()
    assert a.joined is not None


def test_s23_the_recorded_assignment_is_repeated_to_a_retry() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    a.lose()
    a.resume()
    a.ask(Join(policy=policy(2)), a.join_id)
    assert a.joined is not None
    assert lab.run().live is not None


def test_s8_an_assignment_that_is_no_longer_true_is_not_repeated() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(1, 2))
    first = a.live_fence()
    a.lose()
    b.leave("drained")
    lab.advance(0.2)
    a.resume()
    a.ask(Join(policy=policy(1, 2)), a.join_id)
    assert a.joined is not None
    assert a.joined.fence > first, "the retry waited anew and got the next generation"


def test_a_participant_that_asks_with_an_older_generation_is_told_the_live_one_again() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    fence = a.live_fence()
    a.join(again=False)
    assert a.live_fence() == fence
    a.fence = Fence(1, 0)
    a.join(last=Fence(1, 0))
    assert a.live_fence() == fence
    assert lab.run().number == 1


def test_a_participant_that_asks_with_the_live_generation_ends_it() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    a.join()
    assert b.view.ended is not None
    assert b.view.ended.kind == "rejoined"
    assert "a (group rank 0) rejoined" in b.view.ended.reason
    assert a.joined is None
    b.join()
    assert (a.rank, b.rank) == (0, 1)


def test_a_rejoin_while_a_connection_is_gone_names_the_node_it_belongs_to() -> None:
    """Workers die of a broken collective before anybody knows for sure which node is gone."""
    lab = Lab()
    a, b, c = lab.world("a", "b", "c", rules=policy(2, 3))
    c.lose()
    lab.advance(0.3)
    a.join()
    assert b.view.ended is not None
    assert b.ended_kind == "rejoined"
    assert "the connection of c (group rank 2) closed 0.3 s ago" in b.view.ended.reason


def test_a_generation_that_does_not_exist_yet_is_refused() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    a.join(last=Fence(EPOCH, 2))
    assert a.code is ErrorCode.MALFORMED


def test_b27c_two_living_nodes_with_one_rank_hint_are_both_named() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(3), hint=1).join()
    b = lab.node("b", rules=policy(3), hint=1).join()
    assert b.code is ErrorCode.DUPLICATE_RANK
    assert b.error is not None
    assert "b asks for rank hint 1, which a already has" in b.error.message
    assert a.error is None
    assert lab.status().members == 1


def test_a_rank_hint_held_by_a_suspect_parks_the_join_until_that_is_settled() -> None:
    lab = Lab()
    rules = policy(2)
    a = lab.node("a", rules=rules, hint=0).join()
    a.lose()
    new = lab.node("a2", rules=rules, hint=0).join()
    other = lab.node("b", rules=rules, hint=1).join()
    assert new.answer is None
    assert lab.run().live is None, "neither the suspect nor its rival counts yet"
    lab.advance(1.3)
    assert (new.rank, other.rank) == (0, 1)


def test_of_two_joins_that_wait_for_a_suspect_s_rank_hint_the_first_gets_it() -> None:
    lab = Lab()
    rules = policy(3)
    a = lab.node("a", rules=rules, hint=0).join()
    a.lose()
    first = lab.node("b", rules=rules, hint=0).join()
    second = lab.node("c", rules=rules, hint=0).join()
    assert first.answer is second.answer is None
    lab.advance(1.2)
    assert first.answer is None, "it waits for the others now"
    assert second.code == ErrorCode.DUPLICATE_RANK
    assert second.error is not None
    assert "which b already has" in second.error.message


def test_a_rank_hint_stays_with_a_suspect_that_comes_back() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(2), hint=0).join()
    a.lose()
    new = lab.node("a2", rules=policy(2), hint=0).join()
    a.resume()
    assert new.code is ErrorCode.DUPLICATE_RANK
    a.ask(Join(policy=policy(2), rank_hint=0), a.join_id)
    lab.node("b", rules=policy(2), hint=1).join()
    assert a.joined is not None


def test_a_finished_node_s_rank_hint_is_free() -> None:
    lab = Lab()
    rules = policy(2, 3)
    a, b = lab.node("a", rules=rules, hint=0).join(), lab.node("b", rules=rules, hint=1).join()
    lab.advance(2.2)
    a.finish()
    assert lab.node("c", rules=rules, hint=0).join().error is None
    assert b.waiting == 0


# --- finishing and leaving -----------------------------------------------------------------------


def test_s9_a_finished_node_s_departure_does_not_end_the_generation() -> None:
    lab = Lab()
    a, b, c = lab.world("a", "b", "c", rules=policy(3))
    a.finish()
    a.lose()
    b.finish()
    b.leave("finished")
    beat_all(lab, [c], 8)
    assert c.ended_kind == ""
    c.finish()
    assert c.ended_kind == "finished"
    assert c.waiting == 0
    assert lab.status().phase == "ended"


def test_finished_is_accepted_just_after_the_generation_ended() -> None:
    lab = Lab()
    a, b, _ = lab.world("a", "b", "c", rules=policy(2, 3))
    b.join()
    assert a.ask(Finished(fence=a.live_fence())) == Done()
    assert lab.members()["a"].state == "finished"


def test_finished_of_a_generation_is_refused_once_the_node_has_asked_for_the_next_one() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    old = b.live_fence()
    b.join()
    reply = b.ask(Finished(fence=old))
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.STALE_GENERATION
    a.join()
    assert (a.rank, b.rank) == (0, 1)


def test_finished_needs_a_participant_of_that_generation() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    spare = lab.node("c", rules=policy(2)).join()
    for node, fence, code in (
        (a, Fence(1, 1), ErrorCode.STALE_GENERATION),
        (spare, a.live_fence(), ErrorCode.NOT_A_MEMBER),
    ):
        reply = node.ask(Finished(fence=fence))
        assert isinstance(reply, Error)
        assert reply.code == code


@pytest.mark.parametrize("kind", ["failed", "drained"])
def test_s9_an_unfinished_leave_ends_the_generation_for_all_with_one_reason(kind: str) -> None:
    lab = Lab()
    a, b, c = lab.world("a", "b", "c", rules=policy(1, 3))
    a.leave(kind, detail="why", exit_code=7)
    assert b.view == c.view
    assert b.view.ended is not None
    assert (b.view.ended.kind, b.view.ended.node_id) == (kind, "a")
    assert "exit code 7: why" in b.view.ended.reason
    assert b.waiting > 0
    a.lose()
    lab.advance(2)
    assert b.view == c.view


def test_leaving_twice_is_fine_and_so_is_leaving_without_having_joined() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    a.leave("drained")
    first = b.view
    a.leave("failed")
    assert b.view == first
    stranger = lab.node("z")
    assert stranger.ask(Leave(kind="failed")) == Done()


def test_what_a_node_still_waits_for_ends_when_it_leaves() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(2)).join()
    a.leave("drained")
    assert a.code is ErrorCode.NOT_A_MEMBER
    b, _ = lab.world("b", "c", rules=policy(2))
    b.get("k", 10, request_id=500)
    b.leave("drained")
    (answer,) = b.wire.replies(500)
    assert isinstance(answer, Error)


def test_b16_too_few_after_an_orderly_failure_tells_the_rest_to_stop() -> None:
    lab = Lab()
    a, b, c = lab.world("a", "b", "c", rules=policy(3))
    c.leave("failed", exit_code=7)
    assert a.view.ended is not None
    assert "2 of min 3 are left" in a.view.ended.reason
    for node in (a, b):
        node.join()
        assert node.code is ErrorCode.RUN_FAILED
        assert node.error is not None
        assert "c (group rank 2) failed with exit code 7" in node.error.message
        assert "2 of min 3 nodes are left" in node.error.message


def test_b16_a_fresh_node_is_not_told_to_stop_and_can_make_the_rest_go_on() -> None:
    lab = Lab()
    a, b, c = lab.world("a", "b", "c", rules=policy(3))
    c.leave("failed", exit_code=7)
    fresh = lab.node("d", rules=policy(3)).join()
    assert fresh.answer is None
    a.join()
    b.join()
    assert sorted(n.rank for n in (a, b, fresh)) == [0, 1, 2]


def test_below_min_wait_lets_the_rest_wait_after_a_failure() -> None:
    lab = Lab()
    rules = policy(3, below_min="wait")
    a, b, c = lab.world("a", "b", "c", rules=rules)
    c.leave("failed", exit_code=7)
    a.join()
    b.join()
    assert (a.answer, b.answer) == (None, None)
    lab.node("d", rules=rules).join()
    assert a.joined is not None


def test_b17_too_few_after_a_crash_wait_for_a_replacement() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    b.lose()
    lab.advance(1.3)
    a.join()
    assert a.answer is None
    assert lab.status().reason == "1 of min 2 nodes joined"
    lab.node("c", rules=policy(2)).join()
    assert a.rank == 0


def test_the_dead_end_of_the_exit_barrier_is_a_clear_outcome_at_once() -> None:
    """One node has finished and waits for the others; another rejoins (TORCH.md 3.7)."""
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    a.finish()
    a.add("num_members")
    a.wait("last_member", timeout_s=300, request_id=77)
    b.join()
    (woken,) = a.wire.replies(77)
    assert isinstance(woken, Error)
    assert woken.code == ErrorCode.STALE_GENERATION
    assert b.code is ErrorCode.RUN_FAILED
    assert b.error is not None
    assert "a (group rank 0) finished" in b.error.message


def test_the_dead_end_is_also_seen_when_finished_comes_after_the_rejoin() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    b.join()
    assert b.answer is None
    a.ask(Finished(fence=a.live_fence()))
    assert b.code is ErrorCode.RUN_FAILED


def test_enough_unfinished_nodes_form_a_world_without_the_finished_one() -> None:
    lab = Lab()
    a, b, c = lab.world("a", "b", "c", rules=policy(2, 3))
    a.finish()
    b.join()
    c.join()
    assert (b.rank, c.rank) == (0, 1)
    assert c.joined is not None
    assert c.joined.world_size == 2


# --- closing -------------------------------------------------------------------------------------


def test_a_closed_run_takes_joins_after_its_keep_time_though_it_is_still_used() -> None:
    lab = Lab(Settings(run_keep_s=4))
    a, b = lab.world("a", "b", rules=policy(2))
    a.ask(CloseRun(run=RUN))
    b.leave("failed")
    for _ in range(3):
        lab.advance(1)
        for node in (a, b):
            node.ask(KvSet(key="k", value=b""))  # of the run, which is kept for it
    a.join()
    assert a.code is ErrorCode.RUN_CLOSED
    lab.advance(1.1)
    a.join(again=False)
    b.join(again=False)
    assert (a.rank, b.rank) == (0, 1)


def test_a_closed_run_ends_for_all_and_refuses_joins_for_its_keep_time() -> None:
    lab = Lab(Settings(run_keep_s=20))
    a, b = lab.world("a", "b", rules=policy(2))
    a.ask(CloseRun(run=RUN, detail="enough"))
    assert b.view.ended is not None
    assert b.view.ended.kind == "closed"
    b.join()
    assert b.code is ErrorCode.RUN_CLOSED
    assert b.error is not None
    assert "was closed by node a: enough" in b.error.message
    for node in (a, b):
        node.leave("drained")
        node.lose()
    lab.advance(21)
    fresh = lab.node("c", rules=policy(1)).join()
    assert fresh.joined is not None
    assert fresh.joined.fence.generation > 1


def test_waiting_joins_learn_that_the_run_was_closed() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(2)).join()
    reply = lab.send(lab.admin(), 9, CloseRun(run=RUN))
    assert reply == Done()
    assert a.code is ErrorCode.RUN_CLOSED


def test_only_an_existing_run_of_one_s_own_can_be_closed() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    for reply in (
        lab.send(lab.admin(), 9, CloseRun(run="nope")),
        a.ask(CloseRun(run="other")),
    ):
        assert isinstance(reply, Error)
        assert reply.code == ErrorCode.UNKNOWN_RUN
    assert a.ask(CloseRun(run=RUN)) == a.ask(CloseRun(run=RUN)) == Done()


def test_a_join_answer_is_only_ever_an_assignment_or_an_error() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(1)).join()
    assert isinstance(a.answer, Joined)


def test_s31_a_join_that_knows_a_later_epoch_of_another_clock_gets_its_place() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    a.join(last=Fence(EPOCH + 1, 7))
    assert a.joined is not None
    assert a.joined.fence == Fence(EPOCH, 1)
    a.join(last=Fence(EPOCH, 7))
    assert a.code is ErrorCode.MALFORMED
