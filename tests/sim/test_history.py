"""The history recorder: what a checker can rely on."""

import math
from pathlib import Path

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyReply,
    AnyRequest,
    Barrier,
    Done,
    Error,
    Fence,
    Join,
    Joined,
    KvAdd,
    KvAppend,
    KvCas,
    KvDelete,
    KvGet,
    KvMultiGet,
    KvMultiSet,
    KvNumber,
    KvSet,
    KvSwapped,
    KvValue,
    KvValues,
    NcclGet,
    NcclIds,
    NcclPut,
    Policy,
    Released,
    Status,
)
from rdzv_server.core.model import Run
from tests.sim.check.entries import OPS, Entry, read, write
from tests.sim.check.judge import judge
from tests.sim.history import NAMES, Recorder
from tests.sim.lives import Lives
from tests.sim.world import Mode, World

EPOCH = 1_700_000_000_000
FENCE = Fence(EPOCH, 4)
MINE = Joined(fence=FENCE, group_rank=0, world_size=2, digest=b"\x01\x02", reason="all are here")
ID = bytes(range(128))
POLICY = Policy(min_nodes=1, max_nodes=2)


def begun(recorder: Recorder, message: AnyRequest, mine: Joined | None = MINE) -> list[Entry]:
    return recorder.asked("a/1", "run", message, 1.0, mine)


def recorder() -> Recorder:
    lives = Lives()
    lives.note({"run": Run("run", 0)})
    return Recorder([EPOCH], lives)


def test_an_answer_ends_an_operation() -> None:
    history = recorder()
    adds = begun(history, KvAdd(fence=FENCE, key="k", delta=2))
    assert adds[0].end_s == math.inf
    history.answered(adds, KvNumber(value=2, revision=7), 1.5)
    result = {"value": 2, "revision": 7}
    want = Entry("a/1", "run", "add", "k", {"delta": 2}, 1.0, 1.5, True, result, 1, 4, 0, 2)
    assert history.history() == adds == [want]


@pytest.mark.parametrize(
    ("asked", "reply", "args", "result"),
    [
        (
            KvSet(fence=FENCE, key="k", value=b"v"),
            Done(revision=3),
            {"value": "v"},
            {"revision": 3},
        ),
        (
            KvAppend(fence=FENCE, key="k", value=b"v"),
            KvNumber(value=5, revision=3),
            {"value": "v"},
            {"length": 5, "revision": 3},
        ),
        (
            KvCas(fence=FENCE, key="k", value=b"v", revision=2),
            KvSwapped(swapped=False, value=b"w", revision=3),
            {"value": "v", "revision": 2},
            {"swapped": False, "value": "w", "revision": 3},
        ),
        (
            KvCas(fence=FENCE, key="k", value=b"v"),
            KvSwapped(swapped=True, value=b"v", revision=3),
            {"value": "v", "expected": None},
            {"swapped": True, "value": "v", "revision": 3},
        ),
        (
            KvGet(fence=FENCE, key="k"),
            KvValue(value=b"v", revision=3),
            {},
            {"value": "v", "revision": 3},
        ),
        (
            KvDelete(fence=FENCE, keys=["k"]),
            KvNumber(value=1, revision=3),
            {},
            {"deleted": 1, "revision": 3},
        ),
        (
            Barrier(fence=FENCE, name="k", members=[0, 1], payload=b"v", timeout_ms=1),
            Released(round=3, members=[0, 1], payloads=[b"v", None]),
            {"payload": "v", "members": [0, 1]},
            {"payloads": ["v", None]},
        ),
    ],
    ids=lambda value: value.op if hasattr(value, "op") else "",
)
def test_an_operation_has_what_the_checkers_look_at(
    asked: AnyRequest, reply: AnyReply, args: dict[str, object], result: dict[str, object]
) -> None:
    history = recorder()
    (one,) = begun(history, asked)
    history.answered([one], reply, 2.0)
    assert (one.op, one.key, one.args) == (NAMES[type(asked)], "k", args)
    assert (one.ok, one.result) == (True, result)
    assert one.round == (3 if isinstance(reply, Released) else None)


def test_a_request_for_several_keys_is_an_operation_on_each() -> None:
    history = recorder()
    puts = begun(history, KvMultiSet(fence=FENCE, keys=["k", "l"], values=[b"v", b"w"]))
    history.answered(puts, Done(revision=3), 2.0)
    assert [(p.op, p.key, p.args, p.result) for p in puts] == [
        ("put", "k", {"value": "v"}, {}),
        ("put", "l", {"value": "w"}, {}),
    ]
    gets = begun(history, KvMultiGet(fence=FENCE, keys=["k", "l"], timeout_ms=1))
    history.answered(gets, KvValues(values=[b"v", b"w"]), 3.0)
    assert [(g.op, g.key, g.result) for g in gets] == [
        ("get", "k", {"value": "v"}),
        ("get", "l", {"value": "w"}),
    ]


