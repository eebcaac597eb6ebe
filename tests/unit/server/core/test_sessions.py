"""Sessions: opened, resumed, suspected, lost, superseded; events keyed by session."""

import msgspec
import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Alive,
    CloseRun,
    Error,
    Fence,
    Heartbeat,
    HelloAdmin,
    HelloWorker,
    Join,
    Resume,
    ServerStatus,
    Status,
    ViewChanged,
    Welcome,
)
from rdzv_server.core import tables
from rdzv_server.core.burst import TOGETHER_S
from rdzv_server.core.events import Alive as TakesAnswers
from rdzv_server.core.events import Behind, Lost, StorageTrouble
from rdzv_server.core.sessions import RECOVERY_S_PER_NODE
from rdzv_server.core.settings import Settings
from tests.lab import EPOCH, RUN, Lab, Node, beat_all, policy

GRACE_S = 1.0


def code(node: Node) -> int | None:
    return None if node.refused is None else node.refused.code


# --- opening and resuming -----------------------------------------------------------------------


def test_a_hello_opens_a_session_with_the_lease_asked_for() -> None:
    node = Lab().node("a", lease_s=5)
    assert node.welcome is not None
    assert node.welcome.epoch == EPOCH
    assert node.welcome.lease_ms == 5000
    assert not node.welcome.resumed
    assert len(node.welcome.token) == 16


@pytest.mark.parametrize(("asked_s", "given_ms"), [(0.001, 200), (1e6, 3_600_000)])
def test_a_lease_is_kept_within_the_server_s_limits(asked_s: float, given_ms: int) -> None:
    node = Lab().node("a", lease_s=asked_s)
    assert node.welcome is not None
    assert node.welcome.lease_ms == given_ms


def test_s23_a_resumed_session_goes_on_where_it_was() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    wire = a.wire
    a.lose()
    lab.advance(0.3)
    a.resume()
    assert a.welcome is not None
    assert a.welcome.resumed
    assert a.welcome.view is not None
    assert a.welcome.view.fence == b.live_fence()
    lab.advance(3)
    assert lab.run().live is not None
    assert wire is not a.wire


def test_s5_the_same_incarnation_is_welcomed_again_without_proof() -> None:
    """Its first welcome may have been lost; it can never fence itself (KAFKA-20985)."""
    lab = Lab()
    a = lab.node("a")
    first = a.welcome
    a.hello()
    assert a.welcome is not None
    assert first is not None
    assert (a.welcome.session, a.welcome.token) == (first.session, first.token)
    assert not lab.reported("node_superseded")


def test_s5_a_connection_attempt_that_comes_late_does_not_displace_a_newer_one() -> None:
    lab = Lab()
    a = lab.node("a")
    a.hello()
    newer = a.wire
    a.attempt = 0  # the next hello carries attempt 1 again
    a.hello()
    assert code(a) == ErrorCode.SUPERSEDED
    assert not newer.closed


def test_s5_a_new_incarnation_fences_the_older_one_for_ever() -> None:
    lab = Lab()
    old = lab.node("n2", incarnation=1)
    proof = old.resume_proof
    new = lab.node("n2", incarnation=2)
    assert new.welcome is not None
    assert old.wire.closed
    assert old.wire.goodbye is not None
    assert old.wire.goodbye.code == ErrorCode.FENCED
    assert code(old.hello(proof)) == ErrorCode.FENCED
    assert code(old.hello()) == ErrorCode.FENCED, "live twins must not ping-pong"
    assert not new.wire.closed


def test_s5_a_replaced_process_is_told_that_it_is_fenced_and_nothing_before() -> None:
    lab = Lab()
    a = lab.node("a").join()
    lab.node("a", incarnation=2)
    last = a.wire.got[-1]
    assert isinstance(last[1], Error), "its join is answered"
    assert a.wire.goodbyes == [ErrorCode.FENCED]


def test_t5_a_session_is_resumed_by_its_own_process_in_its_own_part_only() -> None:
    lab = Lab()
    (a,) = lab.world("a", rules=policy(1))
    _, worker = a.worker()
    assert isinstance(worker, Welcome)
    stolen = Resume(worker.epoch, worker.session, worker.token)
    assert code(a.hello(stolen)) == ErrorCode.UNAUTHENTICATED, "a worker's session is no node's"
    twin = lab.node("a", incarnation=2, hello=False)
    assert code(twin.hello(a.resume_proof)) == ErrorCode.UNAUTHENTICATED
    assert a.resume().refused is None


