"""Recorded replies: kept until they are acknowledged, and never too many of them."""

import pytest

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Done, Error, Finished, Heartbeat, KvAdd, KvNumber
from rdzv_server.core import replies
from tests.lab import Lab, policy


def test_a_recorded_reply_is_repeated_until_it_is_acknowledged() -> None:
    lab = Lab()
    (a,) = lab.world("a", rules=policy(1))
    assert a.add("n", request_id=50) == a.add("n", request_id=50) == KvNumber(value=1, revision=1)
    a.ask(Heartbeat(acknowledged=50), 51)
    again = a.ask(KvAdd(fence=a.live_fence(), key="n", delta=1), 50)
    assert isinstance(again, Error)
    assert again.code == ErrorCode.MALFORMED
    assert a.add("n", request_id=52) == KvNumber(value=2, revision=2)


def test_an_acknowledgement_forgets_what_it_names_and_nothing_else() -> None:
    lab = Lab()
    lab.world("a", rules=policy(1))
    session = lab.core.tables.nodes[("llama", "a")]
    session.replies.clear()
    session.replies.update(dict.fromkeys((7, 5, 9), Done()))  # waiting ones are answered late
    replies.acknowledge(lab.core.tables, session, 7)
    assert list(session.replies) == [9]
    replies.acknowledge(lab.core.tables, session, 6)
    assert session.acknowledged == 7


def test_an_acknowledgement_of_all_replies_leaves_nothing_of_them() -> None:
    lab = Lab()
    lab.world("a", rules=policy(1))
    session = lab.core.tables.nodes[("llama", "a")]
    session.record(9, Done(), apart=True)
    session.record(7, Done())
    replies.acknowledge(lab.core.tables, session, 9)
    assert (session.replies, session.transient, session.acknowledged) == ({}, set(), 9)
    replies.acknowledge(lab.core.tables, session, 11)  # nothing is left, and that is fine
    assert session.acknowledged == 11


def test_a_request_whose_reply_cannot_be_kept_is_told_why() -> None:
    lab = Lab()
    lab.world("a", rules=policy(1))
    session = lab.core.tables.nodes[("llama", "a")]
    replies.acknowledge(lab.core.tables, session, 7)
    late, many = replies.not_kept(session, 7), replies.not_kept(session, 8)
    assert (late.code, many.code) == (ErrorCode.MALFORMED, ErrorCode.LIMIT_EXCEEDED)
    assert "request 7 was acknowledged" in late.message
    assert (
        f"{limits.REPLIES_RECORDED_MAX} replies of this session are not acknowledged"
        in many.message
    )


def test_t14_a_session_that_never_acknowledges_is_refused_and_refusals_are_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "REPLIES_RECORDED_MAX", 4)
    lab = Lab()
    (a,) = lab.world("a", rules=policy(1))
    session = lab.core.tables.nodes[("llama", "a")]
    for _ in range(9):
        last = a.add("n")
    assert isinstance(last, Error)
    assert last.code == ErrorCode.LIMIT_EXCEEDED
    assert len(session.replies) == 4
    a.ask(Heartbeat(acknowledged=10_000))
    assert isinstance(a.add("n", request_id=5_001), Error), "acknowledged before it was asked"
    assert not session.replies
    wire, _ = a.worker()
    lab.send(wire, 7, Finished(fence=a.live_fence()))  # not for workers
    assert not any(worker.replies for worker in lab.core.tables.workers.values())
