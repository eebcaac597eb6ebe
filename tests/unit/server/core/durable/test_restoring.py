"""A server that resumes: what an earlier process acknowledged is there, nothing is done twice, and who does not
come back is lost (S2, S3, S5, S6, S10, S23, S26, L7)."""

import hashlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyRequest,
    Barrier,
    CloseRun,
    Done,
    Error,
    Fence,
    GenerationStatus,
    Heartbeat,
    Join,
    KvAdd,
    KvAppend,
    KvCas,
    KvDelete,
    KvGet,
    KvMultiSet,
    KvNumber,
    KvSet,
    KvSwapped,
    KvValue,
    Leave,
    Released,
    Resume,
    ShowGeneration,
    Welcome,
)
from rdzv_server.core import tables
from rdzv_server.core.coordinator import Coordinator
from rdzv_server.core.durable import restoring
from rdzv_server.core.durable.saving import SESSIONS_RESERVED
from rdzv_server.core.durable.stored import StoredMeta, key_bytes, pack, unpack
from rdzv_server.core.invariants import Monitor
from rdzv_server.core.model import Phase
from rdzv_server.core.settings import Identity, Settings
from tests.lab import EPOCH, RUN, Lab, Node, beat_all, identity, policy


class Reborn(Lab):
    """A restart is another process, as it is under the shell: another instance with another secret key."""

    starts = 0

    def restart(self, *, after_s: float = 1.0) -> None:
        for wire in self.wires.values():
            wire.closed = True
        for store_wire in self.store_wires.values():
            store_wire.closed = True
        self.listeners.clear()
        self.now += after_s
        self.monitor = Monitor()
        self.starts += 1
        key = hashlib.sha256(f"start {self.starts}".encode()).digest()
        again = Identity("rdzv test", f"start{self.starts}", EPOCH, key)
        self.core = Coordinator(self.settings, again, durable=True)
        self.apply(self.core.resume(self.now, dict(self.stored)))


@pytest.fixture
def lab() -> Lab:
    return Reborn()


def back(*nodes: Node) -> None:
    for node in nodes:
        node.resume()
        assert node.welcome is not None
        assert node.refused is None, node.refused
        assert node.welcome.resumed


def retry_join(node: Node) -> None:
    """As a client re-sends it: under its first request id."""
    ask = Join(
        policy=node.rules, last=node.fence, rank_hint=node.hint, expected_nodes=node.expected
    )
    node.ask(ask, node.join_id)


def code(reply: object) -> ErrorCode:
    assert isinstance(reply, Error), reply
    return ErrorCode(reply.code)


def number(reply: object) -> int:
    assert isinstance(reply, KvNumber), reply
    return reply.value


def own(kind: Callable[..., AnyRequest], **fields: object) -> AnyRequest:
    """A request on the keys of the run itself."""
    return kind(fence=None, **fields)


# --- the generation ---------------------------------------------------------------------------


def test_a_live_generation_goes_on_with_its_fence_ranks_digest_and_table(lab: Lab) -> None:
    nodes = lab.world("a", "b", "c", rules=policy(3))
    before, table = [n.joined for n in nodes], lab.run().generation
    assert table is not None
    lab.restart()
    back(*nodes)
    for node in nodes:
        retry_join(node)
    after = lab.run().generation
    assert after is not None
    assert (after.fence, after.participants, after.digest) == (
        table.fence, table.participants, table.digest,
    )  # fmt: skip
    for node, old in zip(nodes, before, strict=True):
        new = node.joined
        assert old is not None
        assert new is not None
        for name in ("fence", "group_rank", "world_size", "digest", "master", "master_reason"):
            assert getattr(new, name) == getattr(old, name), name
    assert not lab.reported("generation_ended")
    assert len(lab.reported("generation_formed")) == 1
    assert lab.status().phase == "live"


