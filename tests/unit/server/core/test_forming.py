"""How worlds form: quorum, last call, deadlines, newcomers, standbys, forgetting."""

import pytest

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Policy
from rdzv_server.core import generations
from rdzv_server.core.settings import Settings
from rdzv_server.core.views import PROGRESS_S
from tests.lab import RUN, Lab, Node, beat_all, policy


def worlds(*nodes: Node) -> set[int]:
    return {n.joined.world_size for n in nodes if n.joined is not None}


# --- the first world -----------------------------------------------------------------------------


def test_l1_the_world_forms_with_the_join_that_fills_it() -> None:
    lab = Lab()
    nodes = [lab.node(f"n{i}", rules=policy(2, 4)).join() for i in range(4)]
    assert worlds(*nodes) == {4}
    assert lab.run().number == 1


def test_l1_the_first_last_call_is_waited_once_from_the_moment_min_is_met() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(2, 4)).join()
    lab.advance(1.5)
    b = lab.node("b", rules=policy(2, 4)).join()
    lab.advance(1.0)
    c = lab.node("c", rules=policy(2, 4)).join()
    lab.advance(0.9)
    assert c.answer is None
    lab.advance(0.2)
    assert worlds(a, b, c) == {3}


def test_the_last_call_begins_anew_when_min_was_lost_meanwhile() -> None:
    lab = Lab()
    lab.node("a", rules=policy(2, 4)).join()
    b = lab.node("b", rules=policy(2, 4)).join()
    lab.advance(1.5)
    b.leave("drained")
    c = lab.node("c", rules=policy(2, 4)).join()
    lab.advance(1.5)
    assert c.answer is None
    lab.advance(0.7)
    assert c.joined is not None


def test_the_first_last_call_ends_when_the_expected_nodes_are_in() -> None:
    lab = Lab()
    expected = ("n1", "n2", "n3")
    nodes = [lab.node(n, rules=policy(2, 8), expected=expected).join() for n in ("n1", "n2")]
    lab.advance(1)
    assert nodes[0].progress is not None
    assert nodes[0].progress.waiting_for == ["n3"]
    nodes.append(lab.node("n3", rules=policy(2, 8), expected=expected).join())
    assert worlds(*nodes) == {3}


def test_s7_a_join_whose_connection_is_gone_does_not_count_for_quorum() -> None:
    lab = Lab()
    x = lab.node("x", rules=policy(3)).join()
    lab.node("a", rules=policy(3)).join()
    x.lose()
    b = lab.node("b", rules=policy(3)).join()
    assert b.answer is None
    lab.advance(1.3)
    c = lab.node("c", rules=policy(3)).join()
    assert worlds(b, c) == {3}
    assert {p.node_id for p in lab.run().generation.participants} == {"a", "b", "c"}  # type: ignore[union-attr]


def test_a_join_counts_again_when_its_connection_is_back_in_time() -> None:
    lab = Lab()
    x = lab.node("x", rules=policy(2)).join()
    x.lose()
    a = lab.node("a", rules=policy(2)).join()
    assert a.answer is None
    x.resume()
    assert a.joined is not None, "the join itself was held, only its connection was gone"


# --- deadlines -----------------------------------------------------------------------------------


def test_l3_a_join_that_nobody_meets_ends_with_the_names_of_who_is_there_and_missing() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2, join_timeout_s=12))
    b.lose()
    lab.advance(1.3)
    a.join()
    beat_all(lab, [a], 11)
    assert a.answer is None
    beat_all(lab, [a], 2)
    assert a.code is ErrorCode.JOIN_TIMEOUT
    assert a.error is not None
    text = a.error.message
    assert "only 1 of min 2 nodes joined within 12 s" in text
    assert "Joined: a." in text
    assert "Missing: b." in text
    assert "b (group rank 1) was lost" in text


def test_b04c_the_timeout_names_other_runs_that_wait_on_this_server() -> None:
    lab = Lab()
    a = lab.node("a", run="x1", rules=policy(2, join_timeout_s=3)).join()
    lab.node("b", run="x2", rules=policy(2)).join()
    beat_all(lab, [a], 4)
    assert a.error is not None
    assert "Other runs wait for nodes on this server: 'x2' (1 node)" in a.error.message


