"""What happens to unique ids by themselves: losses, deadlines, the end of a generation."""

import hashlib
from typing import Any

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Done, Heartbeat, HelloWorker, NcclIds
from rdzv_server.core.events import Report
from rdzv_server.core.nccl import ends as nccl_ends
from rdzv_server.core.nccl.ids import State
from tests.ids import Process, error, processes, publish, unique_id, workers
from tests.lab import Lab, Node, beat_all

ID = unique_id()


def team(lab: Lab, count: int = 2) -> tuple[list[Node], list[Process]]:
    """Workers, whose end does not end the generation."""
    nodes, _ = processes(lab, count)
    return nodes, workers(lab, nodes)


def live(lab: Lab) -> bool:
    return lab.run().live is not None


def pass_time(lab: Lab, nodes: list[Node], those: list[Process], seconds: float) -> None:
    """Time passes, and nobody is silent."""
    for _ in range(round(seconds)):
        for node in nodes:
            node.beat()
        for one in those:
            lab.send(one.wire, next(one.request_ids), Heartbeat())
        lab.advance(1)


# --- losses -----------------------------------------------------------------------------------


def test_s21_a_minter_that_is_lost_before_its_put_frees_all_waiters() -> None:
    lab = Lab()
    _, (a, b, c) = team(lab, 3)
    a.get(3)
    b.get(3)
    c.get(3)
    lab.lose(a.wire)
    lab.advance(1.2)
    for one in (b, c):
        refused = error(one.answer, ErrorCode.MINTER_LOST)
        assert "rank 0 (worker 0 of n0)" in refused.message
        assert "its connection closed" in refused.message
    assert live(lab), "a worker's end never changes the membership"


def test_s21_a_lost_node_that_mints_is_told_before_its_generation_ends() -> None:
    lab = Lab()
    nodes, (a, b) = processes(lab)
    a.get()
    b.get()
    nodes[0].lose()
    lab.advance(1.2)
    error(b.answer, ErrorCode.MINTER_LOST)
    assert not live(lab)


def test_s21_a_root_is_poisoned_when_its_process_is_lost_before_all_are_ready() -> None:
    lab = Lab()
    _, (a, b) = team(lab)
    publish([a, b])
    b.ready()
    lab.lose(a.wire)
    lab.advance(1.2)
    (push,) = b.revoked
    assert (push.group, push.attempt, push.code) == ("dp", 0, ErrorCode.ID_FAILED)
    assert "worker 0 of n0" in push.message
    assert live(lab)
    error(b.get(attempt=0), ErrorCode.ID_FAILED)


def test_s21_any_lost_rank_revokes_the_ids_of_those_who_fetched_and_of_no_others() -> None:
    lab = Lab()
    _, (a, b, c) = team(lab, 3)
    a.get(3)
    b.get(3)
    a.put(ID)
    lab.lose(b.wire)
    lab.advance(1.2)
    assert a.revoked == [], "it minted and has not fetched"
    assert c.revoked == []
    error(c.get(3), ErrorCode.ID_FAILED)
    error(a.get(3, attempt=0), ErrorCode.ID_FAILED)


def test_a_process_that_is_not_needed_yet_may_be_replaced_before_the_ids_are_there() -> None:
    lab = Lab()
    nodes, (a, b) = team(lab)
    b.get()
    lab.lose(b.wire)
    lab.advance(1.2)
    wire = lab.connect()
    assert nodes[1].joined is not None
    lab.send(
        wire,
        1,
        HelloWorker(
            run=nodes[1].run,
            node_id="n1",
            fence=b.fence,
            rank=1,
            worker_token=nodes[1].joined.worker_token,
            incarnation=hashlib.sha256(b"again").digest()[:16],
        ),
    )
    again = Process(lab, wire, b.fence, 1)
    assert again.get() is None
    a.get()
    a.put(ID)
    assert again.answer == NcclIds(attempt=0, ids=[ID])


def test_nothing_is_revoked_after_all_were_ready() -> None:
    lab = Lab()
    _, (a, b) = team(lab)
    publish([a, b])
    a.ready()
    b.ready()
    lab.lose(a.wire)
    lab.advance(1.2)
    assert b.revoked == []