def test_the_epoch_stays_and_the_instance_is_another(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    old = a.welcome
    lab.restart()
    back(a)
    assert old is not None
    assert a.welcome is not None
    assert (a.welcome.epoch, a.welcome.session) == (old.epoch, old.session)
    assert a.welcome.instance != old.instance
    assert a.welcome.view is not None
    assert a.welcome.view.fence == a.live_fence()
    assert a.welcome.view.ended is None


def test_the_next_generation_after_a_restart_has_a_higher_number(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(1, 2, last_call_s=0.5))
    first = a.live_fence()
    lab.restart()
    back(a)
    beat_all(lab, [a], 6)
    assert a.ended_kind == "lost"
    a.join()
    beat_all(lab, [a], 1)
    assert a.live_fence() > first
    assert a.live_fence().epoch == first.epoch
    assert b.joined is not None


def test_survivors_keep_their_places_in_a_world_that_forms_after_a_restart(lab: Lab) -> None:
    nodes = lab.world("a", "b", "c", rules=policy(1, 3, last_call_s=0.5))
    lab.restart()
    back(*nodes[1:])
    beat_all(lab, nodes[1:], 6)
    for node in reversed(nodes[1:]):
        node.join()
    beat_all(lab, nodes[1:], 1)
    assert [n.rank for n in nodes[1:]] == [0, 1]


def test_a_request_of_an_earlier_generation_is_stale_after_a_restart_too(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    old = a.live_fence()
    a.join()
    new = a.live_fence()
    assert new > old
    lab.restart()
    back(a)
    assert code(a.ask(KvSet(fence=old, key="k", value=b"v"))) == ErrorCode.STALE_GENERATION
    assert isinstance(a.ask(KvSet(fence=new, key="k", value=b"v")), Done)


def test_an_ended_generation_stays_ended_with_its_reason(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(1, 2))
    fence = a.live_fence()
    b.leave("failed", exit_code=3, detail="oom")
    assert a.view.ended is not None
    ended = a.view.ended
    lab.restart()
    back(a)
    assert a.welcome is not None
    assert a.welcome.view is not None
    assert a.welcome.view.ended == ended
    reply = a.ask(KvGet(fence=fence, key="k"))
    assert code(reply) == ErrorCode.STALE_GENERATION
    assert isinstance(reply, Error)
    assert "exit code 3" in reply.message
    assert lab.status().ended == ended


def test_two_restarts_in_a_row_change_nothing(lab: Lab) -> None:
    nodes = lab.world("a", "b", rules=policy(2))
    a = nodes[0]
    a.add("n", request_id=70)
    before = dict(lab.stored)
    lab.restart()
    lab.restart(after_s=0.1)
    assert lab.stored == before
    back(*nodes)
    lab.restart()
    back(*nodes)
    assert number(a.add("n", request_id=70)) == 1
    assert number(a.add("n")) == 2
    assert lab.status().phase == "live"


def test_a_restart_during_the_last_call_forms_when_the_joins_are_asked_again(lab: Lab) -> None:
    rules = policy(2, 4, last_call_s=2)
    a, b = lab.nodes("a", "b", rules=rules)
    a.join()
    b.join()
    assert lab.status().phase == "last_call"
    lab.advance(1.5)
    lab.restart()
    assert lab.status().phase == "forming"
    back(a, b)
    retry_join(a)
    retry_join(b)
    assert a.answer is None
    lab.advance(2.2)
    assert [a.rank, b.rank] == [0, 1]
    assert a.joined is not None
    assert b.joined is not None
    assert a.joined.digest == b.joined.digest


def test_a_join_that_waited_is_asked_again_and_forms(lab: Lab) -> None:
    a = lab.node("a", rules=policy(2))
    a.join()
    lab.restart()
    back(a)
    retry_join(a)
    b = lab.node("b", rules=policy(2))
    b.join()
    assert {a.rank, b.rank} == {0, 1}


def test_a_policy_that_was_fixed_before_a_restart_still_counts(lab: Lab) -> None:
    a = lab.node("a", rules=policy(2, 3))
    a.join()
    lab.restart()
    back(a)
    b = lab.node("b", rules=policy(2, 4))
    b.join()
    assert b.code == ErrorCode.POLICY_MISMATCH
    assert b.error is not None
    assert "from a" in b.error.message


def test_the_answer_to_a_join_that_was_lost_in_the_crash_comes_with_the_retry(lab: Lab) -> None:
    """The generation was stored, and nobody was told."""
    a, b = lab.nodes("a", "b", rules=policy(2))
    a.join()
    b.join()
    a.wire.got.clear()
    b.wire.got.clear()
    lab.restart()
    back(a, b)
    retry_join(b)
    retry_join(a)
    assert {a.rank, b.rank} == {0, 1}
    assert len(lab.reported("generation_formed")) == 1


# --- sessions ---------------------------------------------------------------------------------


def test_a_session_resumes_with_its_token_again_and_again(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    assert a.welcome is not None
    token = a.welcome.token
    for _ in range(3):
        lab.restart()
        back(a)
        assert a.welcome.token == token
    a.lose()
    back(a)


def test_a_wrong_token_is_refused_and_harms_nobody(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    proof = a.resume_proof
    lab.restart()
    a.hello(Resume(proof.epoch, proof.session, b"x" * 16))
    assert code(a.refused) == ErrorCode.UNAUTHENTICATED
    a.hello(proof)
    assert a.refused is None


def test_the_token_that_a_new_process_would_make_is_no_key_to_an_old_session(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    proof = a.resume_proof
    lab.restart()
    made = lab.core.tables.session_token(proof.session, RUN, "a")
    assert made != proof.token
    a.hello(Resume(proof.epoch, proof.session, made))
    assert code(a.refused) == ErrorCode.UNAUTHENTICATED


def test_a_process_that_never_got_its_token_says_hello_again_and_is_itself(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    assert a.welcome is not None
    session = a.welcome.session
    lab.restart()
    a.hello()
    assert a.welcome.session == session
    assert a.welcome.resumed
    assert a.view.ended is None
    lab.restart()
    back(a)  # with the token that came last


def test_a_session_token_is_of_no_use_for_another_node(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    lab.restart()
    b.hello(a.resume_proof)
    assert code(b.refused) == ErrorCode.UNAUTHENTICATED


def test_a_fenced_process_stays_fenced(lab: Lab) -> None:
    old = lab.node("a")
    lab.node("a", incarnation=2)
    lab.restart()
    old.resume()
    assert code(old.refused) == ErrorCode.FENCED
    old.hello()
    assert code(old.refused) == ErrorCode.FENCED
    assert old.welcome is not None
    old.hello(Resume(EPOCH, old.welcome.session, b"x" * 16))
    assert code(old.refused) == ErrorCode.FENCED


def test_a_process_that_takes_over_after_a_restart_fences_the_one_before_it(lab: Lab) -> None:
    old, other = lab.world("a", "b", rules=policy(2))
    lab.restart()
    back(other)
    lab.node("a", incarnation=2)
    old.resume()
    assert code(old.refused) == ErrorCode.FENCED
    assert other.ended_kind == "replaced"
    lab.restart()
    old.resume()
    assert code(old.refused) == ErrorCode.FENCED


def test_a_lost_session_stays_lost(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    a.lose()
    lab.advance(2)
    lab.restart()
    a.resume()
    assert code(a.refused) == ErrorCode.SESSION_LOST


def test_session_ids_are_never_given_out_twice(lab: Lab) -> None:
    ids = []
    for turn in range(4):
        for n in range(3):
            node = lab.node(f"n{turn}-{n}")
            assert node.welcome is not None
            ids.append(node.welcome.session)
        lab.restart()
    assert ids == sorted(set(ids))
    assert ids[-1] < 5 * SESSIONS_RESERVED


def test_a_reservation_of_session_ids_is_written_before_it_is_used_up(lab: Lab) -> None:
    for n in range(3):
        lab.core.tables.session_last += SESSIONS_RESERVED - 1
        node = lab.node(f"n{n}")
        meta = unpack(lab.stored[key_bytes(("meta",))], StoredMeta)
        assert node.welcome is not None
        assert node.welcome.session <= meta.sessions_reserved


# --- keys -------------------------------------------------------------------------------------


def test_keys_of_run_and_generation_and_their_revisions_are_there(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    a.set("k", b"of the generation")
    a.ask(own(KvSet, key="k", value=b"of the run"))
    a.ask(own(KvSet, key="l", value=bytes(range(256))))
    lab.restart()
    back(a)
    assert a.get("k") == KvValue(value=b"of the generation", revision=1)
    assert a.ask(own(KvGet, key="k")) == KvValue(value=b"of the run", revision=1)
    assert a.ask(own(KvGet, key="l")) == KvValue(value=bytes(range(256)), revision=2)


def test_the_revision_of_a_deleted_key_is_not_used_again(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    a.set("k", b"1")
    a.ask(KvDelete(fence=a.live_fence(), keys=["k"]))
    lab.restart()
    back(a)
    assert a.set("k", b"1") == Done(revision=3)
    swap = KvCas(fence=a.live_fence(), key="k", value=b"2", revision=1)
    assert a.ask(swap) == KvSwapped(value=b"1", revision=3)


def test_a_run_may_hold_as_much_after_a_restart_as_before(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KV_BYTES_PER_RUN_MAX", 100)
    (a,) = lab.world("a", rules=policy(1))
    a.set("a", b"x" * 39)
    a.ask(own(KvSet, key="b", value=b"x" * 39))
    lab.restart()
    back(a)
    assert code(a.set("c", b"x" * 30)) == ErrorCode.LIMIT_EXCEEDED
    assert isinstance(a.set("c", b"x" * 19), Done)
    a.ask(own(KvDelete, keys=["b"]))
    assert isinstance(a.set("d", b"x" * 39), Done)
    run = lab.run()
    assert run.generation is not None
    assert run.quota.bytes_used == run.kv.bytes_used + run.generation.kv.bytes_used


WRITES: list[tuple[Callable[[Fence | None], AnyRequest], object]] = [
    (lambda fence: KvAdd(fence=fence, key="n", delta=5), KvNumber(value=12, revision=3)),
    (
        lambda fence: KvCas(fence=fence, key="n", value=b"8", expected=b"7"),
        KvSwapped(swapped=True, value=b"8", revision=3),
    ),
    (
        lambda fence: KvCas(fence=fence, key="n", value=b"8", expected=b"6"),
        KvSwapped(value=b"7", revision=1),
    ),
    (lambda fence: KvAppend(fence=fence, key="n", value=b"7"), KvNumber(value=2, revision=3)),
    (
        lambda fence: KvMultiSet(fence=fence, keys=["n", "m"], values=[b"1", b"2"]),
        Done(revision=3),
    ),
    (lambda fence: KvDelete(fence=fence, keys=["n", "o", "p"]), KvNumber(value=2, revision=3)),
    (lambda fence: KvSet(fence=fence, key="n", value=b"9"), Done(revision=3)),
]


def contents(lab: Lab, of_run: bool) -> dict[str, tuple[bytes, int]]:
    run = lab.run()
    assert run.generation is not None
    space = run.kv if of_run else run.generation.kv
    return {k: (e.value, e.revision) for k in space.names() if (e := space.find(k)) is not None}


@pytest.mark.parametrize("of_run", [False, True], ids=["of the generation", "of the run"])
@pytest.mark.parametrize("which", range(len(WRITES)))
def test_a_write_that_was_acknowledged_before_the_crash_is_not_done_again(
    lab: Lab, which: int, of_run: bool
) -> None:
    (a,) = lab.world("a", rules=policy(1))
    fence = None if of_run else a.live_fence()
    a.ask(KvSet(fence=fence, key="n", value=b"7"))
    a.ask(KvSet(fence=fence, key="o", value=b"7"))
    write, expected = WRITES[which]
    assert a.ask(write(fence), 50) == expected
    there = contents(lab, of_run)
    lab.restart()
    back(a)
    assert contents(lab, of_run) == there
    for _ in range(2):
        assert a.ask(write(fence), 50) == expected
        assert contents(lab, of_run) == there


@pytest.mark.parametrize("of_run", [False, True], ids=["of the generation", "of the run"])
@pytest.mark.parametrize("which", range(len(WRITES)))
def test_a_write_that_the_crash_swallowed_is_done_once(lab: Lab, which: int, of_run: bool) -> None:
    (a,) = lab.world("a", rules=policy(1))
    fence = None if of_run else a.live_fence()
    a.ask(KvSet(fence=fence, key="n", value=b"7"))
    a.ask(KvSet(fence=fence, key="o", value=b"7"))
    lab.restart()
    back(a)
    write, expected = WRITES[which]
    assert a.ask(write(fence), 50) == expected
    there = contents(lab, of_run)
    assert a.ask(write(fence), 50) == expected
    assert contents(lab, of_run) == there


def test_an_error_that_was_told_is_told_again_and_not_tried_again(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    a.set("n", b"no number")
    first = a.add("n", request_id=50)
    assert code(first) == ErrorCode.NOT_A_NUMBER
    a.set("n", b"1")
    lab.restart()
    back(a)
    assert a.add("n", request_id=50) == first
    assert a.get("n") == KvValue(value=b"1", revision=2)


def test_a_write_is_repeated_after_a_second_restart_too(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    lab.restart()
    back(a)
    assert number(a.add("n", request_id=50)) == 1
    lab.restart()
    lab.restart()
    back(a)
    assert number(a.add("n", request_id=50)) == 1
    assert number(a.add("n", request_id=51)) == 2


def test_what_was_acknowledged_by_the_client_is_refused_and_not_done_again(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    a.add("n", request_id=50)
    a.ask(Heartbeat(acknowledged=50), 51)
    a.add("n", request_id=52)  # takes the acknowledgement along
    assert key_bytes(("reply", a.resume_proof.session, 50)) not in lab.stored
    lab.restart()
    back(a)
    assert code(a.add("n", request_id=50)) == ErrorCode.MALFORMED
    assert number(a.add("n", request_id=53)) == 3


def test_a_wait_for_a_key_is_asked_again_and_woken(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    assert a.get("k", timeout_s=30, request_id=60) is None
    lab.restart()
    back(a, b)
    assert a.get("k", timeout_s=30, request_id=60) is None
    b.set("k", b"v")
    assert a.wire.replies(60) == [KvValue(value=b"v", revision=1)]


def test_keys_of_a_life_that_ended_are_read_after_a_restart_and_cleared_by_the_next_life(
    lab: Lab,
) -> None:
    (a,) = lab.world("a", rules=policy(1))
    a.ask(own(KvSet, key="k", value=b"old"))
    a.finish()
    a.leave()
    lab.restart()
    b = lab.node("b", rules=policy(1))
    assert isinstance(b.ask(own(KvGet, key="k")), KvValue)
    b.join()
    assert b.joined is not None
    assert code(b.ask(own(KvGet, key="k"))) == ErrorCode.WAIT_TIMEOUT


# --- barriers ---------------------------------------------------------------------------------


def test_a_decided_round_is_repeated_to_a_retry(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    a.meet(request_id=80, payload=b"A", vote=True)
    b.meet(request_id=80, payload=b"B", vote=False)
    (told,) = a.wire.replies(80)
    assert isinstance(told, Released)
    assert told.payloads == [b"A", b"B"]
    lab.restart()
    back(a, b)
    assert a.meet(request_id=80, payload=b"A", vote=True) == told
    assert b.meet(request_id=80, payload=b"B", vote=False) == told
    assert lab.status().phase == "live"


def test_rounds_go_on_from_where_they_were(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    for _ in range(3):
        a.meet(request_id=None)
        b.meet(request_id=None)
    lab.restart()
    back(a, b)
    assert a.meet(request_id=90) is None
    assert b.meet(request_id=90) == Released(round=4)
    assert a.wire.replies(90) == [Released(round=4)]


def test_an_open_round_is_entered_again_and_completes(lab: Lab) -> None:
    a, b, c = lab.world("a", "b", "c", rules=policy(3))
    assert a.meet(request_id=80) is None
    assert b.meet(request_id=80) is None
    lab.restart()
    back(a, b, c)
    assert c.meet(request_id=80) is None
    assert a.meet(request_id=80) is None
    assert b.meet(request_id=80) == Released(round=1)
    assert a.wire.replies(80) == c.wire.replies(80) == [Released(round=1)]


def test_a_late_member_gets_the_error_of_a_round_that_failed_before_the_restart(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    a.meet(timeout_s=1, request_id=80)
    beat_all(lab, [a, b], 1.5, every=0.5)
    (told,) = a.wire.replies(80)
    assert code(told) == ErrorCode.BARRIER_TIMEOUT
    lab.restart()
    back(a, b)
    assert b.meet(request_id=80) == told
    assert a.meet(request_id=80) == told
    assert a.meet(request_id=81) is None
    assert b.meet(request_id=81) == Released(round=2)


def test_a_member_that_has_had_a_decision_is_not_given_it_again_after_a_restart(lab: Lab) -> None:
    """It came late and was told; its next arrival is for the next round."""
    a, b = lab.world("a", "b", rules=policy(2))
    a.meet(timeout_s=1, request_id=80)
    beat_all(lab, [a, b], 1.5, every=0.5)
    assert code(b.meet(request_id=80)) == ErrorCode.BARRIER_TIMEOUT
    lab.restart()
    back(a, b)
    assert b.meet(request_id=81) is None
    assert a.meet(request_id=81) == Released(round=2)


def test_a_round_that_names_its_number_is_looked_up_after_a_restart(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    for n in (1, 2):
        a.meet(round=n)
        b.meet(round=n)
    lab.restart()
    back(a, b)
    assert a.meet(round=1) == Released(round=1)
    assert code(a.meet(round=4)) == ErrorCode.BAD_ROUND


def test_a_barrier_of_any_so_many_goes_on_after_a_restart(lab: Lab) -> None:
    a, b = lab.nodes("a", "b")
    ask = Barrier(name="b", of="count", count=2, timeout_ms=10_000)
    a.ask(ask, 10)
    assert b.ask(ask, 10) == Released(round=1)
    a.ask(ask, 11)
    lab.restart()
    back(a, b)
    assert a.ask(ask, 10) == Released(round=1)
    assert b.ask(ask, 11) is None  # the arrival of before is not counted: nobody waits for it now
    assert a.ask(ask, 11) == Released(round=2)


def test_a_decision_that_others_have_left_behind_is_still_repeated_to_a_retry(lab: Lab) -> None:
    """S14, S23. A retry gets what was decided, however many rounds have been since: it is never counted for
    another round."""
    a, b, c = lab.world("a", "b", "c", rules=policy(3))
    a.meet(members=[0, 1], request_id=80)
    b.meet(members=[0, 1], request_id=80)
    a.lose()
    for _ in range(limits.BARRIER_ROUNDS_KEPT):
        b.meet(members=[1, 2])
        c.meet(members=[1, 2])
    lab.restart()
    back(a, b, c)
    assert a.meet(members=[0, 1], request_id=80) == Released(round=1, members=[0, 1])


# --- how nodes and runs end -------------------------------------------------------------------


def test_a_finished_node_stays_finished(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    a.finish()
    lab.restart()
    back(b)  # a does not come back: it is no loss
    beat_all(lab, [b], 8)
    assert b.ended_kind == ""
    b.finish()
    assert b.ended_kind == "finished"
    assert lab.status().phase == "ended"


def test_a_node_that_finished_cannot_be_met_at_a_barrier_after_a_restart(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    a.finish()
    lab.restart()
    back(a, b)
    assert code(b.meet()) == ErrorCode.BARRIER_BROKEN


def test_a_leave_is_done_once(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(1, 2))
    leave = Leave(kind="failed", exit_code=1)
    told = b.ask(leave, 50)
    lab.restart()
    back(a, b)
    reports = len(lab.reported("node_left"))
    assert b.ask(leave, 50) == told
    assert len(lab.reported("node_left")) == reports
    assert "b" not in lab.members()


def test_a_closed_run_stays_closed_and_its_keep_time_begins_anew() -> None:
    lab = Reborn(Settings(run_keep_s=10))
    (a,) = lab.world("a", rules=policy(1))
    a.ask(CloseRun(run=RUN, detail="enough"))
    a.leave()
    lab.advance(8)
    lab.restart()
    b = lab.node("b", rules=policy(1))
    b.join()
    assert b.code == ErrorCode.RUN_CLOSED
    assert b.error is not None
    assert "enough" in b.error.message
    beat_all(lab, [b], 8)
    b.join()
    assert b.code == ErrorCode.RUN_CLOSED
    beat_all(lab, [b], 3)
    b.join()
    assert b.joined is not None
    assert b.joined.fence == Fence(EPOCH, 2)


def test_an_ended_run_is_forgotten_after_its_keep_time() -> None:
    lab = Reborn(Settings(run_keep_s=10))
    (a,) = lab.world("a", rules=policy(1))
    a.finish()
    a.leave()
    lab.restart()
    assert lab.status().phase == "ended"
    lab.advance(11)
    assert not lab.core.tables.runs
    assert key_bytes(("run", RUN)) not in lab.stored
    assert key_bytes(("tomb", RUN)) in lab.stored


def test_generation_numbers_of_a_forgotten_run_go_on() -> None:
    lab = Reborn(Settings(run_keep_s=2))
    for turn in range(3):
        node = lab.node("a", incarnation=turn, rules=policy(1))
        node.join()
        assert node.live_fence() == Fence(EPOCH, turn + 1)
        node.leave()
        lab.advance(10)
        assert not lab.core.tables.runs
        lab.restart()


def test_a_floor_of_generation_numbers_survives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "TOMBSTONES_MAX", 1)
    lab = Reborn(Settings(run_keep_s=2))
    for run, joins in (("one", 4), ("two", 1), ("three", 1)):
        node = lab.node("a", rules=policy(1), run=run)
        for _ in range(joins):
            node.join()
        node.leave()
        lab.advance(10)
    lab.restart()
    for run in ("one", "new"):
        node = lab.node("b", rules=policy(1), run=run)
        node.join()
        assert node.live_fence().generation > 4


def test_below_the_minimum_after_a_departure_the_rest_are_told_it_with_the_old_words(
    lab: Lab,
) -> None:
    a, b, c = lab.world("a", "b", "c", rules=policy(3))
    c.leave("failed", exit_code=7)
    lab.restart()
    back(a, b)
    a.join()
    assert a.code == ErrorCode.RUN_FAILED
    assert a.error is not None
    assert "c (group rank 2) failed with exit code 7" in a.error.message
    assert "2 of min 3" in a.error.message


def test_below_min_wait_waits_after_a_restart_too(lab: Lab) -> None:
    rules = policy(2, below_min="wait")
    a, b = lab.world("a", "b", rules=rules)
    b.leave("failed")
    lab.restart()
    back(a)
    a.join()
    assert a.answer is None
    c = lab.node("c", rules=rules)
    c.join()
    assert {a.rank, c.rank} == {0, 1}


# --- recovery ---------------------------------------------------------------------------------


def test_nobody_is_lost_before_its_lease_and_who_stays_away_is_lost_after_it(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(1, 2))
    lab.restart(after_s=60)
    back(a)
    for _ in range(48):
        a.beat()
        lab.advance(0.1)
    assert not lab.reported("node_lost")
    assert a.ended_kind == ""
    beat_all(lab, [a], 0.5, every=0.25)
    (lost,) = lab.reported("node_lost")
    assert lost.node == "b"
    assert a.ended_kind == "lost"
    b.resume()
    assert code(b.refused) == ErrorCode.SESSION_LOST


def test_a_whole_lease_is_given_to_a_node_that_had_almost_used_it_up(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    lab.advance(4.5)
    lab.restart()
    lab.advance(4.5)
    back(a)
    assert lab.status().phase == "live"


def test_a_suspect_gets_a_whole_lease_again(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(1, 2))
    b.lose()
    lab.advance(0.9)
    lab.restart()
    back(a)
    beat_all(lab, [a], 4)
    back(b)
    assert lab.status().phase == "live"


def test_thousands_get_two_milliseconds_each(lab: Lab) -> None:
    for n in range(500):
        lab.node(f"n{n}", lease_s=0.3)
    lab.restart()
    lab.advance(0.9)
    assert len(lab.core.tables.sessions) == 500
    lab.advance(0.3)
    assert not lab.core.tables.sessions


def test_all_who_stay_away_are_lost_and_their_run_ends(lab: Lab) -> None:
    lab.world("a", "b", rules=policy(2))
    lab.restart()
    lab.advance(6)
    assert {r.node for r in lab.reported("node_lost")} == {"a", "b"}
    assert lab.status().phase == "ended"


def test_a_node_that_breaks_again_after_it_came_back_is_noticed_within_its_lease(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(1, 2))
    lab.restart()
    back(a, b)
    beat_all(lab, [a, b], 2)
    b.lose()
    beat_all(lab, [a], 3.5)
    assert a.ended_kind == "lost"


def test_leases_decide_as_ever_once_recovery_is_over(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(1, 2))
    lab.restart()
    back(a, b)
    beat_all(lab, [a, b], 10)
    b.lose()
    beat_all(lab, [a], 1.5, every=0.5)
    assert a.ended_kind == "lost"


# --- workers, stores, standbys, hints ---------------------------------------------------------


def test_workers_resume_and_new_ones_attach_with_the_token_of_before(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    _, first = a.worker(0)
    assert isinstance(first, Welcome)
    lab.restart()
    back(a)
    _, again = a.worker(0)
    assert isinstance(again, Welcome)
    assert (again.session, again.resumed) == (first.session, True)
    _, new = a.worker(1)
    assert isinstance(new, Welcome)
    assert not new.resumed


def test_a_worker_gets_in_before_its_agent_is_back(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    lab.restart()
    _, reply = a.worker(0)
    assert isinstance(reply, Welcome)


def test_the_worker_tokens_of_before_and_after_a_restart_are_both_good(lab: Lab) -> None:
    (a,) = lab.world("a", rules=policy(1))
    assert a.joined is not None
    old = a.joined.worker_token
    lab.restart()
    back(a)
    retry_join(a)
    assert a.joined is not None
    assert a.joined.worker_token != old
    for rank, token in enumerate((old, a.joined.worker_token)):
        _, reply = a.worker(rank, token)
        assert isinstance(reply, Welcome)
    _, reply = a.worker(2, b"x" * 32)
    assert code(reply) == ErrorCode.UNAUTHENTICATED


def test_a_worker_of_an_earlier_generation_is_told_that_it_is_over_after_a_restart_too(
    lab: Lab,
) -> None:
    """S10: it is stale, not an impostor; without a restart it hears STALE_GENERATION."""
    (a,) = lab.world("a", rules=policy(1))
    assert a.joined is not None
    old, ask = a.joined, a.worker
    lab.restart()
    back(a)
    a.join()
    assert a.live_fence() > old.fence
    now = a.joined
    a.wire.got = [(i, m) for i, m in a.wire.got if m is not now] + [(a.join_id, old)]
    _, reply = ask(0, old.worker_token)
    assert code(reply) == ErrorCode.STALE_GENERATION


@pytest.mark.parametrize("how", ["lost", "replaced", "drained", "failed"])
def test_s10_a_worker_that_outlived_its_node_is_stale_and_no_impostor_after_a_restart(
    lab: Lab, how: str
) -> None:
    """The server has the hash of its token no more; it was told that the token is wrong (simulator, durable 44)."""
    a = lab.world("a", "b", rules=policy(2))[0]
    assert a.joined is not None
    old, ask = a.joined, a.worker
    if how == "lost":
        a.lose()
        lab.advance(20)
    elif how == "replaced":
        lab.node("a", incarnation=2)
    else:
        a.leave(how)
    lab.restart()
    _, reply = ask(0, old.worker_token)
    assert code(reply) == ErrorCode.STALE_GENERATION
    assert isinstance(reply, Error)
    assert "token" not in reply.message


def test_workers_meet_at_a_barrier_after_a_restart(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    wires = [node.worker(rank)[0] for rank, node in enumerate((a, b))]
    ask = Barrier(fence=a.live_fence(), name="w", of="workers", count=2, timeout_ms=9_000)
    assert lab.send(wires[0], 5, ask) is None
    lab.restart()
    back(a, b)
    wires = [node.worker(rank)[0] for rank, node in enumerate((a, b))]
    assert lab.send(wires[1], 5, ask) is None
    assert lab.send(wires[0], 5, ask) == Released(round=1)


def shown(lab: Lab) -> GenerationStatus:
    reply = lab.send(lab.admin(), 2, ShowGeneration(run=RUN))
    assert isinstance(reply, GenerationStatus)
    return reply


def test_the_workers_store_is_gone_and_the_generation_lives(lab: Lab) -> None:
    nodes = lab.world("a", "b", rules=policy(2, worker_store="server"))
    assert shown(lab).store is not None
    lab.restart()
    back(*nodes)
    assert shown(lab).store is None
    assert lab.listeners == {}
    assert lab.status().phase == "live"
    nodes[0].set("k")


def test_who_has_not_begun_in_a_world_whose_store_is_gone_ends_it(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(2, worker_store="server"))
    first = a.live_fence()
    lab.restart()
    back(a, b)
    a.wire.got.clear()
    retry_join(a)
    assert b.ended_kind == "server_restarted"
    assert b.view.ended is not None
    assert str(first) in b.view.ended.reason
    b.join()
    assert a.joined is not None
    assert a.joined.fence == b.live_fence()
    assert a.joined.fence > first
    assert a.joined.store_port in lab.listeners.values()


def test_a_standby_stands_by_after_a_restart_and_takes_a_place_that_is_free(lab: Lab) -> None:
    rules = policy(2)
    a, b = lab.world("a", "b", rules=rules)
    c = lab.node("c", rules=rules)
    c.join()
    assert lab.status().standbys == 1
    lab.restart()
    back(a, b, c)
    retry_join(c)
    assert lab.status().standbys == 1
    assert a.ended_kind == ""
    b.leave("drained")
    a.join()
    assert {a.rank, c.rank} == {0, 1}


def test_a_newcomer_is_announced_after_a_restart(lab: Lab) -> None:
    rules = policy(1, 2, last_call_s=0.5)
    (a,) = lab.world("a", rules=rules)
    b = lab.node("b", rules=rules)
    b.join()
    lab.restart()
    back(a, b)
    assert a.waiting == 0
    retry_join(b)
    beat_all(lab, [a, b], 2)
    assert a.waiting == 1


def test_rank_hints_are_kept(lab: Lab) -> None:
    rules = policy(2)
    a = lab.node("a", rules=rules, hint=1)
    a.join()
    lab.restart()
    back(a)
    retry_join(a)
    twin = lab.node("twin", rules=rules, hint=1)
    twin.join()
    assert twin.code == ErrorCode.DUPLICATE_RANK
    b = lab.node("b", rules=rules, hint=0)
    b.join()
    assert (a.rank, b.rank) == (1, 0)


def test_who_waited_for_the_hint_of_a_suspect_asks_again_and_gets_it_when_that_is_lost(
    lab: Lab,
) -> None:
    rules = policy(2)
    a = lab.node("a", rules=rules, hint=0)
    b = lab.node("b", rules=rules, hint=0)
    c = lab.node("c", rules=rules, hint=1)
    a.join()
    a.lose()
    b.join()
    assert lab.run().rivals
    lab.restart()
    back(b, c)
    retry_join(b)
    c.join()
    assert b.answer is None  # a may still come back
    beat_all(lab, [b, c], 6)
    assert (b.rank, c.rank) == (0, 1)


def test_a_rival_is_refused_when_the_holder_of_the_hint_comes_back(lab: Lab) -> None:
    rules = policy(2)
    a = lab.node("a", rules=rules, hint=0)
    b = lab.node("b", rules=rules, hint=0)
    a.join()
    a.lose()
    b.join()
    lab.restart()
    back(b)
    retry_join(b)
    back(a)
    assert b.code == ErrorCode.DUPLICATE_RANK


# --- records that do not fit ------------------------------------------------------------------


def resumed(records: dict[bytes, bytes]) -> Coordinator:
    core = Coordinator(Settings(), identity(), durable=True)
    core.resume(1.0, records)
    return core


def test_records_of_no_server_have_no_epoch() -> None:
    assert restoring.epoch_of({}) is None
    assert restoring.epoch_of(Lab().stored) == EPOCH


def test_a_meta_record_that_is_none_is_named() -> None:
    with pytest.raises(restoring.UnreadableError, match="meta"):
        restoring.epoch_of({key_bytes(("meta",)): b"\xc1"})


@pytest.mark.parametrize(
    "raw", [b"", b"run", b"run\0", b"run\0\xc1", b"\xff\0\x90", b"run\0" + b"\x91" * 5000]
)
def test_a_record_without_a_name_that_is_known_is_refused(lab: Lab, raw: bytes) -> None:
    with pytest.raises(restoring.UnreadableError, match="name"):
        resumed({**lab.stored, raw: b"\x01"})


def test_a_record_with_bytes_that_are_no_text_is_refused_and_named(lab: Lab) -> None:
    """Found by fuzzing: that is no error of the decoder's own."""
    name = key_bytes(("run", RUN))
    lab.world("a", "b", rules=policy(2))
    text = lab.run().policy_from.encode()
    made = lab.stored[name].replace(text, b"\xff" * len(text), 1)
    assert made != lab.stored[name]
    with pytest.raises(restoring.UnreadableError, match="record"):
        resumed({**lab.stored, name: made})
    with pytest.raises(restoring.UnreadableError, match="record"):
        restoring.in_new_epoch({**lab.stored, name: made}, EPOCH)


def test_a_record_of_a_kind_that_is_not_known_is_refused_and_named(lab: Lab) -> None:
    """S27: a later version wrote it, and it is never silently skipped."""
    with pytest.raises(restoring.UnreadableError, match="lease2"):
        resumed({**lab.stored, key_bytes(("lease2", RUN)): pack(1)})


@pytest.mark.parametrize(
    "kind", ["run", "session", "generation", "end", "barrier", "decision", "key", "reply", "revision"]
)  # fmt: skip
def test_a_record_that_cannot_be_read_is_refused_and_never_skipped(lab: Lab, kind: str) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    a.set("k")
    a.meet()
    b.meet()
    raw = next(r for r in lab.stored if r.startswith(kind.encode() + b"\0"))
    with pytest.raises(restoring.UnreadableError):
        resumed({**lab.stored, raw: b"\xc1"})


def test_records_that_belong_to_nothing_are_refused(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    a.set("k")
    a.meet()
    b.meet()
    session = a.resume_proof.session
    for missing in (
        ("run", RUN),
        ("generation", RUN),
        ("session", session),
        ("barrier", RUN, 1, "b"),
    ):
        records = dict(lab.stored)
        del records[key_bytes(missing)]
        with pytest.raises(restoring.UnreadableError):
            resumed(records)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_damage_to_one_record_ends_in_anything_but_a_refusal_or_a_server(
    data: st.DataObject,
) -> None:
    lab = Reborn()
    a, b = lab.world("a", "b", rules=policy(2))
    a.set("k")
    a.meet(payload=b"p")
    b.meet()
    a.worker(0)
    raw = data.draw(st.sampled_from(sorted(lab.stored)))
    record = bytearray(lab.stored[raw])
    at = data.draw(st.integers(0, len(record) - 1))
    record[at] = data.draw(st.integers(0, 255))
    try:
        core = resumed({**lab.stored, raw: bytes(record)})
    except restoring.UnreadableError:
        return
    assert core.tables.identity.epoch == EPOCH


# --- a new epoch, after a repair --------------------------------------------------------------


def repaired(records: dict[bytes, bytes], epoch: int = EPOCH + 5) -> dict[bytes, bytes]:
    after = dict(records)
    for key, record in restoring.in_new_epoch(records, epoch).items():
        if record is None:
            after.pop(key, None)
        else:
            after[key] = record
    return after


def eventful(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    a.set("of the generation")
    a.ask(own(KvSet, key="of the run", value=b"v"))
    a.meet()
    b.meet()
    lab.node("a", incarnation=2)
    closed = lab.world("c", rules=policy(1), run="closed")[0]
    closed.ask(CloseRun(run="closed"))


def test_in_a_new_epoch_no_session_and_no_generation_goes_on(lab: Lab) -> None:
    eventful(lab)
    records = repaired(lab.stored)
    epoch = restoring.epoch_of(records)
    assert epoch == EPOCH + 5
    core = Coordinator(Settings(), identity(epoch), durable=True)
    core.resume(1.0, records)
    assert (core.tables.sessions, core.tables.fenced, core.tables.stores) == ({}, {}, {})
    assert {r.id: r.phase for r in core.tables.runs.values()} == {
        RUN: Phase.ENDED, "closed": Phase.CLOSED,
    }  # fmt: skip
    run = core.tables.runs[RUN]
    assert run.generation is None
    assert run.number == 1
    assert run.kv.names() == ["of the run"]


def test_a_new_epoch_is_above_the_old_one_whatever_the_clock_says(lab: Lab) -> None:
    assert restoring.epoch_of(repaired(lab.stored, epoch=3)) == EPOCH + 1


@pytest.mark.parametrize("missing", ["run", "meta", "session", "generation", "barrier", "revision"])
def test_a_new_epoch_can_begin_though_some_records_are_missing(lab: Lab, missing: str) -> None:
    """A repair drops what is damaged: any record at all."""
    eventful(lab)
    whole = {r: d for r, d in lab.stored.items() if not r.startswith(missing.encode() + b"\0")}
    records = repaired(whole)
    core = Coordinator(Settings(), identity(EPOCH + 5), durable=True)
    core.resume(1.0, records)
    assert not core.tables.sessions


@pytest.mark.parametrize("raw", [b"run\0\xc1", b"\xff\0\x90", b"run"])
def test_a_name_that_is_none_is_refused_in_a_new_epoch_too(lab: Lab, raw: bytes) -> None:
    with pytest.raises(restoring.UnreadableError):
        restoring.in_new_epoch({**lab.stored, raw: b"\x01"}, EPOCH + 5)


# --- any order --------------------------------------------------------------------------------

step = st.one_of(
    st.tuples(st.sampled_from(("join", "leave", "finish", "meet", "back", "cut")), st.integers(0, 2)),
    st.tuples(st.just("take over"), st.integers(0, 2)),
    st.tuples(st.just("time"), st.integers(1, 80)),
    st.tuples(st.sampled_from(("add", "add, crash", "crash, add", "crash")), st.integers(1, 9)),
)  # fmt: skip


class Play:
    """Nodes that come and go, and one that counts; the server is killed at any time."""

    def __init__(self) -> None:
        self.lab = Reborn(Settings(run_keep_s=3))
        self.rules = policy(1, 3, last_call_s=0.3, below_min="wait")
        self.born = 0
        self.nodes = [self.new(n) for n in range(3)]
        self.counter = self.lab.node("y", rules=policy(1), run="counts", lease_s=3000)
        self.counter.join()
        self.fence = self.counter.live_fence()
        self.total = 0
        self.request = 1_000
        self.tables: dict[Fence, bytes] = {}
        self.added: dict[Fence, int] = {}

    def new(self, n: int) -> Node:
        self.born += 1
        return self.lab.node(f"n{n}", incarnation=self.born, rules=self.rules)

    def present(self, n: int) -> Node:
        """On a living connection; another process, if this one was given up."""
        node = self.nodes[n]
        if node.wire.closed:
            node.resume()
            if node.refused is not None:
                node = self.nodes[n] = self.new(n)
        return node

    def take(self, what: str, number: int) -> None:
        lab = self.lab
        match what:
            case "time":
                lab.advance(number / 10)
            case "take over":
                self.nodes[number] = self.new(number)
            case "cut":
                if not self.nodes[number].wire.closed:
                    self.nodes[number].lose()
            case "crash":
                self.crash(number)
            case "add" | "add, crash" | "crash, add":
                self.add(what, number)
            case _:
                self.of_node(what, self.present(number))
        self.note()

    def of_node(self, what: str, node: Node) -> None:
        live = self.lab.core.tables.runs.get(RUN)
        if what == "join":
            node.join()
        elif what == "leave":
            node.leave("drained")
        elif node.joined is None or live is None or live.fence != node.joined.fence:
            return
        elif what == "finish":
            node.finish()
        elif what == "meet":
            node.meet(timeout_s=1)
            reply = node.add("n")
            if isinstance(reply, KvNumber):
                fence = node.live_fence()
                self.added[fence] = self.added.get(fence, 0) + 1
                assert reply.value == self.added[fence]

    def crash(self, tenths: int) -> None:
        self.lab.restart(after_s=tenths / 10)
        self.counter.resume()
        assert self.counter.refused is None

    def add(self, how: str, delta: int) -> None:
        """Once in all, whenever the crash comes."""
        self.request += 1
        ask = KvAdd(fence=self.fence, key="n", delta=delta)
        if how == "crash, add":
            self.crash(1)
        self.total += delta
        first = self.counter.ask(ask, self.request)
        assert number(first) == self.total
        if how == "add, crash":
            self.crash(1)
            assert self.counter.ask(ask, self.request) == first

    def note(self) -> None:
        """S2, S3: one table for each fence, and numbers never fall."""
        run = self.lab.core.tables.runs.get(RUN)
        if run is None or run.generation is None:
            return
        fence, digest = run.generation.fence, run.generation.digest
        if fence not in self.tables:
            assert all(fence > old for old in self.tables), (fence, self.tables)
        assert self.tables.setdefault(fence, digest) == digest
        assert run.number == fence.generation


@given(st.lists(step, max_size=30))
@settings(max_examples=120, deadline=None)
def test_in_any_order_nothing_counts_twice_and_no_fence_is_used_twice(
    steps: list[tuple[str, int]],
) -> None:
    play = Play()
    for what, n in steps:
        play.take(what, n)
    play.crash(1)
    play.add("add", 1)