def test_b08_a_node_not_seen_before_renews_the_patience_of_all() -> None:
    lab = Lab()
    rules = policy(4, join_timeout_s=10)
    nodes = [lab.node("n0", rules=rules, lease_s=60).join()]
    for i in (1, 2, 3):
        lab.advance(8)
        nodes.append(lab.node(f"n{i}", rules=rules, lease_s=60).join())
    assert worlds(*nodes) == {4}


def test_a_node_seen_before_renews_nobody_s_patience_but_its_own() -> None:
    lab = Lab()
    rules = policy(3, join_timeout_s=10)
    a = lab.node("a", rules=rules, lease_s=60).join()
    b = lab.node("b", rules=rules, lease_s=60).join()
    lab.advance(6)
    b.leave("drained")
    b.join()
    lab.advance(4.2)
    assert a.code is ErrorCode.JOIN_TIMEOUT
    assert b.answer is None


def test_strangers_cannot_renew_patience_for_ever() -> None:
    lab = Lab()
    rules = policy(3, join_timeout_s=10)
    a = lab.node("a", rules=rules, lease_s=1000).join()
    for i in range(20):
        lab.advance(5)
        if a.answer is not None:
            break
        lab.node(f"x{i}", rules=rules).join().leave("drained")
    assert a.code is ErrorCode.JOIN_TIMEOUT
    assert i < 8


def test_what_a_run_remembers_of_passers_by_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MEMBERS_PER_RUN_MAX", 5)
    monkeypatch.setattr(limits, "EXPECTED_NODES_MAX", 3)
    lab = Lab()
    lab.node("a", rules=policy(3), lease_s=60).join()
    for i in range(20):
        lab.node(f"x{i}", rules=policy(3), expected=(f"e{i}",)).join().leave("drained")
    assert len(lab.run().seen) == 5
    assert list(lab.run().expected) == ["e0", "e1", "e2"]


def test_min_met_at_the_end_of_patience_forms_instead_of_failing() -> None:
    lab = Lab()
    rules = policy(2, 4, join_timeout_s=3, last_call_s=60)
    a = lab.node("a", rules=rules, lease_s=60).join()
    lab.advance(2.5)
    b = lab.node("b", rules=rules, lease_s=60).join()
    lab.advance(0.4)
    assert b.answer is None
    lab.advance(2.8)
    assert worlds(a, b) == {2}


# --- after a loss --------------------------------------------------------------------------------


def test_l4_survivors_form_without_the_dead_one_and_without_a_last_call() -> None:
    lab = Lab()
    a, b, c = lab.world("a", "b", "c", rules=policy(2, 3))
    c.lose()
    lab.advance(1.2)
    a.join()
    assert a.answer is None, "b lives and has not rejoined yet"
    b.join()
    assert worlds(a, b) == {2}
    assert (a.rank, b.rank) == (0, 1)


def test_l4_a_survivor_that_dies_before_it_rejoins_does_not_block_the_others() -> None:
    lab = Lab()
    a, b, c, d = lab.world("a", "b", "c", "d", rules=policy(2, 4))
    d.lose()
    lab.advance(1.2)
    a.join()
    b.join()
    c.lose()
    lab.advance(1.2)
    assert worlds(a, b) == {2}


def test_a_silent_survivor_is_waited_for_until_its_lease_ends() -> None:
    lab = Lab()
    a, b, _, d = lab.world("a", "b", "silent", "d", rules=policy(2, 4))
    a.leave("drained")
    b.join()
    d.join()
    beat_all(lab, [b, d], 4)
    assert b.answer is None
    beat_all(lab, [b, d], 2)
    assert worlds(b, d) == {2}


def test_b28_ranks_stay_with_their_nodes_through_ten_losses() -> None:
    lab = Lab()
    rules = policy(3, 4)
    world = {n.name: n for n in lab.world("a", "b", "c", "d", rules=rules)}
    for round_ in range(10):
        order = sorted(world.values(), key=lambda n: n.rank)
        victim = order[2]
        victim.lose()
        del world[victim.name]
        lab.advance(1.2)
        for node in world.values():
            node.join()
        survivors = [n for n in order if n is not victim]
        assert [n.rank for n in survivors] == [0, 1, 2]
        new = lab.node(f"new{round_}", rules=rules).join()
        for node in world.values():
            node.join()
        assert [n.rank for n in survivors] == [0, 1, 2]
        assert new.rank == 3
        world[new.name] = new
        for node in world.values():
            node.beat()


