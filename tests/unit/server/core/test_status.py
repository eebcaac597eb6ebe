"""What tools see."""

import pytest

from rdzv_proto import PROTOCOL_VERSION, limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Error,
    ListRuns,
    MemberPage,
    Members,
    Runs,
    ServerStatus,
    Status,
)
from tests.lab import EPOCH, RUN, Lab, beat_all, policy


def test_the_server_tells_who_it_is_and_how_long_it_runs() -> None:
    lab = Lab()
    lab.world("a", "b", rules=policy(2))
    lab.advance(4)
    lab.stall(3)
    status = lab.send(lab.admin(), 2, Status())
    assert isinstance(status, ServerStatus)
    assert (status.protocol, status.epoch, status.state) == (PROTOCOL_VERSION, EPOCH, "memory")
    assert (status.sessions, status.runs, status.stalls) == (2, 1, 1)
    assert status.uptime_ms == pytest.approx(7000, abs=1)
    assert status.stalled_ms == pytest.approx(2900, abs=1)


def test_a_run_shows_its_phase_generation_and_the_reason() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(2, 4)).join()
    assert (lab.status().phase, lab.status().reason) == ("forming", "1 of min 2 nodes joined")
    b = lab.node("b", rules=policy(2, 4)).join()
    assert lab.status().phase == "last_call"
    lab.advance(2.2)
    status = lab.status()
    assert (status.phase, status.participants) == ("live", 2)
    assert status.fence == a.live_fence()
    assert "last call is over" in status.reason
    b.lose()
    beat_all(lab, [a], 1.4, every=0.2)
    status = lab.status()
    assert status.phase == "forming"
    assert status.ended is not None
    assert status.ended.kind == "lost"
    assert status.waiting_for == ["a", "b"]


def test_an_ended_run_waits_for_nobody() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    spare = lab.node("c", rules=policy(2)).join()
    a.finish()
    b.finish()
    assert spare.error is not None
    status = lab.status()
    assert (status.phase, status.waiting_for) == ("ended", [])


def test_members_are_listed_by_rank_with_state_and_age() -> None:
    lab = Lab()
    nodes = lab.world("a", "b", "c", rules=policy(3))
    lab.node("d", rules=policy(3)).join()
    nodes[1].lose()
    nodes[2].finish()
    beat_all(lab, [nodes[0]], 0.5)
    rows = list(lab.members().values())
    assert [(m.node_id, m.group_rank, m.state) for m in rows] == [
        ("a", 0, "participant"),
        ("b", 1, "suspect"),
        ("c", 2, "finished"),
        ("d", None, "standby"),
    ]
    assert rows[1].incarnation_age_ms == pytest.approx(500, abs=2)
    assert rows[1].heard_ms_ago == pytest.approx(500, abs=2)


def test_a_member_that_has_not_rejoined_is_idle() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    a.join()
    assert {m.node_id: m.state for m in lab.members().values()} == {"a": "joining", "b": "idle"}


def test_runs_and_members_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RUNS_PER_PAGE_MAX", 2)
    monkeypatch.setattr(limits, "MEMBERS_PER_PAGE_MAX", 2)
    lab = Lab()
    for run in ("c", "a", "b"):
        for i in range(3):
            lab.node(f"n{i}", run=run, rules=policy(3)).join()
    admin = lab.admin()
    first = lab.send(admin, 2, ListRuns())
    assert isinstance(first, Runs)
    assert ([r.run for r in first.runs], first.more) == (["a", "b"], True)
    second = lab.send(admin, 3, ListRuns(after="b"))
    assert isinstance(second, Runs)
    assert ([r.run for r in second.runs], second.more) == (["c"], False)
    page = lab.send(admin, 4, Members(run="a", offset=2))
    assert isinstance(page, MemberPage)
    assert ([m.node_id for m in page.members], page.total) == (["n2"], 3)


def test_an_unknown_run_is_an_error() -> None:
    lab = Lab()
    for message in (ListRuns(only="x"), Members(run="x")):
        reply = lab.send(lab.admin(), 2, message)
        assert isinstance(reply, Error)
        assert reply.code == ErrorCode.UNKNOWN_RUN


def test_a_node_may_list_its_own_run_only() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    lab.node("z", run="other", rules=policy(1)).join()
    page = a.ask(Members(run=RUN))
    assert isinstance(page, MemberPage)
    assert page.fence == a.live_fence()
    reply = a.ask(Members(run="other"))
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.UNKNOWN_RUN
