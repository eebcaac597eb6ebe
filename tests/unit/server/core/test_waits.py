"""How requests that wait inside a run come to their end, whatever ends first."""

import pytest

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Barrier, Done, Error, Heartbeat, Join, KvCheck, KvGet, KvSet, KvWait
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


@pytest.mark.parametrize("other", [Heartbeat(), KvCheck(keys=["y"]), KvSet(key="z", value=b"")])
@pytest.mark.parametrize("waits_for", ["a join", "a key", "a barrier"])
def test_l3_another_request_under_the_id_of_one_that_waits_is_refused_and_ends_no_wait(
    waits_for: str, other: Heartbeat | KvCheck | KvSet
) -> None:
    """The laboratory checks after each step that everything that is waited for has somebody who waits."""
    lab = Lab()
    a, b = world(lab, "a", "b")
    late = lab.node("c", rules=policy(2))
    asked: dict[str, tuple[Node, Join | KvGet | Barrier]] = {
        "a join": (late, Join(policy=late.rules)),
        "a key": (a, KvGet(key="x", timeout_ms=60_000)),
        "a barrier": (a, Barrier(fence=a.live_fence(), name="b", timeout_ms=60_000)),
    }
    asker, ask = asked[waits_for]
    assert asker.ask(ask, 900) is None
    reply = asker.ask(other, 900)
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.MALFORMED
    assert asker.ask(ask, 900) is reply, (
        "a retry is no other request: it gets no answer, and waits on"
    )
    match ask:
        case KvGet():
            b.ask(KvSet(key="x", value=b"v"))
        case Barrier():
            b.meet()
        case _:
            a.leave()
            b.join()
    assert asker.wire.replies(900)[1:], "what it waited for came"


def test_l3_a_hello_under_the_id_of_a_request_that_waits_leaves_it_waiting() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.lose()
    a.resume()
    hello_id = 900
    assert a.get("x", timeout_s=60, request_id=hello_id) is None
    a.lose()
    a.ids = iter(range(hello_id, hello_id + 100))
    a.resume()
    b.set("x")
    assert len(a.wire.replies(hello_id)) == 2, "the welcome, and the value"


def test_s13_a_training_process_that_is_gone_is_in_no_barrier_whatever_ids_it_used() -> None:
    lab = Lab()
    a, _ = world(lab, "a", "b")
    wire, _ = a.worker(0)
    ask = Barrier(fence=a.live_fence(), name="w", of="workers", count=2, timeout_ms=60_000)
    assert lab.send(wire, 5, ask) is None
    lab.send(wire, 5, Heartbeat())
    lab.lose(wire)
    lab.advance(2)
    generation = lab.run().generation
    assert generation is not None
    assert not generation.barriers.waiting()