def test_b28_after_rank_0_s_death_the_lowest_old_rank_becomes_0() -> None:
    lab = Lab()
    nodes = lab.world("a", "b", "c", "d", rules=policy(3, 4))
    nodes[0].lose()
    lab.advance(1.2)
    for node in reversed(nodes[1:]):
        node.join()
    assert [n.rank for n in nodes[1:]] == [0, 1, 2]


# --- newcomers and standbys ----------------------------------------------------------------------


def test_s12_a_join_while_a_generation_lives_never_changes_it() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2, 4))
    new = lab.node("c", rules=policy(2, 4)).join()
    assert new.answer is None
    assert lab.members()["c"].state == "standby"
    assert a.view.ended is None


def test_s12_joins_beyond_max_wait_without_error_and_without_deadline() -> None:
    lab = Lab()
    nodes = lab.world("a", "b", rules=policy(2, join_timeout_s=3))
    spare = lab.node("c", rules=policy(2, join_timeout_s=3)).join()
    beat_all(lab, [*nodes, spare], 20)
    assert spare.answer is None
    assert nodes[0].waiting == nodes[1].waiting == 0
    assert spare.progress is not None
    assert spare.progress.standby


def test_b29_a_standby_is_in_the_next_world_when_a_place_is_free() -> None:
    lab = Lab()
    nodes = lab.world("a", "b", "c", "d", rules=policy(4))
    spare = lab.node("e", rules=policy(4)).join()
    nodes[1].lose()
    lab.advance(1.2)
    for node in (nodes[0], nodes[2], nodes[3]):
        node.join()
    assert spare.rank == 1, "the vacated place"
    assert worlds(spare) == {4}


def test_b29_a_restart_of_one_node_does_not_cost_another_its_place() -> None:
    lab = Lab()
    nodes = lab.world("a", "b", "c", "d", rules=policy(4))
    spare = lab.node("e", rules=policy(4)).join()
    for i in range(8):
        first = nodes[i % 4]
        first.join()
        for node in nodes:
            if node is not first:
                node.join()
        assert [n.rank for n in nodes] == [0, 1, 2, 3]
        assert spare.answer is None


def test_l8_standbys_are_admitted_in_order_of_arrival() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    late, later = lab.node("d", rules=policy(2)).join(), lab.node("c", rules=policy(2)).join()
    b.lose()
    lab.advance(1.2)
    a.join()
    assert late.joined is not None
    assert later.answer is None


def test_l8_a_newcomer_is_announced_after_a_moment_of_quiet() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2, 5))
    lab.node("c", rules=policy(2, 5)).join()
    lab.advance(0.9)
    assert a.waiting == 0
    lab.advance(0.2)
    assert a.waiting == b.waiting == 1
    assert a.view.ended is None


def test_b07b_several_newcomers_cost_one_new_generation() -> None:
    lab = Lab()
    nodes = lab.world("a", "b", "c", "d", rules=policy(3, 6))
    for name in ("e", "f"):
        nodes.append(lab.node(name, rules=policy(3, 6)).join())
        lab.advance(0.2)
    assert nodes[0].waiting == 2, "reaching max is announced at once"
    for node in nodes[:4]:
        node.join()
    assert worlds(*nodes) == {6}
    assert lab.run().number == 2
    ended = lab.run().generation
    assert ended is not None
    assert nodes[0].view.ended is None or nodes[0].view.ended.kind == "scale_up"


def test_newcomers_that_trickle_in_are_announced_after_the_longest_wait() -> None:
    lab = Lab()
    a, *_ = lab.world("a", "b", rules=policy(2, 20))
    for i in range(6):
        lab.node(f"n{i}", rules=policy(2, 20), lease_s=60).join()
        lab.advance(0.9)
        a.beat()
    assert a.waiting > 0


def test_a_newcomer_that_goes_away_is_taken_back() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2, 3))
    new = lab.node("c", rules=policy(2, 3)).join()
    assert a.waiting == 1
    new.leave("drained")
    assert a.waiting == 0
    assert lab.run().live is not None