def test_s6_the_close_of_a_fenced_connection_changes_nothing_for_the_successor() -> None:
    lab = Lab()
    rules = policy(2)
    old = lab.node("n2", incarnation=1, rules=rules)
    new = lab.node("n2", incarnation=2, rules=rules)
    new.join()
    other = lab.node("a", rules=rules)
    other.join()
    fence = new.live_fence()
    lab.apply(lab.core.handle(lab.now, Lost(old.wire.conn)))
    lab.advance(GRACE_S + 0.5)
    live = lab.run().live
    assert live is not None
    assert live.fence == fence


def test_s6_the_late_close_of_an_older_connection_of_the_same_session_changes_nothing() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    old = a.wire
    a.resume()
    assert old.closed, "the older connection is cut"
    lab.apply(lab.core.handle(lab.now, Lost(old.conn)))
    lab.advance(GRACE_S + 0.5)
    assert lab.run().live is not None


def test_a_wrong_token_is_refused_and_has_no_effect() -> None:
    lab = Lab()
    a = lab.node("a")
    assert a.welcome is not None
    guess = lab.node("a", hello=False)
    guess.hello(Resume(EPOCH, a.welcome.session, b"x" * 16))
    assert code(guess) == ErrorCode.UNAUTHENTICATED
    assert not a.wire.closed


def test_a_token_of_one_node_opens_no_session_of_another() -> None:
    lab = Lab()
    a, b = lab.node("a"), lab.node("b")
    b.hello(a.resume_proof)
    assert code(b) == ErrorCode.UNAUTHENTICATED


def test_s29_a_session_of_an_earlier_start_is_told_that_the_memory_is_gone() -> None:
    proof = Lab(epoch=1).node("a").resume_proof
    lab = Lab(epoch=2)
    a = lab.node("a", hello=False)
    a.hello(proof)
    assert code(a) == ErrorCode.UNKNOWN_EPOCH
    assert a.refused is not None
    assert "i2" in a.refused.message


def test_a_lost_session_cannot_be_resumed_but_the_process_may_start_a_new_one() -> None:
    lab = Lab()
    a = lab.node("a", lease_s=1)
    proof = a.resume_proof
    a.lose()
    lab.advance(GRACE_S + 0.3)
    assert code(a.hello(proof)) == ErrorCode.SESSION_LOST
    assert a.hello().welcome is not None
    assert a.refused is None


# --- suspicion and loss -------------------------------------------------------------------------


def test_l2_a_closed_connection_is_a_loss_after_the_grace_and_not_before() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    a.lose()
    lab.advance(GRACE_S - 0.1)
    assert lab.run().live is not None
    assert lab.members()["a"].state == "suspect"
    lab.advance(0.25)
    assert b.view.ended is not None
    assert b.view.ended.kind == "lost"
    assert b.waiting > 0
    assert "its connection closed" in b.view.ended.reason


def test_l2_silence_is_a_loss_one_lease_later() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    began = lab.now
    while b.view.ended is None:
        b.beat()
        lab.advance(0.1)
    assert 5.0 <= lab.now - began <= 5.35
    assert b.view.ended.kind == "lost"
    assert "silent for longer than its lease of 5.0 s" in b.view.ended.reason
    assert a.wire.closed, "a silent peer is cut"


def test_any_request_renews_the_lease() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    for _ in range(12):
        a.set("k")
        b.beat()
        lab.advance(1)
    assert lab.run().live is not None


def test_s33_a_heartbeat_that_was_in_the_kernel_when_time_was_up_saves_its_sender() -> None:
    """Two phases: the first tick after the deadline marks, the next one expires."""
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    due = lab.now + 5.0
    while lab.now < due - 0.1:
        b.beat()
        lab.advance(0.1)
    lab.now = due + 0.01
    lab.apply(lab.core.tick(lab.now))
    assert lab.core.tables.sessions[_session(a)].expiring_since == lab.core.tables.t
    a.beat()
    b.beat()
    lab.advance(0.5)
    assert lab.run().live is not None
    assert not lab.reported("node_lost")


