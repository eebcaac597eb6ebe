"""The core as a whole: one way in, shutting down, runs apart from each other, time."""

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Done,
    Error,
    Goodbye,
    Heartbeat,
    HelloAdmin,
    KvAdd,
    KvNumber,
    Leave,
    Status,
    ViewChanged,
)
from rdzv_server.core.events import Broadcast, Lost, Received, Report, Send
from rdzv_server.core.sessions import SOCKET_POLL_S
from tests.lab import Lab, beat_all, policy


def test_requests_of_an_unknown_connection_are_ignored() -> None:
    lab = Lab()
    assert lab.core.handle(lab.now, Received(4711, 1, Status())) == []
    assert lab.core.handle(lab.now, Lost(4711)) == []


def test_nothing_is_pending_on_an_empty_server() -> None:
    assert Lab().core.next_deadline() is None


def test_the_next_deadline_leaves_time_for_one_more_look_at_the_sockets() -> None:
    lab = Lab()
    lab.node("a", lease_s=1)
    lab.now += 0.15
    lab.apply(lab.core.tick(lab.now))
    due = lab.core.next_deadline()
    assert due is not None
    assert due >= lab.now + SOCKET_POLL_S


def test_shutting_down_tells_every_connection_and_does_nothing_that_still_comes() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    effects = lab.core.shut_down(lab.now, 500)
    (push,) = [e for e in effects if isinstance(e, Broadcast)]
    assert isinstance(push.message, Goodbye)
    assert (push.message.code, push.message.retry_after_ms) == (ErrorCode.SHUTTING_DOWN, 500)
    assert set(push.conns) == {a.wire.conn, b.wire.conn}
    assert a.set("k") is None, "the next server is asked again"
    late = lab.send(lab.connect(), 1, HelloAdmin())
    assert isinstance(late, Error)
    assert late.code == ErrorCode.SHUTTING_DOWN
    assert a.ask(Heartbeat()) is not None


def test_s31_only_differences_of_the_monotonic_clock_matter() -> None:
    outcomes = []
    for start in (0.0, 1e9):
        lab = Lab()
        lab.now = start
        a, b = lab.world("a", "b", rules=policy(2))
        a.lose()
        lab.advance(1.3)
        b.join()
        outcomes.append([type(m).__name__ for _, m in b.wire.got])
    assert outcomes[0] == outcomes[1]


def test_s34_operations_are_allowed_by_role_and_everything_else_is_refused() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    wire, _ = a.worker()
    from rdzv_proto.messages import Join, Leave

    for message in (Join(policy=policy(2)), Leave(kind="failed"), Status()):
        reply = lab.send(wire, 5, message)
        assert isinstance(reply, Error)
        assert reply.code == ErrorCode.UNSUPPORTED
    assert lab.run().live is not None


def test_b23_the_end_of_one_run_moves_no_other() -> None:
    lab = Lab()
    steady = [lab.node(n, run="steady", rules=policy(2)).join() for n in ("a", "b")]
    fence = steady[0].live_fence()
    ends = {}
    for run in ("finished", "failed", "killed", "closed"):
        ends[run] = [lab.node(n, run=run, rules=policy(2)).join() for n in ("a", "b")]
    for node in ends["finished"]:
        node.finish()
    ends["failed"][0].leave("failed", exit_code=1)
    for node in ends["killed"]:
        node.lose()
    from rdzv_proto.messages import CloseRun

    ends["closed"][0].ask(CloseRun(run="closed"))
    beat_all(lab, steady, 6)
    live = lab.run("steady").live
    assert live is not None
    assert live.fence == fence
    assert steady[0].waiting == 0


def test_every_report_carries_run_node_and_fence() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    b.lose()
    lab.advance(1.4)
    a.join()
    a.leave("drained")
    for report in lab.reports:
        if report.event == "server_stalled":
            continue
        assert report.run == "llama", report
    (lost,) = lab.reported("node_lost")
    assert (lost.node, lost.fence) == ("b", "1000.1")
    assert lost.fields["last_heard_s_ago"] == pytest.approx(1.0, abs=0.15)


def test_requests_of_one_batch_are_steps_of_their_own() -> None:
    """What a request brings about goes out before the reply to the next one."""
    lab = Lab(durable=False)
    a, b = lab.world("a", "b", rules=policy(2))
    key = KvAdd(fence=a.live_fence(), key="k", delta=1)
    core, conn = lab.core, a.wire.conn
    core.begin(lab.now)
    assert core.request(conn, 50, key) == KvNumber(value=1, revision=1)
    assert core.outcome() == []
    assert core.request(conn, 50, key) == KvNumber(value=1, revision=1), "done once (S23)"
    assert core.request(b.wire.conn, 51, Leave(kind="drained")) is None
    told = [e for e in core.outcome() if not isinstance(e, Report)]
    assert Send(b.wire.conn, 51, Done()) in told
    assert any(isinstance(e, Send | Broadcast) and isinstance(e.message, ViewChanged) for e in told)
    refused = core.request(conn, 52, key)
    assert isinstance(refused, Error)
    assert refused.code == ErrorCode.STALE_GENERATION
    assert core.request(999, 1, key) is None, "a connection that nobody knows"