def test_scale_ups_one_after_the_other_are_announced_ever_later() -> None:
    lab = Lab()
    rules = policy(1, 20, last_call_s=30)
    nodes = [lab.node("n0", rules=rules, lease_s=600).join()]
    lab.advance(30.1)
    waits = []
    for i in range(1, 5):
        nodes.append(lab.node(f"n{i}", rules=rules, lease_s=600).join())
        began = lab.now
        while not nodes[0].waiting:
            lab.advance(0.1)
        waits.append(lab.now - began)
        for node in nodes[:-1]:
            node.join()
        assert worlds(*nodes) == {i + 1}
    assert [round(wait) for wait in waits] == [1, 2, 4, 8]
    beat_all(lab, nodes, generations.SCALE_UP_MEMORY_S + 100, every=100)
    lab.node("late", rules=rules, lease_s=600).join()
    lab.advance(1.1)
    assert nodes[0].waiting == 1, "scale-ups of long ago delay nobody"


def test_nobody_is_restarted_for_a_newcomer_once_a_node_has_finished() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2, 4))
    a.finish()
    new = lab.node("c", rules=policy(2, 4)).join()
    beat_all(lab, [a, b, new], 10)
    assert b.waiting == 0
    b.finish()
    assert new.code is ErrorCode.RUN_FINISHED


def test_a_newcomer_is_not_announced_if_rounding_leaves_no_place() -> None:
    lab = Lab()
    rules = policy(2, 6, node_unit=2)
    a, b = lab.world("a", "b", rules=rules)
    c = lab.node("c", rules=rules).join()
    beat_all(lab, [a, b, c], 4)
    assert a.waiting == 0
    lab.node("d", rules=rules).join()
    lab.advance(1.2)
    assert a.waiting == 2


def test_b29d_two_agents_of_one_node_above_max_are_pointed_out_once() -> None:
    lab = Lab()
    rules = policy(2)
    for name, node_id in (("h1", "h1-a"), ("h2", "h2-a")):
        lab.node(name, node_id=node_id, rules=rules).join()
    extra = [
        lab.node(n, node_id=i, rules=rules).join() for n, i in (("h1", "h1-b"), ("h2", "h2-b"))
    ]
    assert len(lab.reported("agents_share_a_node")) == 1
    (text,) = extra[0].notices
    assert text == (
        "two agents of run 'llama' come from node h1 (h1-a and h1-b), and 1 node can only stand by: "
        "the world of 2 has no place left. Is the launcher started once per node?"
    )
    assert lab.status().standbys == 2


def test_b29d_two_agents_of_one_node_that_are_both_in_the_world_are_pointed_out_too() -> None:
    lab = Lab()
    rules = policy(2)
    for node_id in ("h1-a", "h1-b"):
        lab.node("h1", node_id=node_id, rules=rules).join()
    spare = lab.node("h2", node_id="h2-a", rules=rules).join()
    assert "come from node h1 (h1-a and h1-b)" in spare.notices[0]


def test_agents_that_share_a_node_on_purpose_are_not_pointed_out_while_there_is_a_place() -> None:
    lab = Lab()
    rules = policy(2, 4)
    world = [lab.node("h1", node_id=node_id, rules=rules).join() for node_id in ("a", "b")]
    beat_all(lab, world, 31)
    late = lab.node("h1", node_id="c", rules=rules).join()
    assert lab.status().phase == "live"
    lab.advance(1.2)
    assert not late.notices
    assert not lab.reported("agents_share_a_node")


# --- the end of a run ----------------------------------------------------------------------------


def test_standbys_end_with_the_run_and_are_told_how() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    spare = lab.node("c", rules=policy(2)).join()
    a.finish()
    assert spare.answer is None
    b.finish()
    assert spare.code is ErrorCode.RUN_FINISHED
    assert spare.error is not None
    assert "all 2 nodes finished" in spare.error.message


def test_standbys_end_with_a_run_that_failed() -> None:
    lab = Lab()
    rules = policy(3)
    nodes = lab.world("a", "b", "c", rules=rules)
    nodes[0].leave("failed", exit_code=1)
    spare = lab.node("x", rules=rules).join()
    assert spare.answer is None
    nodes[1].leave("failed", exit_code=1)
    assert spare.code is ErrorCode.RUN_FAILED