def test_l10_those_who_expire_together_do_so_step_by_step_and_others_are_heard_between() -> None:
    lab = Lab(due_per_step=3)
    doomed = lab.world(*(f"node{i}" for i in range(8)), rules=policy(8))
    (other,) = lab.world("other", rules=policy(1), run="other")
    for node in doomed:
        node.lose()
    left: dict[int, float] = {}
    while len(lab.core.tables.sessions) > 1:
        left.setdefault(len(lab.core.tables.sessions) - 1, lab.now)
        assert isinstance(other.ask(Heartbeat()), Alive)
        due = lab.core.next_deadline()
        assert due is not None
        lab.now = max(lab.now, min(due, lab.now + 0.1))
        lab.apply(lab.core.tick(lab.now))
    assert list(left) == [8, 5, 2], "three at a time"
    assert lab.now - left[5] < 0.01, "the rest follows at once"
    assert lab.run("other").live is not None
    assert len(lab.reported("node_lost")) == 8


@pytest.mark.parametrize("stall_s", [0.3, 3.0, 60.0])
def test_s32_a_stall_of_the_server_is_charged_to_nobody(stall_s: float) -> None:
    lab = Lab()
    nodes = lab.world("a", "b", "c", rules=policy(3))
    for _ in range(20):
        beat_all(lab, nodes, 1.0, every=0.5)
        lab.stall(stall_s)
        beat_all(lab, nodes, 0.2, every=0.1)
    assert lab.run().live is not None
    assert not lab.reported("node_lost")
    assert lab.core.tables.clock.stalls == 20
    assert len(lab.reported("server_stalled")) == 20


@pytest.mark.parametrize("first", ["tick", "another's heartbeat"])
def test_s32_a_stall_between_the_two_phases_of_an_expiry_adds_one_more_look(first: str) -> None:
    """The timer fires first after a stall, and the heartbeat that came meanwhile is still unread."""
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    due = lab.now + 5.0
    while lab.now < due - 0.1:
        b.beat()
        lab.advance(0.1)
    lab.now = due + 0.01
    lab.apply(lab.core.tick(lab.now))
    assert lab.core.tables.sessions[_session(a)].expiring_since is not None
    lab.now += 8.0
    if first != "tick":
        b.beat()
    for _ in range(2):  # two timers that are due at once
        lab.apply(lab.core.tick(lab.now))
    a.beat()
    b.beat()
    lab.advance(0.5)
    assert lab.run().live is not None
    assert not lab.reported("node_lost")
    silent = lab.now + 6.0
    while lab.now < silent:
        b.beat()
        lab.advance(0.1)
    assert lab.reported("node_lost"), "one more look is all it gets"


def test_s32_a_grace_that_runs_during_a_stall_is_not_shortened() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    a.lose()
    lab.advance(0.5)
    lab.stall(30)
    lab.advance(0.2)
    assert lab.run().live is not None
    a.resume()
    lab.advance(2)
    assert lab.run().live is not None


def test_most_connections_at_once_are_the_network_and_the_lease_decides() -> None:
    lab = Lab()
    nodes = lab.world("a", "b", "c", "d", rules=policy(4))
    for node in nodes[:3]:
        node.lose()
        nodes[3].beat()
    lab.advance(GRACE_S + 1)
    assert lab.run().live is not None, "three of four within a moment: not three dead nodes"
    assert lab.reported("connections_lost_together")
    for node in nodes[:3]:
        node.resume()
    beat_all(lab, nodes, 8)
    assert lab.run().live is not None


def test_most_connections_at_once_are_still_lost_when_the_lease_ends() -> None:
    lab = Lab()
    nodes = lab.world("a", "b", "c", "d", rules=policy(4))
    for node in nodes[:3]:
        node.lose()
    beat_all(lab, nodes[3:], 6)
    assert nodes[3].view.ended is not None
    assert nodes[3].view.ended.kind == "lost"


