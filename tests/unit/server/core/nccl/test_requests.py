"""Asking for unique ids and handing them over: what is given, and what is refused to whom."""

from typing import Any

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Done, Error, NcclIds
from rdzv_server.core.nccl import unique_id as inside
from tests.ids import Process, error, processes, publish, unique_id, workers
from tests.lab import Lab, policy

ID = unique_id()


def told(reply: object) -> list[int]:
    assert isinstance(reply, NcclIds), reply
    assert not reply.ids
    return reply.mint


def test_s18_the_elected_rank_mints_and_all_get_the_same_bytes() -> None:
    lab = Lab()
    _, (a, b) = processes(lab)
    assert b.get() is None
    assert told(a.get()) == [0]
    assert a.put(ID) == Done()
    assert b.answer == NcclIds(attempt=0, ids=[ID])
    assert a.get() == NcclIds(attempt=0, ids=[ID])


def test_workers_take_part_as_nodes_do() -> None:
    lab = Lab()
    nodes, _ = processes(lab)
    publish(workers(lab, nodes))


def test_several_ids_come_in_order_from_the_first_rank_of_each_block() -> None:
    lab = Lab()
    _, all_of = processes(lab, 5)
    ids = [unique_id(1), unique_id(2)]
    orders = [process.get(5, n_ids=2) for process in all_of]
    assert [told(orders[0]), told(orders[3])] == [[0], [1]]
    assert [orders[i] for i in (1, 2, 4)] == [None] * 3
    assert all_of[3].put(ids[1], index=1) == Done()
    assert all_of[1].answer is None
    assert all_of[0].put(ids[0]) == Done()
    assert all(all_of[i].answer == NcclIds(attempt=0, ids=ids) for i in (1, 2, 4))


def test_a_named_minter_is_told_all_ids() -> None:
    _, (a, b) = processes(Lab())
    assert a.get(n_ids=2, minter=1) is None
    assert told(b.get(n_ids=2, minter=1)) == [0, 1]


def test_s20_a_second_fetch_before_ready_gives_the_same_bytes() -> None:
    lab = Lab()
    _, (a, b) = processes(lab)
    raw = publish([a, b])
    for process in (a, b, b):
        assert process.get() == NcclIds(attempt=0, ids=[raw])


def test_a_wait_that_is_sent_again_is_answered_once() -> None:
    lab = Lab()
    _, (a, b) = processes(lab)
    assert b.get(request_id=900) is None
    assert b.get(request_id=900) is None
    a.get()
    a.put(ID)
    assert len(b.wire.replies(900)) == 1


def test_a_minter_that_asks_again_is_told_again() -> None:
    _, (a, _) = processes(Lab())
    assert told(a.get()) == told(a.get()) == [0]