def test_a_join_has_the_place_that_it_was_told() -> None:
    history = recorder()
    joins = begun(history, Join(policy=POLICY), None)
    history.answered(joins, MINE, 2.0)
    (join,) = joins
    assert (join.fence, join.rank, join.world) == ((1, 4), 0, 2)
    assert join.result == {"digest": "0102"}


def test_a_training_process_has_the_place_of_its_agent() -> None:
    history = recorder()
    attach = history.attaches("a/1/worker", "run", "a/1", MINE, 1.0)
    assert (attach.fence, attach.rank, attach.world) == ((1, 4), 0, 2)
    assert (attach.args, attach.known) == ({"agent": "a/1"}, False)
    history.attached(attach, 2.0)
    assert (attach.end_s, attach.ok) == (2.0, True)


def test_an_id_is_known_by_its_fingerprint_from_its_mint_to_its_users() -> None:
    history = recorder()
    asks = begun(history, NcclGet(fence=FENCE, group="dp", rank=0, nranks=2, timeout_ms=1))
    history.answered(asks, NcclIds(attempt=1, mint=[0]), 2.0)
    assert asks[0].result == {}, "an order to mint is no id"
    (put,) = begun(history, NcclPut(fence=FENCE, group="dp", attempt=1, rank=0, index=0, id=ID))
    (get,) = begun(history, NcclGet(fence=FENCE, group="dp", rank=0, nranks=2, timeout_ms=1))
    history.answered([get], NcclIds(attempt=1, ids=[ID]), 3.0)
    assert get.result == {"attempt": 1, "id": put.args["minted"]}
    assert ID.hex()[:16] not in put.line() + get.line()


def test_a_refusal_is_told_apart_from_an_end_that_nobody_knows() -> None:
    history = recorder()
    refused, unknown = (begun(history, KvAdd(fence=FENCE, key="k", delta=2)) for _ in range(2))
    history.answered(refused, Error(code=ErrorCode.STALE_GENERATION, message=""), 2.0)
    history.answered(unknown, Error(code=ErrorCode.SESSION_LOST, message=""), 2.0)
    assert (refused[0].ok, refused[0].result) == (False, {"error": "STALE_GENERATION"})
    assert (unknown[0].ok, unknown[0].known) == (None, False)


def test_the_failure_of_a_round_has_its_number() -> None:
    history = recorder()
    meets = begun(history, Barrier(fence=FENCE, name="b", timeout_ms=1))
    text = "barrier 'b' of run 'run', round 12: rank 1 (b) is missing"
    history.answered(meets, Error(code=ErrorCode.BARRIER_TIMEOUT, message=text), 2.0)
    assert (meets[0].round, meets[0].result) == (12, {"error": "BARRIER_TIMEOUT"})


def test_a_key_that_is_not_there_is_read_as_nothing() -> None:
    history = recorder()
    gets = begun(history, KvGet(fence=FENCE, key="k"))
    history.answered(gets, Error(code=ErrorCode.WAIT_TIMEOUT, message=""), 1.1)
    assert (gets[0].ok, gets[0].result) == (True, {"value": None})


def test_looks_at_the_server_are_left_out() -> None:
    assert begun(recorder(), Status()) == []


# --- keys of a run ------------------------------------------------------------------------------

ADD, GET = KvAdd(fence=None, key="k", delta=1), KvGet(fence=None, key="k")


class Runs:
    """A recorder, and the run that the server has."""

    def __init__(self) -> None:
        self.lives = Lives()
        self.run = Run("run", 0)
        self.recorder = Recorder([EPOCH], self.lives)
        self.note()

    def note(self) -> None:
        self.lives.note({"run": self.run})

    def ends(self) -> None:
        self.run.kv_over = True
        self.note()

    def begins_anew(self) -> None:
        self.run.kv_over = False
        self.note()

    def asks(self, message: AnyRequest) -> list[Entry]:
        return begun(self.recorder, message)

    def spaces(self) -> list[tuple[int | None, bool]]:
        """Of its operations: in which life, and whether it is known how they went."""
        return [(one.epoch, one.known) for one in self.recorder.history()]


def test_keys_of_a_run_are_those_of_one_life() -> None:
    runs = Runs()
    first = runs.asks(ADD)
    runs.recorder.answered(first, KvNumber(value=1, revision=1), 2.0)
    runs.ends()
    runs.begins_anew()
    second = runs.asks(ADD)
    runs.recorder.answered(second, KvNumber(value=1, revision=3), 3.0)
    assert runs.spaces() == [(1, True), (2, True)]
    assert judge(runs.recorder.history()).good