def test_b19_a_finished_run_starts_again_at_once_under_the_same_id() -> None:
    lab = Lab()
    first = lab.world("a", "b", rules=policy(2))
    for node in first:
        node.finish()
    second = [lab.node(n, rules=policy(3)).join() for n in ("c", "d", "e")]
    assert worlds(*second) == {3}
    assert second[0].live_fence() > first[0].live_fence()


def test_s2_the_fence_of_a_run_only_grows_even_after_it_was_forgotten() -> None:
    lab = Lab(Settings(run_keep_s=5))
    fences = []
    for _ in range(4):
        node = lab.node("a", rules=policy(1)).join()
        fences.append(node.live_fence())
        node.finish()
        node.leave("finished")
        node.lose()
        lab.advance(6)
        assert RUN not in lab.core.tables.runs
    assert fences == sorted(set(fences))


def test_s2_a_forgotten_tombstone_raises_the_floor_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdzv_server.core.tables.TOMBSTONES_MAX", 1)
    lab = Lab(Settings(run_keep_s=1))
    for run, generations_ in (("long", 5), ("b", 1), ("c", 1)):
        node = lab.node("a", run=run, rules=policy(1)).join()
        for _ in range(generations_ - 1):
            node.join()
        node.leave("drained")
        lab.advance(2)
    again = lab.node("a", run="long", rules=policy(1)).join()
    assert again.live_fence().generation > 5


def test_l8_an_ended_run_is_shown_for_its_keep_time_and_then_forgotten() -> None:
    lab = Lab(Settings(run_keep_s=10))
    a = lab.node("a", rules=policy(1)).join()
    a.finish()
    a.leave("finished")
    lab.advance(9)
    assert lab.status().phase == "ended"
    assert lab.status().reason == "its only node finished"
    lab.advance(2)
    assert RUN not in lab.core.tables.runs
    assert lab.reported("run_forgotten")


def test_a_run_whose_nodes_all_died_ends_with_the_reason() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    a.lose()
    b.lose()
    lab.advance(1.5)
    status = lab.status()
    assert status.phase == "ended"
    assert "was lost" in status.reason


# --- progress ------------------------------------------------------------------------------------


def test_waiting_nodes_are_told_how_far_it_is_at_most_once_a_second() -> None:
    lab = Lab()
    rules = policy(5, join_timeout_s=30)
    a = lab.node("a", rules=rules).join()
    lab.advance(PROGRESS_S + 0.1)
    assert a.progress is not None
    assert (a.progress.joined, a.progress.min_nodes) == (1, 5)
    assert a.progress.left_ms == pytest.approx(29_000, abs=300)
    told = len(a.wire.got)
    for i in range(3):
        lab.node(f"b{i}", rules=rules).join()
    assert len(a.wire.got) == told
    lab.advance(PROGRESS_S)
    assert a.progress.joined == 4


def test_progress_names_the_nodes_of_the_last_world_that_are_missing() -> None:
    lab = Lab()
    a, b, c = lab.world("a", "b", "c", rules=policy(3))
    c.lose()
    lab.advance(1.2)
    a.join()
    beat_all(lab, [a, b], 1.2, every=0.4)
    assert a.progress is not None
    assert a.progress.waiting_for == ["b", "c"]
    b.join()
    beat_all(lab, [a, b], 1.2, every=0.4)
    assert a.progress.waiting_for == ["c"]


def test_a_node_whose_id_was_chosen_is_called_by_its_id() -> None:
    lab = Lab()
    nodes = [lab.node("host", node_id=n, rules=policy(3)) for n in ("trainer-1", "trainer-2")]
    nodes.append(lab.node("host", node_id="host-99-ab", rules=policy(3)))
    for node in nodes:
        node.join()
    for node in nodes[1:]:
        node.lose()
    lab.advance(1.2)
    nodes[0].join()
    lab.advance(1.2)
    assert nodes[0].progress is not None
    assert nodes[0].progress.waiting_for == ["host", "trainer-2"]


def test_unchanged_progress_is_not_repeated() -> None:
    lab = Lab()
    a = lab.node("a", rules=Policy(min_nodes=2, max_nodes=2), lease_s=100).join()
    lab.advance(10)
    count = len(a.wire.got)
    lab.advance(10)
    assert len(a.wire.got) == count
