"""Keys of a generation over the whole core: waits, retries, isolation."""

import pytest

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Done,
    Error,
    Heartbeat,
    KvMultiGet,
    KvMultiSet,
    KvNumber,
    KvValue,
    KvValues,
)
from tests.lab import Lab, Node, policy


def world(lab: Lab, *names: str) -> list[Node]:
    return lab.world(*names, rules=policy(len(names)))


def value(reply: object) -> bytes | int:
    assert isinstance(reply, KvValue | KvNumber), reply
    return reply.value


def code(reply: object) -> int:
    assert isinstance(reply, Error), reply
    return reply.code


def test_one_node_reads_what_another_wrote() -> None:
    a, b = world(Lab(), "a", "b")
    assert a.set("k", b"\x00\xff") == Done(revision=1)
    assert b.get("k") == KvValue(value=b"\x00\xff", revision=1)


def test_a_read_that_may_not_wait_is_refused_at_once_and_names_the_key() -> None:
    a, _ = world(Lab(), "a", "b")
    reply = a.get("k")
    assert code(reply) == ErrorCode.WAIT_TIMEOUT
    assert isinstance(reply, Error)
    assert "'k'" in reply.message


def test_l3_a_read_waits_for_its_key_and_gets_it_with_the_write() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    assert b.get("k", 10, request_id=900) is None
    lab.advance(3)
    a.set("k", b"v")
    assert b.wire.replies(900) == [KvValue(value=b"v", revision=1)]


def test_l3_a_wait_ends_at_its_deadline_and_names_only_the_missing_keys() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    b.wait("k1", "k2", timeout_s=3, request_id=900)
    a.set("k1")
    lab.advance(2.9)
    assert b.wire.replies(900) == []
    lab.advance(0.2)
    (reply,) = b.wire.replies(900)
    assert code(reply) == ErrorCode.WAIT_TIMEOUT
    assert isinstance(reply, Error)
    assert "'k2'" in reply.message
    assert "k1" not in reply.message
    assert "run 'llama' generation 1000.1" in reply.message
    a.set("k2")
    assert len(b.wire.replies(900)) == 1


def test_several_keys_are_set_in_one_step_and_read_in_order() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    ask = KvMultiGet(fence=b.live_fence(), keys=["y", "x"], timeout_ms=1000)
    b.ask(ask, 900)
    a.ask(KvMultiSet(fence=a.live_fence(), keys=["x", "y"], values=[b"1", b"2"]))
    assert b.wire.replies(900) == [KvValues(values=[b"2", b"1"])]


def test_keys_and_values_of_unequal_number_are_refused() -> None:
    a, _ = world(Lab(), "a", "b")
    reply = a.ask(KvMultiSet(fence=a.live_fence(), keys=["x", "y"], values=[b"1"]))
    assert code(reply) == ErrorCode.MALFORMED


def test_s23_a_retried_addition_counts_once_and_gets_the_recorded_reply() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    assert value(a.add("n", 1, request_id=900)) == 1
    b.add("n", 10)
    a.lose()
    a.resume()
    assert value(a.add("n", 1, request_id=900)) == 1
    assert value(b.add("n", 0)) == 11


def test_s23_an_acknowledged_reply_is_forgotten_and_its_request_refused() -> None:
    a, _ = world(Lab(), "a", "b")
    a.add("n", 1, request_id=900)
    a.ask(Heartbeat(acknowledged=900))
    assert code(a.add("n", 1, request_id=900)) == ErrorCode.MALFORMED
    assert value(a.add("n", 0, request_id=901)) == 1


def test_s23_the_window_of_unacknowledged_replies_is_bounded() -> None:
    a, _ = world(Lab(), "a", "b")
    taken = 0
    while isinstance(reply := a.add("n", 1), KvNumber):
        taken = reply.value
    assert code(reply) == ErrorCode.LIMIT_EXCEEDED
    assert taken <= limits.REPLIES_RECORDED_MAX
    a.ask(Heartbeat(acknowledged=100))
    assert isinstance(a.add("n", 1), KvNumber)


def test_a_wait_sent_again_after_a_reconnect_is_one_wait() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    b.get("k", 10, request_id=900)
    b.lose()
    b.resume()
    b.get("k", 10, request_id=900)
    a.set("k", b"v")
    assert b.wire.replies(900) == [KvValue(value=b"v", revision=1)]


def test_s10_a_request_with_a_stale_fence_is_refused_without_effect() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    old = a.live_fence()
    a.join()
    b.join()
    reply = a.set("k", b"old", fence=old)
    assert code(reply) == ErrorCode.STALE_GENERATION
    assert isinstance(reply, Error)
    assert str(a.live_fence()) in reply.message
    assert code(b.get("k")) == ErrorCode.WAIT_TIMEOUT


def test_s11_nothing_of_one_generation_is_visible_in_the_next() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.set("k")
    a.add("n", 5)
    b.wait("never", timeout_s=100, request_id=900)
    a.join()
    (reply,) = b.wire.replies(900)
    assert code(reply) == ErrorCode.STALE_GENERATION
    assert isinstance(reply, Error)
    assert "a (group rank 0) rejoined" in reply.message
    b.join()
    assert code(a.get("k")) == ErrorCode.WAIT_TIMEOUT
    assert value(a.add("n", 0)) == 0


def test_b23_runs_do_not_see_each_other_s_keys() -> None:
    lab = Lab()
    a = lab.node("a", run="r1", rules=policy(1)).join()
    b = lab.node("a", run="r2", rules=policy(1)).join()
    a.set("k", b"1")
    assert code(b.get("k")) == ErrorCode.WAIT_TIMEOUT


def test_a_standby_may_not_touch_the_keys_of_the_generation() -> None:
    lab = Lab()
    a, _ = world(lab, "a", "b")
    spare = lab.node("c", rules=policy(2)).join()
    reply = spare.set("k", fence=a.live_fence())
    assert code(reply) == ErrorCode.NOT_A_MEMBER


def test_keys_still_answer_after_all_have_finished_for_the_exit_barrier() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.finish()
    assert value(a.add("members")) == 1
    a.wait("last", timeout_s=300, request_id=900)
    b.finish()
    assert value(b.add("members")) == 2
    assert isinstance(b.set("last"), Done)
    assert a.wire.replies(900) == [Done()]


def test_the_number_of_waits_of_one_session_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARKED_PER_SESSION_MAX", 3)
    a, _ = world(Lab(), "a", "b")
    for i in range(3):
        assert a.wait(f"k{i}") is None
    assert code(a.wait("k3")) == ErrorCode.LIMIT_EXCEEDED


def test_values_that_exceed_a_frame_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdzv_server.core.keys._REPLY_BYTES_MAX", 10)
    a, b = world(Lab(), "a", "b")
    ask = KvMultiGet(fence=b.live_fence(), keys=["x", "y"], timeout_ms=1000)
    b.ask(ask, 900)
    a.ask(KvMultiSet(fence=a.live_fence(), keys=["x", "y"], values=[b"123456", b"123456"]))
    assert code(b.wire.replies(900)[0]) == ErrorCode.LIMIT_EXCEEDED
    assert code(b.ask(ask)) == ErrorCode.LIMIT_EXCEEDED


def test_the_waits_of_a_lost_node_are_gone() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.finish()
    a.wait("k", timeout_s=300)
    a.lose()
    lab.advance(1.3)
    b.set("k")
    generation = lab.run().generation
    assert generation is not None
    assert generation.kv.waiters() == []
