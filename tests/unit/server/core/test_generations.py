"""What every member is told of a generation: ranks, tables, master address, the end."""

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Address, Error, Join, KvGet
from tests.lab import EPOCH, Lab, Node, policy


def join_at(node: Node, host: str, port: int = 5000, *, explicit: bool = False) -> None:
    node.join_id = next(node.ids)
    address = Address(host=host, port=port, explicit=explicit)
    node.ask(Join(policy=node.rules, address=address), node.join_id)


def test_s1_ranks_are_0_to_w_minus_1_once_each_and_follow_the_names() -> None:
    lab = Lab()
    nodes = lab.world(*[f"n{i}" for i in (9, 10, 1, 100)], rules=policy(4))
    assert sorted(n.rank for n in nodes) == [0, 1, 2, 3]
    assert [n.name for n in sorted(nodes, key=lambda n: n.rank)] == ["n1", "n9", "n10", "n100"]


def test_s2_fences_grow_with_each_generation() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    fences = [a.live_fence()]
    for _ in range(5):
        a.join()
        b.join()
        fences.append(a.live_fence())
    assert [f.generation for f in fences] == [1, 2, 3, 4, 5, 6]
    assert {f.epoch for f in fences} == {EPOCH}


def test_s3_all_members_are_told_the_same_table() -> None:
    lab = Lab()
    nodes = lab.world("a", "b", "c", rules=policy(3))
    told = [n.joined for n in nodes]
    assert len({(t.fence, t.digest, t.world_size, t.master) for t in told if t}) == 1
    first = told[0]
    nodes[0].join()
    nodes[1].join()
    nodes[2].join()
    assert nodes[0].joined is not None
    assert first is not None
    assert nodes[0].joined.digest != first.digest, "the fence is in the digest"


def test_s4_only_sessions_that_are_in_a_generation_are_told_of_it() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    spare = lab.node("c", rules=policy(2)).join()
    stranger = lab.node("d", rules=policy(2))
    a.join()
    assert spare.view.fence is None
    assert stranger.view.fence is None
    assert spare.answer is None


def test_s9_the_first_reason_is_the_only_one_and_everybody_gets_it_once() -> None:
    lab = Lab()
    a, b, c, d = lab.world("a", "b", "c", "d", rules=policy(1, 4))
    a.leave("failed", exit_code=3)
    reason = b.view
    c.lose()
    d.leave("drained")
    lab.advance(2)
    b.join()
    assert len(lab.reported("generation_ended")) == 1
    assert reason.ended is not None
    assert "exit code 3" in reason.ended.reason


def test_the_address_of_rank_0_is_everybody_s_master() -> None:
    lab = Lab()
    a, b = lab.nodes("a", "b", rules=policy(2))
    join_at(b, "10.0.0.12", 7)
    join_at(a, "10.0.0.11", 8)
    assert a.joined is not None
    assert b.joined is not None
    assert a.joined.master == b.joined.master == Address(host="10.0.0.11", port=8)
    assert "local address" in a.joined.master_reason


def test_a_given_address_is_passed_on_as_it_is() -> None:
    lab = Lab()
    a, b = lab.nodes("a", "b", rules=policy(2))
    join_at(a, "127.0.0.1", explicit=True)
    join_at(b, "10.0.0.12")
    assert a.joined is not None
    assert a.joined.master.host == "127.0.0.1"
    assert "--local-addr" in a.joined.master_reason


def test_rank_0_beside_the_server_gets_the_address_that_others_reach_the_server_at() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(2), peer="127.0.0.1", local="127.0.0.1")
    b = lab.node("b", rules=policy(2), peer="10.0.0.12", local="10.0.0.1")
    join_at(a, "127.0.0.1", 9)
    join_at(b, "10.0.0.12")
    assert a.joined is not None
    assert a.joined.master == Address(host="10.0.0.1", port=9)
    assert "beside the server" in a.joined.master_reason


def test_rank_0_behind_a_published_port_is_not_taken_for_a_neighbour_of_the_server() -> None:
    """Its own end is loopback, but the server, in a container, sees the gateway."""
    lab = Lab()
    a = lab.node("a", rules=policy(2), peer="10.88.0.1", local="10.88.0.9")
    b = lab.node("b", rules=policy(2), peer="10.0.0.12", local="10.88.0.9")
    join_at(a, "127.0.0.1", 9)
    join_at(b, "10.0.0.12")
    assert a.joined is not None
    assert a.joined.master == Address(host="127.0.0.1", port=9)


@pytest.mark.parametrize("peer", ["127.0.0.1", ""])
def test_all_nodes_on_one_machine_keep_the_loopback_address(peer: str) -> None:
    lab = Lab()
    a, b = lab.nodes("a", "b", rules=policy(2), peer=peer, local="127.0.0.1")
    join_at(a, "127.0.0.2", 9)
    join_at(b, "127.0.0.3", 9)
    assert a.joined is not None
    assert a.joined.master == Address(host="127.0.0.2", port=9)


def test_a_node_that_advertises_nothing_leaves_the_master_empty() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    assert a.joined is not None
    assert a.joined.master == Address()


def test_worker_tokens_differ_by_node_and_generation() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    tokens = set()
    for _ in range(3):
        for node in (a, b):
            assert node.joined is not None
            tokens.add(node.joined.worker_token)
        a.join()
        b.join()
    assert len(tokens) == 6


def test_a_replaced_node_ends_the_generation_and_takes_its_old_place() -> None:
    lab = Lab()
    rules = policy(3)
    a, b, c = lab.world("a", "b", "c", rules=rules)
    new = lab.node("b", rules=rules, incarnation=2).join()
    assert a.view.ended is not None
    assert a.view.ended.kind == "replaced"
    assert b.wire.closed
    a.join()
    c.join()
    assert (a.rank, new.rank, c.rank) == (0, 1, 2)


def test_a_join_of_a_lost_session_is_not_answered_but_goes_on_in_the_next_one() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(2))
    a.join()
    lab.advance(a.lease_s + 1)
    assert a.answer is None
    assert a.wire.goodbye is not None
    assert a.wire.goodbye.code == ErrorCode.SESSION_LOST
    b = lab.node("b", rules=policy(2))
    a.hello().join()
    b.join()
    assert {a.rank, b.rank} == {0, 1}


def test_a_wait_of_a_lost_session_ends_with_the_session() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    request_id = next(a.ids)
    a.ask(KvGet(fence=None, key="k", timeout_ms=60_000), request_id)
    lab.advance(a.lease_s + 1)
    (reply,) = a.wire.replies(request_id)
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.SESSION_LOST
    assert "silent for longer than its lease" in reply.message


def test_s5_a_join_of_a_replaced_process_says_that_it_was_replaced() -> None:
    lab = Lab()
    old = lab.node("a", rules=policy(2))
    old.join()
    lab.node("a", rules=policy(2), incarnation=2).join()
    assert old.code is ErrorCode.FENCED
    assert old.error is not None
    assert "replaced by a new process" in old.error.message