# --- disagreement -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"nranks": 2}, {"nranks": 3}),
        ({"n_ids": 1}, {"n_ids": 2}),
        ({}, {"minter": 1}),
    ],
)
def test_the_one_who_disagrees_is_refused_and_nobody_else(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    lab = Lab()
    _, (a, b) = processes(lab)
    a.get(**first)
    refused = error(b.get(**second), ErrorCode.ID_MISMATCH)
    assert "n0" in refused.message
    assert "n1" in refused.message
    assert a.put(ID) == Done()
    assert isinstance(a.get(**first), NcclIds)


def test_another_nccl_version_is_refused_with_both() -> None:
    lab = Lab()
    _, (a, b, c) = processes(lab, 3)
    a.get(3, version=22809)
    refused = error(b.get(3, version=23007), ErrorCode.NCCL_VERSION_MISMATCH)
    assert "2.28.9" in refused.message
    assert "2.30.7" in refused.message
    assert c.get(3) is None, "an unknown version is not compared"


def test_the_first_known_version_counts_also_when_it_comes_late() -> None:
    _, (a, b, c) = processes(Lab(), 3)
    a.get(3)
    b.get(3, version=22809)
    error(c.get(3, version=2804), ErrorCode.NCCL_VERSION_MISMATCH)


def test_a_rank_that_another_process_has_is_refused_naming_both() -> None:
    _, (a, b) = processes(Lab())
    a.get()
    refused = error(b.get(rank=0), ErrorCode.DUPLICATE_RANK)
    assert "n0" in refused.message
    assert "n1" in refused.message


def test_a_rank_outside_the_communicator_is_refused_and_opens_nothing() -> None:
    lab = Lab()
    _, (a, _) = processes(lab)
    error(a.get(rank=2), ErrorCode.DUPLICATE_RANK)
    error(a.get(n_ids=3), ErrorCode.MALFORMED)
    error(a.get(minter=9), ErrorCode.MALFORMED)
    generation = lab.run().generation
    assert generation is not None
    assert generation.ids.records() == []


# --- put --------------------------------------------------------------------------------------


def test_s19_only_the_elected_process_may_put() -> None:
    _, (a, b) = processes(Lab())
    a.get()
    b.get()
    for rank in (0, 1):
        refused = error(b.put(ID, rank=rank), ErrorCode.ID_MISMATCH)
        assert "minted by rank 0 (n0)" in refused.message
    assert a.put(ID) == Done()


def test_s19_an_equal_second_put_is_fine_and_another_is_told_that_the_first_wins() -> None:
    _, (a, b) = processes(Lab())
    publish([a, b])
    assert a.put(ID) == Done()
    for process in (a, b):
        refused = error(process.put(unique_id(9)), ErrorCode.DUPLICATE_ID)
        assert "the first one counts" in refused.message
    assert b.get() == NcclIds(attempt=0, ids=[ID])


def test_s19_an_equal_put_after_the_end_is_still_fine() -> None:
    _, (a, b) = processes(Lab())
    raw = publish([a, b])
    a.ready()
    b.ready()
    assert a.put(raw) == Done()
    error(a.put(unique_id(3)), ErrorCode.DUPLICATE_ID)


@pytest.mark.parametrize(
    ("raw", "code", "text"),
    [
        (bytes(range(1, 128)), ErrorCode.MALFORMED, "127"),
        (bytes(128), ErrorCode.MALFORMED, "zero"),
        (
            inside.COMM_ID_MAGIC.to_bytes(8, "little") + ID[8:],
            ErrorCode.UNROUTABLE_ROOT,
            "NCCL_COMM_ID",
        ),
        (unique_id(1, port=0), ErrorCode.UNROUTABLE_ROOT, "port 0"),
    ],
)
def test_s19_what_is_no_id_is_refused_and_may_be_put_right(
    raw: bytes, code: ErrorCode, text: str
) -> None:
    _, (a, b) = processes(Lab())
    a.get()
    b.get()
    assert text in error(a.put(raw), code).message
    assert b.answer is None
    assert a.put(ID) == Done()
    assert b.answer == NcclIds(attempt=0, ids=[ID])


def test_b35_any_128_bytes_arrive_as_they_are() -> None:
    raw = bytes([7, 0, 255, 0] * 32)
    _, (a, b) = processes(Lab())
    a.get()
    b.get()
    assert a.put(raw) == Done()
    assert b.answer == NcclIds(attempt=0, ids=[raw])


def test_an_id_that_does_not_exist_is_refused() -> None:
    _, (a, _) = processes(Lab())
    error(a.put(ID), ErrorCode.MALFORMED)
    a.get()
    error(a.put(ID, index=1), ErrorCode.MALFORMED)
    error(a.ready(), ErrorCode.MALFORMED)


def test_s18_the_same_bytes_for_a_second_communicator_are_refused() -> None:
    lab = Lab()
    _, (a, b) = processes(lab)
    publish([a, b])
    a.ready()
    b.ready()
    assert told(a.get()) == [0]
    refused = error(a.put(ID, attempt=1), ErrorCode.DUPLICATE_ID)
    assert "communicator 'dp'" in refused.message


def test_s18_the_same_bytes_are_refused_in_a_later_generation_too() -> None:
    lab = Lab()
    nodes, all_of = processes(lab)
    raw = publish(all_of)
    for node in nodes:
        node.join()
    (a, _) = [Process(lab, node.wire, node.live_fence(), node.rank) for node in nodes]
    assert told(a.get()) == [0]
    error(a.put(raw), ErrorCode.DUPLICATE_ID)


# --- roots that nobody can reach --------------------------------------------------------------


def hosts(lab: Lab, *peers: str) -> list[Process]:
    rules = policy(len(peers))
    nodes = [lab.node(f"n{i}", rules=rules, peer=peer) for i, peer in enumerate(peers)]
    for node in nodes:
        node.join()
    return [Process(lab, node.wire, node.live_fence(), node.rank) for node in nodes]


def test_a_loopback_root_is_refused_when_the_ranks_are_on_several_hosts() -> None:
    a, b = hosts(Lab(), "10.0.0.2", "10.0.0.3")
    a.get()
    b.get()
    refused = error(a.put(unique_id(1, "127.0.0.1")), ErrorCode.UNROUTABLE_ROOT)
    assert "127.0.0.1:4711" in refused.message
    assert "NCCL_SOCKET_IFNAME" in refused.action
    assert a.put(ID) == Done()


def test_a_loopback_root_is_good_on_one_host_however_it_reaches_the_server() -> None:
    a, b = hosts(Lab(), "127.0.0.1", "10.0.0.1")  # the server's own address is 10.0.0.1
    a.get()
    b.get()
    assert a.put(unique_id(1, "127.0.0.1")) == Done()


def test_a_rank_on_another_host_that_comes_late_tells_all_of_a_loopback_root() -> None:
    a, b, c = hosts(Lab(), "10.0.0.2", "10.0.0.2", "10.0.0.3")
    a.get(3)
    assert a.put(unique_id(1, "::1")) == Done()
    assert isinstance(b.get(3), NcclIds)
    error(c.get(3), ErrorCode.UNROUTABLE_ROOT)
    (push,) = b.revoked
    assert push.code == ErrorCode.UNROUTABLE_ROOT


# --- ready, attempts, other generations -------------------------------------------------------


def test_s18_a_spent_attempt_is_never_given_out_again() -> None:
    lab = Lab()
    _, (a, b) = processes(lab)
    publish([a, b])
    a.ready()
    refused = error(a.get(attempt=0), ErrorCode.ALREADY_USED)
    b.ready()
    lab.advance(3)
    refused = error(b.get(attempt=0), ErrorCode.ALREADY_USED)
    assert "all 2 ranks were ready 3.0 s ago" in refused.message
    assert b.ready() == Done(), "repeating it is fine"


def test_the_next_get_is_the_next_attempt_and_all_ranks_stay_in_step() -> None:
    lab = Lab()
    _, all_of = processes(lab)
    for number in range(4):
        order = all_of[0].get()
        assert order == NcclIds(attempt=number, mint=[0])
        all_of[1].get()
        all_of[0].put(unique_id(number), attempt=number)
        all_of[0].get()
        for process in all_of:
            assert process.answer == NcclIds(attempt=number, ids=[unique_id(number)])
            process.ready(attempt=number)


def test_a_fast_rank_starts_the_next_attempt_before_the_others_are_ready() -> None:
    _, (a, b) = processes(Lab())
    publish([a, b])
    a.ready()
    assert a.get() == NcclIds(attempt=1, mint=[0])
    assert b.ready() == Done()


def test_a_failed_attempt_is_told_once_to_each_rank_and_then_the_next_one_begins() -> None:
    _, (a, b, c) = processes(Lab(), 3)
    a.get(3)
    b.get(3)
    a.fail()
    error(b.answer, ErrorCode.MINT_FAILED)
    error(c.get(3), ErrorCode.MINT_FAILED)
    assert a.get(3) == NcclIds(attempt=1, mint=[0])
    assert b.get(3) is None
    assert c.get(3) is None
    a.put(ID, attempt=1)
    assert b.answer == c.answer == NcclIds(attempt=1, ids=[ID])


def test_ready_without_ids_or_for_somebody_else_is_refused() -> None:
    _, (a, b) = processes(Lab())
    a.get()
    error(a.ready(), ErrorCode.MALFORMED)
    a.put(ID)
    b.get()
    error(b.ready(rank=0), ErrorCode.DUPLICATE_RANK)


def test_s20_requests_with_an_old_fence_are_refused() -> None:
    lab = Lab()
    nodes, (a, b) = processes(lab)
    a.get()
    for node in nodes:
        node.join()
    for reply in (a.get(), a.put(ID), b.ready(), b.fail()):
        error(reply, ErrorCode.STALE_GENERATION)


def test_a_standby_has_no_ids() -> None:
    lab = Lab()
    nodes, (a, _) = processes(lab)
    other = lab.node("late", rules=nodes[0].rules)
    other.join()
    stranger = Process(lab, other.wire, a.fence, 1)
    error(stranger.get(), ErrorCode.NOT_A_MEMBER)


def test_a_get_without_patience_is_refused_at_once() -> None:
    _, (_, b) = processes(Lab())
    refused = b.get(timeout_s=0)
    assert isinstance(refused, Error)
    assert "rank 0 (n0), which mints, has not asked yet" in refused.message