def test_a_write_that_may_have_been_done_in_either_life_is_in_both() -> None:
    runs = Runs()
    late = runs.asks(ADD)
    runs.ends()
    runs.begins_anew()
    runs.recorder.answered(late, KvNumber(value=1, revision=2), 2.0)
    look = runs.asks(GET)
    runs.recorder.answered(look, KvValue(value=b"1", revision=2), 3.0)
    assert runs.spaces() == [(1, False), (2, True), (2, False)]
    assert judge(runs.recorder.history()).good


def test_a_write_that_was_refused_is_in_none() -> None:
    runs = Runs()
    late = runs.asks(ADD)
    runs.ends()
    runs.begins_anew()
    runs.recorder.answered(late, Error(code=ErrorCode.NOT_A_MEMBER, message=""), 2.0)
    assert runs.spaces() == [(1, True)]
    assert late[0].ok is False


def test_a_look_between_two_lives_is_left_out() -> None:
    runs = Runs()
    before = runs.asks(GET)
    runs.ends()
    assert runs.asks(GET) == []
    runs.recorder.answered(before, KvValue(value=b"1", revision=2), 3.0)
    assert runs.spaces() == [(1, False)]


def test_a_write_after_the_end_of_a_run_begins_its_next_life() -> None:
    runs = Runs()
    runs.ends()
    early = runs.asks(ADD)
    runs.begins_anew()
    runs.recorder.answered(early, KvNumber(value=1, revision=2), 3.0)
    assert runs.spaces() == [(1, False), (2, False)]


def test_a_run_that_was_forgotten_begins_anew_and_one_that_was_stored_goes_on() -> None:
    lives, run = Lives(), Run("run", 0)
    assert lives.of("run") == (0, True)
    lives.note({"run": run})
    assert lives.of("run") == (1, False)
    lives.resumed({"run": Run("run", 0)})
    assert lives.of("run") == (1, False)
    lives.resumed({})
    assert lives.of("run") == (1, True)
    lives.note({"run": Run("run", 0), "other": Run("other", 0)})
    assert (lives.of("run"), lives.of("other")) == ((2, False), (3, False))
    lives.note({"other": run})
    assert lives.of("run") == (2, True)
    assert lives.after("run", 1) == [2]


def test_the_end_of_a_run_that_was_not_stored_is_none() -> None:
    lives, run = Lives(), Run("run", 0)
    lives.note({"run": run})
    run.kv_over = True
    lives.note({"run": run})
    lives.resumed({"run": Run("run", 0)})
    assert lives.of("run") == (1, False)


def test_epochs_are_in_their_order_although_the_clock_was_set_back() -> None:
    history = Recorder([EPOCH, EPOCH - 5], Lives())
    later = Joined(
        fence=Fence(EPOCH - 5, 1), group_rank=0, world_size=2, digest=b"d", reason="all are here"
    )
    (join,) = begun(history, Join(policy=POLICY), None)
    history.answered([join], later, 2.0)
    assert join.fence == (2, 1)


@pytest.mark.parametrize("mode", Mode, ids=lambda mode: mode.value)
def test_a_seed_has_a_history_of_all_kinds_of_operations_that_the_checkers_find_good(
    mode: Mode, tmp_path: Path
) -> None:
    """As `--history FILE` writes it, and `python -m tests.sim.check FILE` reads it."""
    world = World(5, mode)
    world.play()
    assert world.verdict is not None
    path = str(tmp_path / "history.jsonl")
    write(path, world.recorder.history())
    ops = list(read(path))
    assert {op.op for op in ops} == OPS
    assert [op.start_s for op in ops] == sorted(op.start_s for op in ops)
    verdict = judge(ops)
    assert verdict.good
    assert (verdict.ops, verdict.keys) == (world.verdict.ops, world.verdict.keys)


@pytest.mark.parametrize(
    ("op", "wrong"),
    [
        ("get", {"value": "of nobody"}),
        ("add", {"value": -1}),
        ("barrier", {"payloads": ["of nobody"] * 8}),
        ("join", {"digest": "another"}),
        ("id", {"id": "of nobody"}),
    ],
)
def test_the_history_of_a_seed_with_one_wrong_answer_is_a_violation(
    op: str, wrong: dict[str, object]
) -> None:
    world = World(5, Mode.CRASHES)
    answered = world.recorder.answered
    ok = 0

    def lie(begun: list[Entry], reply: AnyReply, now: float) -> None:
        nonlocal ok
        answered(begun, reply, now)
        for one in begun:
            if one.op == op and one.ok and one.result.keys() >= wrong.keys():
                ok += 1
                if ok == 3:
                    one.result |= wrong

    world.recorder.answered = lie  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match=r"S\d+: "):
        world.play()