def test_l7_a_large_world_that_broke_at_once_has_time_for_all_to_come_back() -> None:
    lab = Lab(Settings(reconnect_grace_s=0.1))
    count = 300
    nodes = [lab.node(f"n{i}", rules=policy(count), lease_s=0.3) for i in range(count)]
    for node in nodes:
        node.join()
    lab.advance(0.2)  # the last heartbeats were a while ago
    for node in nodes:
        node.lose()
    assert count * RECOVERY_S_PER_NODE > 0.5
    lab.advance(count * RECOVERY_S_PER_NODE - 0.05)
    assert lab.run().live is not None
    lab.advance(0.2)
    assert lab.run().live is None


def test_two_connections_at_once_are_two_dead_nodes() -> None:
    lab = Lab()
    nodes = lab.world("a", "b", "c", rules=policy(3))
    nodes[0].lose()
    nodes[1].lose()
    lab.advance(GRACE_S + 0.3)
    assert nodes[2].view.ended is not None


def test_connections_that_break_one_after_the_other_are_dead_nodes() -> None:
    lab = Lab()
    nodes = lab.world("a", "b", "c", "d", rules=policy(4))
    for node in nodes[:3]:
        node.lose()
        lab.advance(TOGETHER_S + 0.05)
    lab.advance(GRACE_S)
    assert nodes[3].view.ended is not None


# --- a server that does not come to accept everybody ------------------------------------------


def behind(lab: Lab, behind: bool) -> None:
    lab.apply(lab.core.handle(lab.now, Behind(behind)))


def test_l10_a_node_that_may_wait_in_the_backlog_is_not_lost_by_its_grace() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    a.lose()
    behind(lab, True)
    beat_all(lab, [b], GRACE_S + 2)
    assert lab.run().live is not None
    a.resume()
    behind(lab, False)
    beat_all(lab, [a, b], 3)
    assert lab.run().live is not None


def test_l10_when_the_backlog_is_empty_a_node_has_its_usual_grace() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    a.lose()
    behind(lab, True)
    beat_all(lab, [b], 2)
    behind(lab, False)
    beat_all(lab, [b], GRACE_S - 0.2)
    assert lab.run().live is not None
    beat_all(lab, [b], 0.4)
    assert b.view.ended is not None
    assert b.view.ended.kind == "lost"


def test_l10_a_flood_of_connections_does_not_keep_a_silent_node_alive() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    a.lose()
    behind(lab, True)
    beat_all(lab, [b], 5.5)
    assert b.view.ended is not None


def test_a_node_that_dies_long_after_a_backlog_has_its_usual_grace() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    behind(lab, True)
    behind(lab, False)
    beat_all(lab, [a, b], 30)
    a.lose()
    lab.advance(GRACE_S + 0.3)
    assert b.view.ended is not None


# --- connections that are nobody -----------------------------------------------------------------


def test_a_connection_without_a_hello_is_closed() -> None:
    lab = Lab()
    wire = lab.connect()
    lab.advance(4.9)
    assert not wire.closed
    lab.advance(0.3)
    assert wire.closed


def test_a_silent_admin_connection_is_closed_and_an_asking_one_is_not() -> None:
    lab = Lab()
    idle, busy = lab.admin(), lab.admin()
    for i in range(70):
        lab.advance(1)
        lab.send(busy, 10 + i, Status())
    assert idle.closed
    assert not busy.closed


def test_operations_are_refused_where_the_role_does_not_allow_them() -> None:
    lab = Lab()
    wire = lab.connect()
    reply = lab.send(wire, 1, Status())
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.NOT_A_MEMBER
    admin = lab.admin()
    for message in (Join(policy=policy(1)), HelloAdmin()):
        reply = lab.send(admin, 5, message)
        assert isinstance(reply, Error)
        assert reply.code in (ErrorCode.UNSUPPORTED, ErrorCode.MALFORMED)
    node = lab.node("a")
    reply = node.ask(Status())
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.UNSUPPORTED


# --- workers -------------------------------------------------------------------------------------


def test_a_worker_attaches_with_its_agent_s_token_and_its_end_changes_nothing() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    wire, reply = a.worker()
    assert isinstance(reply, Welcome)
    assert reply.view is not None
    assert reply.view.fence == a.live_fence()
    lab.lose(wire)
    beat_all(lab, [a, b], 8)
    assert lab.run().live is not None


def test_a_worker_is_told_of_the_end_of_its_generation() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    wire, _ = a.worker()
    b.leave("drained")
    push = wire.last(ViewChanged)
    assert push is not None
    assert push.view.ended is not None


