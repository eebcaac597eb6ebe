"""How requests that wait inside a run come to their end, whatever ends first."""

import pytest

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Barrier, Done, Error, KvSet, KvWait
from rdzv_server.core import waits
from rdzv_server.core.refusal import Refused
from tests.lab import Lab, Node, beat_all, policy


def world(lab: Lab, *names: str) -> list[Node]:
    return lab.world(*names, rules=policy(len(names)))


def wait_for_run_key(node: Node, key: str, request_id: int, timeout_s: float = 60) -> None:
    ask = KvWait(keys=[key], timeout_ms=round(timeout_s * 1000))
    assert node.ask(ask, request_id) is None


def code(node: Node, request_id: int) -> ErrorCode:
    (reply,) = node.wire.replies(request_id)
    assert isinstance(reply, Error), reply
    return ErrorCode(reply.code)


def test_a_request_that_waits_is_parked_once() -> None:
    lab = Lab()
    world(lab, "a", "b")
    session = lab.core.tables.nodes["llama", "a"]
    assert waits.park(session, 900)
    assert not waits.park(session, 900)


def test_s25_only_so_many_requests_of_a_session_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARKED_PER_SESSION_MAX", 2)
    lab = Lab()
    a, _ = world(lab, "a", "b")
    a.wait("x", request_id=900)
    wait_for_run_key(a, "x", 901)
    assert a.meet(request_id=902) is not None
    assert code(a, 902) is ErrorCode.LIMIT_EXCEEDED


def test_l3_the_end_of_a_generation_ends_its_waits_and_not_those_of_the_run() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.wait("x", timeout_s=60, request_id=900)
    a.meet(timeout_s=60, request_id=901)
    wait_for_run_key(a, "x", 902)
    b.join()
    assert code(a, 900) is code(a, 901) is ErrorCode.STALE_GENERATION
    assert a.wire.replies(902) == []
    b.ask(KvSet(key="x", value=b""))
    assert a.wire.replies(902) == [Done()]


def test_l3_a_visitor_that_is_replaced_or_lost_leaves_no_wait_behind() -> None:
    lab = Lab()
    visitor = lab.node("v")
    other = lab.node("w")
    wait_for_run_key(visitor, "x", 900)
    visitor.ask(Barrier(name="b", of="count", count=2, timeout_ms=60_000), 901)
    lab.node("v", incarnation=2)
    run = lab.run()
    assert not run.kv.waiters()
    assert not run.awaited
    wait_for_run_key(other, "x", 900)
    other.lose()
    lab.advance(1.4)
    assert not run.kv.waiters()


def test_l3_a_run_key_that_nobody_sets_is_waited_for_until_its_time_is_up() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    wait_for_run_key(a, "x", 900, timeout_s=2)
    beat_all(lab, [a, b], 2.2, 0.2)
    assert code(a, 900) is ErrorCode.WAIT_TIMEOUT


def test_the_text_of_a_generation_that_is_over_tells_how_it_ended() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    fence = a.live_fence()
    b.join()
    with pytest.raises(Refused, match=r"ended: b \(group rank 1\) rejoined"):
        waits.usable(lab.run(), fence)
