"""What is written after a step: what changed, once, and nothing else."""

import pytest

from rdzv_proto import limits
from rdzv_proto.messages import (
    Alive,
    CloseRun,
    Heartbeat,
    Join,
    KvAdd,
    KvDelete,
    KvGet,
    KvList,
    KvSet,
    ListRuns,
    Members,
    Released,
    Status,
)
from rdzv_server.core import tables
from rdzv_server.core.durable import saving
from rdzv_server.core.durable.saving import Saves, image, keys_of_run, read_off
from rdzv_server.core.durable.stored import (
    Key,
    StoredRun,
    StoredSession,
    key_bytes,
    key_of,
    unpack,
)
from rdzv_server.core.events import Effect, Persist, Received
from rdzv_server.core.settings import Settings
from tests.lab import RUN, Lab, Node, beat_all, policy


class Watched(Lab):
    """Notes what each step wrote."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.written: list[dict[bytes, bytes | None]] = []
        super().__init__(settings)

    def apply(self, effects: list[Effect]) -> None:
        self.written += [e.changes for e in effects if isinstance(e, Persist)]
        super().apply(effects)

    def since(self) -> list[dict[bytes, bytes | None]]:
        """Written since the last call."""
        written, self.written = self.written, []
        return written

    def kinds(self) -> set[str]:
        return {str(key_of(raw)[0]) for changes in self.since() for raw in changes}


@pytest.fixture
def lab() -> Watched:
    return Watched()


def saves_of(lab: Lab) -> Saves:
    saves = lab.core.tables.saves
    assert saves is not None
    return saves


def session_of(node: Node) -> int:
    assert node.welcome is not None
    return node.welcome.session


# --- how much is written ----------------------------------------------------------------------


def test_time_and_heartbeats_write_nothing(lab: Watched) -> None:
    nodes = lab.world("a", "b", rules=policy(2))
    lab.since()
    beat_all(lab, nodes, 60)
    assert lab.since() == []


def test_looking_writes_nothing(lab: Watched) -> None:
    (a,) = lab.world("a", rules=policy(1))
    a.set("k")
    admin = lab.admin()
    lab.since()
    a.get("k")
    a.ask(KvGet(key="missing"))
    a.ask(KvList(fence=a.live_fence()))
    a.ask(Members(run=RUN))
    a.get("nowhere", timeout_s=1)
    lab.advance(2)
    lab.send(admin, 5, ListRuns())
    lab.send(admin, 6, Status())
    assert lab.since() == []


def test_a_write_to_a_key_writes_the_key_its_space_and_the_reply(lab: Watched) -> None:
    (a,) = lab.world("a", rules=policy(1))
    lab.since()
    a.set("k", b"v")
    assert [len(changes) for changes in lab.since()] == [3]
    a.set("k", b"w")
    assert lab.kinds() == {"key", "revision", "reply"}


def test_a_repeated_request_writes_nothing(lab: Watched) -> None:
    (a,) = lab.world("a", rules=policy(1))
    a.add("n", request_id=50)
    told = len(lab.stored)
    lab.since()
    a.add("n", request_id=50)
    assert lab.since() == []
    assert len(lab.stored) == told


def test_a_connection_that_breaks_and_comes_back_writes_nothing(lab: Watched) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    lab.since()
    a.lose()
    lab.advance(0.5)
    a.resume()
    b.resume()
    assert lab.since() == []


def test_an_arrival_at_an_open_round_writes_at_most_its_barrier(lab: Watched) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    lab.since()
    a.meet()
    assert lab.kinds() == {"barrier"}
    b.meet()
    assert lab.kinds() == {"barrier", "decision"}


def test_a_decision_is_written_once_for_all_and_not_with_each_reply(lab: Watched) -> None:
    nodes = lab.world(*"abcdefgh", rules=policy(8))
    lab.since()
    for node in nodes:
        node.meet(payload=b"x" * 1000)
    assert sum(len(d or b"") for changes in lab.since() for d in changes.values()) < 12_000


def test_ids_of_sessions_are_reserved_in_large_pieces(lab: Watched) -> None:
    lab.node("first")
    lab.since()
    for n in range(100):
        lab.node(f"n{n}")
    assert not any(key_bytes(("meta",)) in changes for changes in lab.since())


def test_what_a_step_wrote_comes_first_among_its_effects(lab: Watched) -> None:
    (a,) = lab.world("a", rules=policy(1))
    ask = KvAdd(fence=a.live_fence(), key="n", delta=1)
    effects = lab.core.handle(lab.now, Received(a.wire.conn, 60, ask))
    assert isinstance(effects[0], Persist)
    assert len(effects) == 2
    lab.apply(effects)


def test_a_heartbeat_after_a_refusal_is_answered_at_once(lab: Watched) -> None:
    """S28. On the shell's short way (`request`) nothing of an earlier request is left over that would make
    a heartbeat wait for the disk."""
    (a,) = lab.world("a", rules=policy(1))
    a.set("n", b"no number")
    core, conn = lab.core, a.wire.conn
    core.begin(lab.now)
    ask = KvAdd(fence=a.live_fence(), key="n", delta=1)
    reply = core.request(conn, 60, ask)
    if reply is None:
        lab.apply(core.outcome())
    assert core.request(conn, 61, Heartbeat()) == Alive()
    assert core.outcome() == []


def test_what_is_recorded_is_written_before_it_is_told_on_the_short_way_too(
    lab: Watched,
) -> None:
    """S23, S26: a refusal that was told is repeated to a retry, also after a crash right behind it."""
    (a,) = lab.world("a", rules=policy(1))
    a.set("n", b"no number")
    core, session = lab.core, session_of(a)
    core.begin(lab.now)
    reply = core.request(a.wire.conn, 60, KvAdd(fence=a.live_fence(), key="n", delta=1))
    if reply is None:
        effects = core.outcome()
        assert isinstance(effects[0], Persist)
        lab.apply(effects)
    assert key_bytes(("reply", session, 60)) in lab.stored


def test_a_server_without_a_store_notes_nothing() -> None:
    lab = Lab(durable=False)
    (a,) = lab.world("a", rules=policy(1))
    a.set("k")
    a.leave()
    assert lab.core.tables.saves is None
    assert lab.stored == {}


# --- marks ------------------------------------------------------------------------------------


def test_a_mark_without_a_change_writes_nothing(lab: Watched) -> None:
    (a,) = lab.world("a", rules=policy(1))
    saves, state = saves_of(lab), lab.core.tables
    keys: list[Key] = [("meta",), ("run", RUN), ("session", session_of(a)), ("generation", RUN)]
    for key in keys:
        state.save(*key)
    assert saves.changes(state) == {}
    assert not saves.marked


def test_changes_are_given_out_once(lab: Watched) -> None:
    (a,) = lab.world("a", rules=policy(1))
    saves, state = saves_of(lab), lab.core.tables
    lab.run().reason = "unlike"
    lab.run().formed += 1
    state.save("run", RUN)
    state.save("run", RUN)
    first = saves.changes(state)
    assert list(first) == [key_bytes(("run", RUN))]
    state.save("run", RUN)
    assert saves.changes(state) == {}
    assert a.joined is not None


def test_a_record_is_read_off_at_the_end_of_the_step(lab: Watched) -> None:
    (a,) = lab.world("a", rules=policy(1))
    saves, state = saves_of(lab), lab.core.tables
    state.save("session", session_of(a))
    state.sessions[session_of(a)].client = "changed after the mark"
    record = saves.changes(state)[key_bytes(("session", session_of(a)))]
    assert record is not None
    assert unpack(record, StoredSession).client == "changed after the mark"


def test_a_part_that_is_gone_becomes_none_once(lab: Watched) -> None:
    (a,) = lab.world("a", rules=policy(1))
    saves, state = saves_of(lab), lab.core.tables
    number = session_of(a)
    session = state.sessions.pop(number)
    state.save("session", number)
    assert saves.changes(state) == {key_bytes(("session", number)): None}
    state.save("session", number)
    assert saves.changes(state) == {}
    state.sessions[number] = session
    state.save("session", number)
    assert list(saves.changes(state)) == [key_bytes(("session", number))]


def test_what_came_and_went_within_a_step_leaves_nothing_behind(lab: Watched) -> None:
    saves, state = saves_of(lab), lab.core.tables
    state.save("session", 4_000)
    state.save("run", "never")
    state.save("barrier", "never", 0, "b")
    assert saves.changes(state) == {}


def test_what_can_wait_goes_along_with_something_else_only(lab: Watched) -> None:
    (a,) = lab.world("a", rules=policy(1))
    a.set("k")
    (raw,) = [r for r in lab.stored if r.startswith(b"reply\0")]
    _, session, request = key_of(raw)
    lab.since()
    a.ask(Heartbeat(acknowledged=int(request)))
    lab.advance(5)
    assert lab.since() == []
    assert raw in lab.stored
    a.set("l")
    (changes,) = lab.since()
    assert changes[raw] is None
    assert raw not in lab.stored
    record = unpack(lab.stored[key_bytes(("session", int(session)))], StoredSession)
    assert record.acknowledged == request
    assert not saves_of(lab).later


def test_a_record_that_is_marked_and_can_wait_is_written_once(lab: Watched) -> None:
    (a,) = lab.world("a", rules=policy(1))
    saves, state = saves_of(lab), lab.core.tables
    state.sessions[session_of(a)].client = "new"
    state.save_later([("session", session_of(a))])
    state.save("session", session_of(a))
    assert list(saves.changes(state)) == [key_bytes(("session", session_of(a)))]
    assert not saves.later


def test_a_record_that_is_known_to_be_stored_is_not_written_again(lab: Watched) -> None:
    lab.world("a", rules=policy(1))
    state = lab.core.tables
    state.keep_saves()
    saves = saves_of(lab)
    for raw, record in lab.stored.items():
        saves.remember(key_of(raw), record)
    for raw in lab.stored:
        state.save(*key_of(raw))
    assert saves.changes(state) == {}


def test_a_key_of_no_kind_is_a_fault_of_the_server(lab: Watched) -> None:
    lab.world("a", rules=policy(1))
    keys: list[Key] = [("nothing",), ("nothing", 3), ("nothing", RUN, 0, "x")]
    for key in keys:
        with pytest.raises(AssertionError, match="no such record"):
            read_off(lab.core.tables, key)


# --- what is in the records -------------------------------------------------------------------


def everything(lab: Lab) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    a.set("k")
    a.ask(KvSet(key="k", value=b"v"))
    a.meet()
    b.meet()
    a.worker(0)
    lab.node("a", incarnation=2)
    c = lab.world("c", rules=policy(1), run="closed")[0]
    c.ask(CloseRun(run="closed"))


def test_the_whole_image_is_what_was_written_piece_by_piece(lab: Watched) -> None:
    everything(lab)
    assert image(lab.core.tables) == lab.stored


def test_every_record_of_an_image_can_be_read_off_by_its_name(lab: Watched) -> None:
    everything(lab)
    found = image(lab.core.tables)
    for raw, record in found.items():
        assert read_off(lab.core.tables, key_of(raw)) == record
    assert {key_bytes(key) for key in keys_of_run(lab.run())} >= {
        raw for raw in found if key_of(raw)[1:2] == (RUN,) and key_of(raw)[0] != "tomb"
    }


def test_a_run_in_its_last_call_is_stored_as_forming(lab: Watched) -> None:
    a, b = lab.nodes("a", "b", rules=policy(2, 3))
    a.join()
    b.join()
    assert lab.status().phase == "last_call"
    assert unpack(lab.stored[key_bytes(("run", RUN))], StoredRun).phase == "forming"


def test_assignments_are_made_anew_and_not_stored(lab: Watched) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    a.meet()
    b.meet()
    assert a.joined is not None
    assert isinstance(a.wire.got[-1][1], Released)
    assert not [raw for raw in lab.stored if raw.startswith(b"reply\0")]


def test_a_generation_that_made_way_leaves_no_record(lab: Watched) -> None:
    a, b = lab.world("a", "b", rules=policy(2))
    a.set("old")
    a.meet("old")
    b.meet("old")
    a.join()
    b.join()
    names = {key_of(raw) for raw in lab.stored}
    assert not [key for key in names if "old" in key]
    assert ("generation", RUN) in names


def test_keys_of_a_generation_go_when_it_ends_and_not_when_it_is_replaced(lab: Watched) -> None:
    a, b = lab.world("a", "b", rules=policy(1, 2))
    a.set("k")
    raw = key_bytes(("key", RUN, 1, "k"))
    assert raw in lab.stored
    b.leave("failed")
    assert raw not in lab.stored


def test_a_deleted_key_is_removed_and_one_that_was_never_there_writes_no_value(
    lab: Watched,
) -> None:
    (a,) = lab.world("a", rules=policy(1))
    a.set("k")
    lab.since()
    a.ask(KvDelete(fence=a.live_fence(), keys=["k", "never"]))
    (changes,) = lab.since()
    assert changes[key_bytes(("key", RUN, 1, "k"))] is None
    assert changes.get(key_bytes(("key", RUN, 1, "never"))) is None


def test_a_forgotten_run_leaves_its_number_and_who_was_there_last_and_nothing_else() -> None:
    lab = Watched(Settings(run_keep_s=2))
    (a,) = lab.world("a", rules=policy(1))
    a.set("k")
    a.ask(KvSet(key="k", value=b"v"))
    a.leave()
    lab.advance(10)
    assert {key_of(raw) for raw in lab.stored} == {("meta",), ("tomb", RUN), ("lost", RUN, "a")}
    b = lab.node("b", rules=policy(1))
    b.join()
    assert key_bytes(("tomb", RUN)) not in lab.stored


def test_a_barrier_that_makes_way_takes_its_records_along(
    lab: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BARRIER_NAMES_MAX", 2)
    (a,) = lab.world("a", rules=policy(1))
    for name in ("one", "two", "three"):
        a.meet(name)
    names = {key_of(raw)[3] for raw in lab.stored if raw.startswith((b"barrier", b"decision"))}
    assert names == {"two", "three"}


def test_only_as_many_decisions_are_stored_as_are_kept(lab: Watched) -> None:
    (a,) = lab.world("a", rules=policy(1))
    for _ in range(20):
        a.meet()
    kept = [key_of(raw)[4] for raw in lab.stored if raw.startswith(b"decision")]
    assert sorted(map(int, kept)) == list(range(13, 21))


def test_a_lost_session_takes_its_replies_along(lab: Watched) -> None:
    (a,) = lab.world("a", rules=policy(1))
    a.set("k")
    a.lose()
    lab.advance(3)
    assert not [raw for raw in lab.stored if raw.startswith((b"reply", b"session"))]


def test_a_superseded_process_is_written_down(lab: Watched) -> None:
    a = lab.node("a")
    lab.node("a", incarnation=2)
    assert key_bytes(("fenced", session_of(a))) in lab.stored
    assert key_bytes(("session", session_of(a))) not in lab.stored


def test_a_process_that_is_remembered_no_longer_is_removed(
    lab: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "FENCED_KEPT_MAX", 2)
    for incarnation in range(1, 6):
        lab.node("a", incarnation=incarnation)
    assert len([raw for raw in lab.stored if raw.startswith(b"fenced")]) == 2


def test_no_record_changes_because_the_clock_does(lab: Watched) -> None:
    """No times are stored: two servers that saw the same at other times store the same."""
    other = Watched()
    other.advance(500)
    for one in (lab, other):
        everything(one)
    assert lab.stored == other.stored


def test_records_of_all_kinds_are_compared_but_large_and_final_ones() -> None:
    """A value, a decision or a reply is written when it is set; hashing it again would save nothing."""
    kinds = {"key", "decision", "reply", "fenced", "tomb"}
    assert not kinds & saving._COMPARED


def test_joins_that_only_wait_write_their_members_once(lab: Watched) -> None:
    a = lab.node("a", rules=policy(2))
    a.join()
    lab.since()
    a.ask(Join(policy=a.rules), a.join_id)
    lab.advance(5)
    assert lab.since() == []


def test_a_pack_of_the_same_state_is_the_same_bytes(lab: Watched) -> None:
    everything(lab)
    assert image(lab.core.tables) == image(lab.core.tables)