def test_s21_a_revocation_is_told_again_to_a_session_that_was_away() -> None:
    lab = Lab()
    nodes, (a, b) = processes(lab)
    publish([a, b])
    nodes[1].lose()
    lab.advance(0.3)
    a.fail()
    nodes[1].resume()
    assert nodes[1].welcome is not None
    assert nodes[1].welcome.resumed
    back = Process(lab, nodes[1].wire, b.fence, 1)
    (push,) = back.revoked
    assert push.code == ErrorCode.ID_FAILED
    back.fail()
    nodes[1].lose()
    nodes[1].resume()
    assert Process(lab, nodes[1].wire, b.fence, 1).revoked == []


# --- somebody says that it failed -------------------------------------------------------------


def test_a_minter_that_cannot_mint_tells_all() -> None:
    lab = Lab()
    _, (a, b) = processes(lab)
    a.get()
    b.get()
    assert a.fail("no libnccl found") == Done()
    refused = error(b.answer, ErrorCode.MINT_FAILED)
    assert "rank 0 (n0) could not mint its id: no libnccl found" in refused.message
    assert a.fail("no libnccl found") == Done()


def test_a_rank_whose_init_failed_revokes_the_ids_of_the_others() -> None:
    lab = Lab()
    _, (a, b, c) = processes(lab, 3)
    publish([a, b, c])
    b.fail("out of memory")
    assert b.revoked == []
    for one in (a, c):
        (push,) = one.revoked
        assert push.code == ErrorCode.ID_FAILED
        assert "rank 1 (n1) could not make its communicator: out of memory" in push.message
    error(a.ready(), ErrorCode.ID_FAILED)


# --- deadlines --------------------------------------------------------------------------------


def test_b35_a_get_that_ends_says_whose_id_it_waited_for_and_how_that_process_is() -> None:
    lab = Lab()
    nodes, (a, b) = processes(lab)
    a.get()
    b.get(timeout_s=5)
    pass_time(lab, nodes, [a, b], 4)
    assert b.answer is None
    pass_time(lab, nodes, [a, b], 2)
    refused = error(b.answer, ErrorCode.ID_TIMEOUT)
    for part in (
        "run 'llama' generation 1000.1",
        "communicator 'dp'",
        "rank 1 has no id within 5.0 s",
    ):
        assert part in refused.message
    assert "rank 0 (n0) was told to mint 5.0 s ago and has not" in refused.message
    assert "it is alive, last heard 1.0 s ago" in refused.message
    a.put(ID)
    assert b.get() == NcclIds(attempt=0, ids=[ID]), "it is the same attempt"


def test_b35_a_get_that_ends_names_the_likely_process_if_the_minter_never_asked() -> None:
    lab = Lab()
    _, (_, b) = team(lab)
    b.get(timeout_s=3)
    lab.advance(3.1)
    refused = error(b.answer, ErrorCode.ID_TIMEOUT)
    assert "rank 0 (worker 0 of n0), which mints, has not asked yet; it is alive" in refused.message


def test_not_all_ready_in_time_is_told_with_three_lists() -> None:
    lab = Lab()
    nodes, (a, b, c, d) = processes(lab, 4)
    more: dict[str, Any] = {"init_timeout_ms": 20_000}
    a.get(4, **more)
    b.get(4, **more)
    a.put(ID)
    a.get(4)
    c.get(4)
    a.ready()
    pass_time(lab, nodes, [], 19)
    assert c.revoked == []
    pass_time(lab, nodes, [], 2)
    for one in (a, b, c):
        (push,) = one.revoked
        assert push.code == ErrorCode.ID_TIMEOUT
        for part in (
            "not all ranks got ready within 20 s",
            "fetched: rank 0 (n0), rank 1 (n1), rank 2 (n2);",
            "never asked: rank 3;",
            "not ready: rank 1 (n1), rank 2 (n2), rank 3",
        ):
            assert part in push.message
    error(d.get(4), ErrorCode.ID_TIMEOUT)


def test_the_first_callers_init_timeout_counts_and_ready_ends_it() -> None:
    lab = Lab()
    nodes, all_of = processes(lab)
    publish(all_of, init_timeout_ms=5000)
    for one in all_of:
        one.ready()
    pass_time(lab, nodes, [], 8)
    assert all_of[0].revoked == []
    assert lab.reported("nccl_failed") == []