@pytest.mark.parametrize(
    ("token", "expected"),
    [(b"x" * 32, ErrorCode.UNAUTHENTICATED), (None, ErrorCode.STALE_GENERATION)],
)
def test_a_worker_without_right_is_refused(token: bytes | None, expected: ErrorCode) -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    if token is None:
        b.leave("drained")
    _, reply = a.worker(token=token)
    assert isinstance(reply, Error)
    assert reply.code == expected


def test_the_token_of_one_node_does_not_admit_workers_of_another() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    assert a.joined is not None
    _, reply = b.worker(token=a.joined.worker_token)
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.UNAUTHENTICATED


def test_a_worker_of_an_earlier_server_start_is_told_so() -> None:
    lab = Lab(epoch=2)
    a = lab.world("a", "b", rules=policy(2))[0]
    assert a.joined is not None
    reply = lab.send(
        lab.connect(), 1,
        HelloWorker(
            run=RUN, node_id="a", fence=Fence(1, 1), rank=0, worker_token=b"x" * 32,
            incarnation=b"w" * 16,
        ),
    )  # fmt: skip
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.UNKNOWN_EPOCH


def test_heartbeats_are_answered() -> None:
    node = Lab().node("a")
    reply = node.ask(Heartbeat())
    assert reply is not None
    assert reply.op == "alive"


def test_s28_nobody_is_lost_while_nothing_can_be_stored_and_for_a_lease_after_that() -> None:
    lab = Lab()
    a, b, c = (lab.node(name, lease_s=2) for name in "abc")
    lab.apply(lab.core.handle(lab.now, StorageTrouble("no space")))
    b.lose()
    for _ in range(10):  # c is silent: it came back, and could not be answered
        lab.advance(1.0)
        a.beat()
    assert {"b", "c"} <= _living(lab)
    lab.apply(lab.core.handle(lab.now, StorageTrouble("")))
    lab.advance(1.0)
    a.beat()
    c.beat()
    assert "b" in _living(lab)
    lab.advance(1.5)
    a.beat()
    assert _living(lab) == {"a", "c"}


def test_s28_a_tool_may_look_while_nothing_can_be_stored_and_is_answered_at_once() -> None:
    lab = Lab()
    lab.world("a", "b", rules=policy(2))
    lab.apply(lab.core.handle(lab.now, StorageTrouble("no space")))
    wire = lab.connect()
    assert isinstance(lab.core.request(wire.conn, 1, HelloAdmin()), Welcome)
    reply = lab.core.request(wire.conn, 2, Status())
    assert isinstance(reply, ServerStatus)
    assert reply.read_only == "no space"
    assert lab.core.request(wire.conn, 3, CloseRun(run=RUN)) is None, "a change is not told at once"


def _living(lab: Lab) -> set[str]:
    return {session.node_id for session in lab.core.tables.sessions.values()}


def _session(node: Node) -> int:
    assert node.welcome is not None
    return node.welcome.session


def test_a_worker_comes_back_to_its_session_with_proof() -> None:
    lab = Lab()
    (a,) = lab.world("a", rules=policy(1))
    wire, welcome = a.worker()
    assert isinstance(welcome, Welcome)
    lab.lose(wire)
    hello = HelloWorker(
        run=RUN, node_id="a", fence=a.live_fence(), rank=0, incarnation=lab.core.tables.sessions[welcome.session].incarnation,
        worker_token=a.joined.worker_token if a.joined else b"", attempt=1,
        resume=Resume(welcome.epoch, welcome.session, welcome.token),
    )  # fmt: skip
    again = lab.send(lab.connect(), 1, hello)
    assert isinstance(again, Welcome)
    assert again.resumed
    assert again.session == welcome.session
    stranger = msgspec.structs.replace(hello, incarnation=b"s" * 16)
    refused = lab.send(lab.connect(), 1, stranger)
    assert isinstance(refused, Error)
    assert refused.code == ErrorCode.UNAUTHENTICATED


def test_a_worker_of_a_run_that_was_forgotten_is_told_so() -> None:
    lab = Lab(Settings(run_keep_s=1))
    (a,) = lab.world("a", rules=policy(1))
    a.leave("finished")
    lab.advance(2)
    _, reply = a.worker()
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.UNKNOWN_RUN


