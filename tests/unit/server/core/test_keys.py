"""Keys of a generation over the whole core: waits, retries, isolation."""

import pytest

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Done,
    Error,
    Heartbeat,
    KvCheck,
    KvCount,
    KvGet,
    KvList,
    KvMissing,
    KvMultiGet,
    KvMultiSet,
    KvNumber,
    KvPage,
    KvSet,
    KvValue,
    KvValues,
)
from rdzv_server.core.settings import Settings
from tests.lab import RUN, Lab, Node, beat_all, policy


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


def test_s23_an_acknowledged_reply_is_forgotten_and_its_request_refused() -> None:
    a, _ = world(Lab(), "a", "b")
    a.add("n", 1, request_id=900)
    a.ask(Heartbeat(acknowledged=900))
    assert code(a.add("n", 1, request_id=900)) == ErrorCode.MALFORMED
    assert value(a.add("n", 0, request_id=901)) == 1


def test_a_refused_read_names_each_missing_key_once() -> None:
    (a,) = Lab().world("a", rules=policy(1))
    reply = a.wait("x", "y", "x", timeout_s=0)
    assert isinstance(reply, Error)
    assert reply.message.endswith("has no key 'x' and 'y'")


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


# --- keys of a run -------------------------------------------------------------------------------


def test_keys_of_a_run_outlive_its_generations_and_are_apart_from_theirs() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.ask(KvSet(key="k", value=b"run"))
    a.set("k", b"generation")
    a.join()
    b.join()
    assert value(b.ask(KvGet(key="k"))) == b"run"
    assert code(b.get("k")) == ErrorCode.WAIT_TIMEOUT


def test_b19_a_new_life_of_a_run_does_not_read_the_keys_of_the_old_one() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.ask(KvSet(key="k", value=b"old"))
    for node in (a, b):
        node.finish()
        node.leave()
    visitor = lab.node("v")
    assert value(visitor.ask(KvGet(key="k"))) == b"old"
    c, d = world(lab, "c", "d")
    assert c.live_fence() > a.live_fence()
    assert code(c.ask(KvGet(key="k"))) == ErrorCode.WAIT_TIMEOUT
    assert d.ask(KvCheck(keys=["k"])) == KvMissing(keys=["k"])


def test_keys_that_are_set_before_a_run_begins_are_there_when_it_does() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.ask(KvSet(key="old", value=b""))
    for node in (a, b):
        node.finish()
        node.leave()
    lab.node("v").ask(KvSet(key="new", value=b"1"))
    c, _ = world(lab, "c", "d")
    assert value(c.ask(KvGet(key="new"))) == b"1"
    assert c.ask(KvCheck(keys=["old", "new"])) == KvMissing(keys=["old"])


def test_b23_runs_do_not_see_each_others_keys() -> None:
    lab = Lab()
    one, two = lab.node("a", run="one"), lab.node("b", run="two")
    one.ask(KvSet(key="k", value=b""))
    assert code(two.ask(KvGet(key="k"))) == ErrorCode.UNKNOWN_RUN
    two.ask(KvSet(key="other", value=b""))
    assert code(two.ask(KvGet(key="k"))) == ErrorCode.WAIT_TIMEOUT


def test_a_misspelt_run_is_noticed_by_those_who_only_look() -> None:
    lab = Lab()
    a = lab.node("a")
    for ask in (KvGet(key="k"), KvCheck(keys=["k"]), KvCount(), KvList()):
        assert code(a.ask(ask)) == ErrorCode.UNKNOWN_RUN
    assert not lab.core.tables.runs


def test_l3_a_run_that_ended_is_not_forgotten_while_a_worker_waits_in_its_generation() -> None:
    lab = Lab(Settings(run_keep_s=2))
    (a,) = lab.world("a", rules=policy(1))
    wire, _ = a.worker()
    lab.send(wire, 2, KvGet(fence=a.live_fence(), key="k", timeout_ms=7_000))
    a.leave("finished")
    for _ in range(8):
        lab.send(wire, 3, Heartbeat())
        lab.advance(1)
    answer = wire.replies(2)
    assert [type(m) for m in answer] == [Error]
    assert code(answer[0]) == ErrorCode.WAIT_TIMEOUT
    lab.advance(3)
    assert RUN not in lab.core.tables.runs


def test_a_run_with_keys_only_is_forgotten_its_keep_time_after_the_last_use() -> None:
    lab = Lab(Settings(run_keep_s=10))
    a = lab.node("a")
    a.ask(KvSet(key="k", value=b""))
    beat_all(lab, [a], 8)
    a.ask(KvGet(key="k"))
    beat_all(lab, [a], 8)
    assert "llama" in lab.core.tables.runs
    beat_all(lab, [a], 3)
    assert "llama" not in lab.core.tables.runs


def test_s25_all_key_spaces_of_a_run_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KV_BYTES_PER_RUN_MAX", 10)
    lab = Lab()
    a, b = world(lab, "a", "b")
    a.ask(KvSet(key="r", value=b"1234"))
    a.set("g", b"1234")
    assert code(a.set("x")) == ErrorCode.LIMIT_EXCEEDED
    a.join()
    b.join()
    assert isinstance(a.set("x", b"1234"), Done), "a generation that is over gives its room back"


def test_b26_generations_leave_nothing_behind() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    for _ in range(50):
        a.set("k", b"x" * 1000)
        a.join()
        b.join()
    assert lab.run().quota.bytes_used == 0
    assert not lab.core.tables.rounds


def test_lists_come_in_pages_bounded_in_rows_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEYS_PER_PAGE_MAX", 3)
    monkeypatch.setattr(limits, "PAGE_BYTES_MAX", 10)
    a, _ = world(Lab(), "a", "b")
    fence = a.live_fence()
    for i in range(7):
        a.set(f"k{i}", b"12345678" if i == 1 else b"123")
    seen: list[str] = []
    sizes = []
    more = True
    while more:
        page = a.ask(KvList(fence=fence, after=seen[-1] if seen else "", values=True))
        assert isinstance(page, KvPage)
        seen += [entry.key for entry in page.entries]
        sizes.append(len(page.entries))
        more = page.more
    assert seen == [f"k{i}" for i in range(7)]
    assert sizes == [1, 1, 3, 2]
    assert a.ask(KvCount(fence=fence, prefix="k")) == KvNumber(value=7)


def test_b26_a_forgotten_run_lets_go_of_its_keys_and_payloads() -> None:
    lab = Lab(Settings(run_keep_s=2))
    a, b = world(lab, "a", "b")
    a.ask(KvSet(key="k", value=b"x" * 1000))
    a.set("g", b"x" * 1000)
    run = lab.run()
    for node in (a, b):
        node.finish()
        node.leave()
    assert run.quota.bytes_used > 2000
    lab.advance(3)
    assert "llama" not in lab.core.tables.runs
    assert (run.quota.bytes_used, len(run.kv), len(run.barriers)) == (0, 0, 0)