def test_s33_a_stall_of_the_server_does_not_count() -> None:
    lab = Lab()
    _, (a, b) = processes(lab)
    a.get()
    b.get(timeout_s=5)
    lab.stall(60)
    assert b.answer is None


# --- generations ------------------------------------------------------------------------------


def test_s20_a_new_generation_ends_all_waits_and_knows_nothing_of_the_old_ids() -> None:
    lab = Lab()
    nodes, (a, b) = processes(lab)
    publish([a, b])
    a.ready()
    b.get(group="tp", rank=1)
    for node in nodes:
        node.join()
    error(b.answer, ErrorCode.STALE_GENERATION)
    a, b = (Process(lab, node.wire, node.live_fence(), node.rank) for node in nodes)
    assert b.get() is None
    assert a.get() == NcclIds(attempt=0, mint=[0])
    other = unique_id(2)
    a.put(other)
    assert b.answer == NcclIds(attempt=0, ids=[other])


@pytest.mark.parametrize("kind", ["failed", "drained", "finished"])
def test_s20_waits_end_with_the_generation_however_it_ends(kind: str) -> None:
    lab = Lab()
    nodes, (a, b) = processes(lab)
    a.get()
    b.get()
    for node in nodes if kind == "finished" else nodes[:1]:
        node.finish() if kind == "finished" else node.leave(kind)
    assert not live(lab)
    assert b.answer is not None
    generation = lab.run().generation
    assert generation is not None
    assert generation.ids.waiters() == []


def test_a_session_that_goes_leaves_no_wait_behind() -> None:
    lab = Lab()
    _, (a, b, _) = team(lab, 3)
    a.get(3)
    b.get(3, timeout_s=30)
    lab.lose(b.wire)
    lab.advance(2)
    generation = lab.run().generation
    assert generation is not None
    assert generation.ids.waiters() == []
    (shown,) = nccl_ends.show(lab.core.tables, lab.run())
    assert shown.missing[0].startswith("rank 1 (lost: worker 1 of n1: its connection closed")


# --- secrets and what is shown ----------------------------------------------------------------


def everything_said(lab: Lab) -> str:
    told = [repr(m) for w in lab.wires.values() for _, m in w.got if not isinstance(m, NcclIds)]
    reports = [repr(r) for r in lab.reports if isinstance(r, Report)]
    return "\n".join([*told, *reports, str(lab.run().story), repr(lab.run())])


def test_s22_no_id_is_in_a_report_a_story_an_error_or_a_repr() -> None:
    lab = Lab()
    nodes, (a, b) = processes(lab)
    raw = publish([a, b])
    a.put(unique_id(5))
    generation = lab.run().generation
    assert generation is not None
    shown = nccl_ends.show(lab.core.tables, lab.run())
    said = everything_said(lab) + repr(shown) + repr(generation)
    for form in (raw[:8].hex(), repr(raw)[2:18], str(int.from_bytes(raw[:8], "little"))):
        assert form not in said
    (report,) = lab.reported("nccl_published")
    assert "at 10.0.0.1:4711" in str(report.fields["roots"])
    b.fail("x")
    beat_all(lab, nodes, 1)
    assert raw[:8].hex() not in everything_said(lab)


def test_the_status_shows_states_and_who_is_missing() -> None:
    lab = Lab()
    _, (a, b, _) = processes(lab, 3)
    a.get(3)
    (shown,) = nccl_ends.show(lab.core.tables, lab.run())
    assert (shown.state, shown.needed, shown.missing) == ("minting", 3, ["rank 1", "rank 2"])
    assert shown.minter == "rank 0 (n0)"
    b.get(3)
    a.put(ID)
    (shown,) = nccl_ends.show(lab.core.tables, lab.run())
    assert (shown.state, shown.fetched) == ("published", 1)
    assert shown.missing == ["rank 0 (n0)", "rank 2"]
    b.fail("no")
    (shown,) = nccl_ends.show(lab.core.tables, lab.run())
    assert shown.state == State.FAILED.value
    assert "could not make its communicator: no" in shown.reason