def test_a_peer_that_takes_its_answers_is_alive_though_nothing_of_it_is_read() -> None:
    lab = Lab()
    a = lab.node("a", lease_s=2).join()
    for _ in range(5):
        lab.advance(1)
        lab.apply(lab.core.handle(lab.now, TakesAnswers(a.wire.conn)))
    assert "a" in lab.members()
    lab.apply(lab.core.handle(lab.now, TakesAnswers(9_999)))  # gone meanwhile
    lab.advance(2.2)
    assert "a" not in lab.members()


def is_fenced(node: Node) -> None:
    assert node.refused is not None
    assert node.refused.code == ErrorCode.FENCED


def test_s5_a_process_that_was_lost_and_replaced_is_fenced_when_it_goes_on() -> None:
    lab = Lab()
    old = lab.node("a", rules=policy(1)).join()
    lab.advance(old.lease_s + 1)
    new = lab.node("a", rules=policy(1), incarnation=2).join()
    old.hello(old.resume_proof)
    is_fenced(old)
    old.hello()
    is_fenced(old)
    assert new.wire.goodbye is None
    new.beat()
    assert not new.wire.closed


def test_s5_so_it_is_when_the_server_was_restarted_between() -> None:
    lab = Lab()
    old = lab.node("a", rules=policy(1)).join()
    lab.advance(old.lease_s + 1)
    lab.restart()
    new = lab.node("a", rules=policy(1), incarnation=2).join()
    lab.restart()
    new.resume()
    old.hello()
    is_fenced(old)


def test_a_process_that_was_lost_and_not_replaced_comes_back() -> None:
    lab = Lab()
    old = lab.node("a", rules=policy(1)).join()
    lab.advance(old.lease_s + 1)
    old.hello()
    assert old.refused is None
    assert not lab.core.tables.lost
    lab.node("a", rules=policy(1), incarnation=2)
    old.hello()
    assert old.refused is not None


def test_s5_it_is_fenced_as_well_when_its_run_was_forgotten_between() -> None:
    lab = Lab(Settings(run_keep_s=1))
    old = lab.node("a", rules=policy(1)).join()
    lab.advance(old.lease_s + 10)
    assert RUN not in lab.core.tables.runs
    new = lab.node("a", rules=policy(1), incarnation=2).join()
    old.hello()
    is_fenced(old)
    assert new.wire.goodbye is None


def test_s5_it_is_fenced_as_well_when_it_had_not_joined_yet() -> None:
    lab = Lab()
    old = lab.node("a", rules=policy(1))
    lab.advance(old.lease_s + 1)
    lab.node("a", rules=policy(1), incarnation=2).join()
    old.hello()
    is_fenced(old)


def test_s5_it_is_fenced_as_well_when_it_had_left_before_in_an_orderly_way() -> None:
    """It may live on, and its next hello must not end the process that has its node id by then."""
    lab = Lab()
    old = lab.node("a", rules=policy(1)).join()
    old.leave("finished")
    lab.advance(old.lease_s + 1)
    new = lab.node("a", rules=policy(1), incarnation=2).join()
    old.hello()
    is_fenced(old)
    assert new.wire.goodbye is None


def test_a_process_that_left_and_was_not_replaced_comes_back() -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(1)).join()
    a.leave("drained")
    lab.advance(a.lease_s + 1)
    a.hello()
    assert a.refused is None


def test_the_process_that_was_lost_first_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "FENCED_KEPT_MAX", 1)
    lab = Lab()
    for name in ("a", "b"):
        lab.advance(lab.node(name, rules=policy(1)).join().lease_s + 1)
    assert [node_id for _, node_id in lab.core.tables.lost] == ["b"]


def test_l11_who_drops_between_two_halves_of_a_network_s_moment_is_spared_like_the_others() -> None:
    lab = Lab()
    nodes = lab.world("a", "b", "c", "d", rules=policy(4))
    for node in nodes[:3]:
        node.lose()  # three of four: the network
    for node in nodes[:3]:
        node.resume()
    for node in nodes[3:] + nodes[:2]:  # d first, when only it is away
        node.lose()
    lab.advance(GRACE_S + 0.5)
    assert set(lab.members()) == {"a", "b", "c", "d"}
