"""The key space of a store: torch's semantics as a table, and its limits.

A script is a list of steps `(client, request, answer)`. The answer is what that client can read after
the step; `...` reads a client without sending, and `CLOSED` is a request that closes the connection.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_proto.counters import INT64_MAX, INT64_MIN
from rdzv_proto.tcpstore import (
    Add,
    AnyRequest,
    Append,
    BadRequestError,
    Barrier,
    CancelWait,
    Check,
    CompareSet,
    DeleteKey,
    Get,
    GetNumKeys,
    ListKeys,
    MultiGet,
    MultiSet,
    Ping,
    QueueLen,
    QueuePop,
    QueuePush,
    Set,
    Wait,
)
from rdzv_server.core.quota import Quota
from rdzv_server.core.tcpstore.space import KeySpace
from tests.unit.proto.tcpstore_bytes import NO, YES, blob, number

CLOSED = "closed"
ROOM = 1 << 20


class Play:
    """Several clients of one key space."""

    def __init__(self, quota: Quota | None = None) -> None:
        self.quota = quota or Quota(ROOM, 1000)
        self.space: KeySpace[str] = KeySpace(self.quota)
        self.unread: dict[str, bytes] = {}

    def step(self, client: str, ask: AnyRequest | None) -> bytes | str:
        if ask is not None:
            try:
                answer = self.space.do(client, ask)
            except BadRequestError:
                self.space.drop(client)
                return CLOSED
            self.unread[client] = self.unread.get(client, b"") + answer
            for woken in self.space.woken():
                self.unread[woken] = self.unread.get(woken, b"") + YES
        return self.unread.pop(client, b"")

    def check(self) -> None:
        """The quota is what is really held."""
        space = self.space
        values = sum(len(k) + len(v) for k, v in space._values.items())
        queued = sum(len(k) + len(v) for k, q in space._queues.items() for v in q)
        waits = sum(len(k) for p in space._pending.values() for k in p.missing)
        assert values + queued <= space.bytes_used
        assert space.bytes_used == self.quota.bytes_used
        assert waits <= space.bytes_used - values - queued
        keys = len(space._values) + sum(map(len, space._queues.values()))
        assert keys == self.quota.keys_used
        waiting = {(k, p) for k, ps in space._waiters.items() for p in ps}
        assert waiting == {(k, p) for p in space._pending.values() for k in p.missing}
        assert all(space._queues.values()), "an empty queue is no queue"


def barrier(world_size: int) -> Barrier:
    return Barrier(b"b", world_size)


Script = list[tuple[str, Any, Any]]

VALUES: dict[str, Script] = {
    "get of a missing key is empty": [("a", Get(b"k"), blob(b""))],
    "set has no answer": [("a", Set(b"k", b"v"), b""), ("a", Get(b"k"), blob(b"v"))],
    "an empty value is a value": [("a", Set(b"k", b""), b""), ("a", Check((b"k",)), YES)],
    "the empty key is a key": [("a", Set(b"", b"v"), b""), ("a", Get(b""), blob(b"v"))],
    "one client sees what another set": [("a", Set(b"k", b"v"), b""), ("b", Get(b"k"), blob(b"v"))],
    "check of several keys": [
        ("a", Set(b"k", b""), b""), ("a", Check((b"k", b"l")), NO), ("a", Check(()), YES)],
    "multi_get has empty blobs for missing keys": [
        ("a", MultiSet((b"k", b"l"), (b"1", b"2")), b""),
        ("a", MultiGet((b"k", b"x", b"l", b"k")), blob(b"1") + blob(b"") + blob(b"2") + blob(b"1"))],
    "multi_get and multi_set of nothing": [
        ("a", MultiGet(()), b""), ("a", MultiSet((), ()), b"")],
    "multi_set: the last of equal keys counts": [
        ("a", MultiSet((b"k", b"k"), (b"1", b"2")), b""), ("a", Get(b"k"), blob(b"2"))],
    "delete": [
        ("a", Set(b"k", b"v"), b""), ("a", DeleteKey(b"k"), number(1)),
        ("a", DeleteKey(b"k"), number(0)), ("a", Get(b"k"), blob(b""))],
    "append": [
        ("a", Append(b"k", b"he"), b""), ("a", Append(b"k", b"llo"), b""),
        ("a", Append(b"k", b"!"), b""), ("a", Get(b"k"), blob(b"hello!")),
        ("a", CompareSet(b"k", b"hello!", b"x"), blob(b"x")), ("a", Append(b"k", b"y"), b""),
        ("a", Get(b"k"), blob(b"xy"))],
    "num_keys and list_keys see plain keys only": [
        ("a", Set(b"k", b""), b""), ("a", Add(b"init/", 1), number(1)), ("a", QueuePush(b"q", b""), b""),
        ("a", GetNumKeys(), number(2)), ("a", ListKeys(), number(2) + blob(b"k") + blob(b"init/"))],
    "ping": [("a", Ping(0x01020304), b"\x04\x03\x02\x01")],
}  # fmt: skip

COMPARE_SET: dict[str, Script] = {
    "missing, nothing expected: stored": [
        ("a", CompareSet(b"k", b"", b"new"), blob(b"new")), ("a", Get(b"k"), blob(b"new"))],
    "missing, something expected: not stored, the expected value comes back": [
        ("a", CompareSet(b"k", b"x", b"y"), blob(b"x")), ("a", Check((b"k",)), NO)],
    "equal: stored": [("a", Set(b"k", b"v"), b""), ("a", CompareSet(b"k", b"v", b"w"), blob(b"w"))],
    "different: the present value": [
        ("a", Set(b"k", b"v"), b""), ("a", CompareSet(b"k", b"z", b"w"), blob(b"v"))],
    "present, nothing expected: the present value": [
        ("a", Set(b"k", b"v"), b""), ("a", CompareSet(b"k", b"", b"w"), blob(b"v"))],
    "an empty stored value is present": [
        ("a", Set(b"k", b""), b""), ("a", CompareSet(b"k", b"", b"w"), blob(b"w")),
        ("a", Set(b"k", b""), b""), ("a", CompareSet(b"k", b"x", b"w"), blob(b""))],
    "it wakes waiters": [
        ("a", Wait((b"k",)), b""), ("b", CompareSet(b"k", b"", b"v"), blob(b"v")), ("a", None, YES)],
    "it wakes waiters even when it stores nothing": [
        ("a", Wait((b"k",)), b""), ("b", CompareSet(b"k", b"x", b"y"), blob(b"x")), ("a", None, YES)],
}  # fmt: skip


def counter(value: bytes, delta: int, result: int) -> Script:
    text = b"%d" % result
    return [("a", Set(b"n", value), b""), ("a", Add(b"n", delta), number(result)),
            ("a", Get(b"n"), blob(text))]  # fmt: skip


def no_counter(value: bytes) -> Script:
    return [
        ("a", Set(b"n", value), b""),
        ("a", Add(b"n", 1), CLOSED),
        ("b", Get(b"n"), blob(value)),
    ]


COUNTERS: dict[str, Script] = {
    "a missing key counts as 0": [("a", Add(b"n", -5), number(-5)), ("a", Get(b"n"), blob(b"-5"))],
    "adding 0 makes the key": [("a", Add(b"n", 0), number(0)), ("a", Get(b"n"), blob(b"0"))],
    "a set value is a counter": counter(b"41", 1, 42),
    "digits, then rubbish": counter(b"12abc", 1, 13),
    "hexadecimal is 0": counter(b"0x10", 1, 1),
    "underscores end a number": counter(b"1_0", 1, 2),
    "leading blanks": counter(b" 5", 1, 6),
    "a plus": counter(b"+5", 1, 6),
    "upwards out of 64 bits": counter(b"%d" % INT64_MAX, 1, INT64_MIN),
    "downwards out of 64 bits": counter(b"%d" % INT64_MIN, -1, INT64_MAX),
    "letters": no_counter(b"abc"),
    "nothing": no_counter(b""),
    "more than 64 bits": no_counter(b"99999999999999999999"),
    "add wakes waiters": [
        ("a", Wait((b"n",)), b""), ("b", Add(b"n", 1), number(1)), ("a", None, YES)],
}  # fmt: skip

WAITS: dict[str, Script] = {
    "for nothing": [("a", Wait(()), YES)],
    "for what is there": [("a", Set(b"k", b""), b""), ("a", Wait((b"k",)), YES)],
    "for the same key twice": [
        ("a", Wait((b"k", b"k")), b""), ("b", Set(b"k", b""), b""), ("a", None, YES)],
    "for two keys": [
        ("a", Wait((b"k", b"l")), b""), ("b", Set(b"k", b""), b""), ("a", None, b""),
        ("b", Append(b"l", b"x"), b""), ("a", None, YES)],
    "a key that was deleted meanwhile has come": [
        ("a", Wait((b"k", b"l")), b""), ("b", Set(b"k", b""), b""), ("b", DeleteKey(b"k"), number(1)),
        ("b", Set(b"l", b""), b""), ("a", None, YES)],
    "multi_set wakes each of its keys": [
        ("a", Wait((b"k",)), b""), ("b", Wait((b"l",)), b""),
        ("c", MultiSet((b"k", b"l"), (b"", b"")), b""), ("a", None, YES), ("b", None, YES)],
    "deleting wakes nobody": [
        ("b", Set(b"l", b""), b""), ("a", Wait((b"k",)), b""), ("b", DeleteKey(b"l"), number(1)),
        ("a", None, b"")],
    "one wait is answered once": [
        ("a", Wait((b"k",)), b""), ("b", Set(b"k", b""), b""), ("b", Set(b"k", b""), b""),
        ("a", None, YES), ("a", None, b"")],
    "requests behind a wait are answered first": [
        ("a", Wait((b"k",)), b""), ("a", Add(b"n", 1), number(1)), ("b", Set(b"k", b""), b""),
        ("a", None, YES)],
    "a client may wake itself": [("a", Wait((b"k",)), b""), ("a", Set(b"k", b""), YES)],
    "cancelled": [
        ("a", Wait((b"k",)), b""), ("a", CancelWait(), NO), ("b", Set(b"k", b""), b""),
        ("a", None, b"")],
    "cancelled without a wait": [("a", CancelWait(), NO)],
    "cancelled too late": [
        ("a", Wait((b"k",)), b""), ("b", Set(b"k", b""), b""), ("a", CancelWait(), YES + NO)],
    "all waiters of a key are woken": [
        ("a", Wait((b"k",)), b""), ("b", Wait((b"k",)), b""), ("c", Set(b"k", b""), b""),
        ("a", None, YES), ("b", None, YES)],
    "a newer wait takes the place of the older": [
        ("a", Wait((b"k",)), b""), ("a", Wait((b"l",)), b""), ("b", Set(b"k", b""), b""),
        ("a", None, b""), ("b", Set(b"l", b""), b""), ("a", None, YES)],
    "a newer wait that need not wait also ends the older": [
        ("b", Set(b"l", b""), b""), ("a", Wait((b"k",)), b""), ("a", Wait((b"l",)), YES),
        ("b", Set(b"k", b""), b""), ("a", None, b"")],
}  # fmt: skip

QUEUES: dict[str, Script] = {
    "first in, first out": [
        ("a", QueuePush(b"q", b"1"), b""), ("a", QueuePush(b"q", b"2"), b""),
        ("a", QueueLen(b"q"), number(2)), ("b", QueuePop(b"q"), number(2) + blob(b"1")),
        ("b", QueuePop(b"q"), number(1) + blob(b"2")), ("b", QueuePop(b"q"), number(0)),
        ("b", QueueLen(b"q"), number(0))],
    "a filled queue counts as present": [
        ("a", QueuePush(b"q", b"1"), b""), ("a", Check((b"q",)), YES), ("a", Wait((b"q",)), YES),
        ("a", QueuePop(b"q"), number(1) + blob(b"1")), ("a", Check((b"q",)), NO)],
    "get and delete do not see it": [
        ("a", QueuePush(b"q", b"1"), b""), ("a", Get(b"q"), blob(b"")),
        ("a", DeleteKey(b"q"), number(0)), ("a", QueueLen(b"q"), number(1))],
    "a key of the same name is another thing": [
        ("a", Set(b"q", b"key"), b""), ("a", QueuePush(b"q", b"1"), b""),
        ("a", Get(b"q"), blob(b"key")), ("a", QueuePop(b"q"), number(1) + blob(b"1")),
        ("a", Get(b"q"), blob(b"key"))],
    "a push wakes one, who waited longest": [
        ("a", Wait((b"q",)), b""), ("b", Wait((b"q",)), b""), ("c", QueuePush(b"q", b"1"), b""),
        ("a", None, YES), ("b", None, b""), ("c", QueuePush(b"q", b"2"), b""), ("b", None, YES)],
    "who waits for more as well takes no push from others": [
        ("a", Wait((b"q", b"k")), b""), ("b", Wait((b"q",)), b""), ("c", QueuePush(b"q", b"1"), b""),
        ("a", None, b""), ("b", None, YES), ("c", Set(b"k", b""), b""), ("a", None, YES)],
    "who was woken and waits for another key hears nothing of a second push": [
        ("a", Wait((b"q",)), b""), ("b", QueuePush(b"q", b"1"), b""), ("a", None, YES),
        ("a", Wait((b"x",)), b""), ("b", QueuePush(b"q", b"2"), b""), ("a", None, b"")],
    "a filled queue and a missing key": [
        ("a", QueuePush(b"q", b"1"), b""), ("a", Wait((b"q", b"k")), b""), ("b", Set(b"k", b""), b""),
        ("a", None, YES)],
    "an empty queue and a missing key": [
        ("a", Wait((b"q", b"k")), b""), ("b", QueuePush(b"q", b"1"), b""), ("a", None, b""),
        ("b", QueuePush(b"q", b"2"), b""), ("a", None, b""), ("b", Set(b"k", b""), b""),
        ("a", None, YES)],
    "who gave up gets no push": [
        ("a", Wait((b"q",)), b""), ("a", CancelWait(), NO), ("b", Wait((b"q",)), b""),
        ("c", QueuePush(b"q", b"1"), b""), ("a", None, b""), ("b", None, YES)],
}  # fmt: skip

BARRIERS: dict[str, Script] = {
    "of two": [("a", barrier(2), b""), ("b", barrier(2), YES), ("a", None, YES)],
    "later arrivals pass": [
        ("a", barrier(2), b""), ("b", barrier(2), YES), ("a", None, YES), ("c", barrier(2), YES),
        ("c", Get(b"b"), blob(b"3"))],
    "of one": [("a", barrier(1), YES)],
    "of nobody": [("a", barrier(0), YES), ("a", barrier(-1), YES)],
    "half full it is a present key": [
        ("a", barrier(2), b""), ("b", Wait((b"b",)), YES), ("b", Get(b"b"), blob(b"1"))],
    "an arrival does not wake a plain wait": [
        ("a", Wait((b"b",)), b""), ("b", barrier(2), b""), ("a", None, b""), ("c", barrier(2), YES),
        ("a", None, YES), ("b", None, YES)],
    "a set releases it": [("a", barrier(3), b""), ("b", Set(b"b", b"9"), b""), ("a", None, YES)],
    "an add releases it": [("a", barrier(3), b""), ("b", Add(b"b", 1), number(2)), ("a", None, YES)],
    "who gave up stays counted": [
        ("a", barrier(2), b""), ("a", CancelWait(), NO), ("b", barrier(2), YES), ("a", None, b"")],
    "a value that is no number": [
        ("a", Set(b"b", b"x"), b""), ("a", barrier(2), CLOSED), ("b", Get(b"b"), blob(b"x"))],
}  # fmt: skip

SCRIPTS = {
    f"{group}: {name}": script
    for group, scripts in (
        ("values", VALUES), ("compare_set", COMPARE_SET), ("add", COUNTERS), ("wait", WAITS),
        ("queues", QUEUES), ("barrier", BARRIERS),
    )
    for name, script in scripts.items()
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_it_does_as_torch_does(script: Script) -> None:
    play = Play()
    for number_, (client, ask, answer) in enumerate(script):
        assert play.step(client, ask) == answer, f"step {number_}: {client} {ask!r}"
        play.check()


def test_every_op_is_in_a_script() -> None:
    asked = {type(ask) for script in SCRIPTS.values() for _, ask, _ in script if ask is not None}
    assert {kind.op for kind in asked} == set(range(1, 19))


def test_who_is_gone_is_not_woken_and_stays_counted() -> None:
    play = Play()
    play.step("a", barrier(2))
    play.step("b", Wait((b"k",)))
    assert play.space.waiting == 2
    play.space.drop("a")
    play.space.drop("b")
    play.space.drop("b")
    assert play.space.waiting == 0
    assert play.step("c", barrier(2)) == YES
    assert play.step("c", Set(b"k", b"")) == b""
    assert (play.step("a", None), play.step("b", None)) == (b"", b"")


# --- limits ---------------------------------------------------------------------------------------


FULL: dict[str, AnyRequest] = {
    "set": Set(b"new", b"v"),
    "set longer": Set(b"k", b"v" * 30),
    "multi_set": MultiSet((b"k", b"new"), (b"1", b"v")),
    "add": Add(b"new", 1),
    "append": Append(b"k", b"v" * 30),
    "compare_set": CompareSet(b"new", b"", b"v"),
    "push": QueuePush(b"q", b"v"),
    "wait": Wait((b"x" * 30,)),
    "barrier": Barrier(b"new", 2),
}


@pytest.mark.parametrize("ask", FULL.values(), ids=FULL)
def test_what_does_not_fit_closes_the_connection_and_changes_nothing(ask: AnyRequest) -> None:
    play = Play(Quota(bytes_max=30, keys_max=1))
    assert play.step("a", Set(b"k", b"value")) == b""
    assert play.step("b", ask) == CLOSED
    assert play.step("c", Get(b"k")) == blob(b"value")
    assert play.step("c", GetNumKeys()) == number(1)
    assert play.step("c", QueueLen(b"q")) == number(0)
    play.check()


def test_what_was_freed_can_be_used_again() -> None:
    play = Play(Quota(bytes_max=10, keys_max=1))
    for _ in range(3):
        assert play.step("a", Set(b"k", b"123456789")) == b""
        assert play.step("a", DeleteKey(b"k")) == number(1)
        assert play.step("a", QueuePush(b"q", b"123456789")) == b""
        assert play.step("a", QueuePop(b"q")) == number(1) + blob(b"123456789")
        assert play.step("a", Wait((b"0123456789",))) == b""
        assert play.step("a", CancelWait()) == NO
        play.check()


def test_two_key_spaces_share_one_quota_and_nothing_else() -> None:
    quota = Quota(bytes_max=10, keys_max=10)
    one, other = Play(quota), Play(quota)
    assert one.step("a", Set(b"k", b"12345678")) == b""
    assert other.step("a", Get(b"k")) == blob(b"")
    assert other.step("a", Set(b"k", b"1234")) == CLOSED
    one.space.clear()
    assert (quota.bytes_used, quota.keys_used) == (0, 0)
    assert other.step("a", Set(b"k", b"1234")) == b""


def test_an_answer_is_bounded_however_often_a_value_is_asked_for() -> None:
    play = Play(Quota(1 << 24, 10))
    play.step("a", Set(b"k", b"v" * (1 << 20)))
    assert play.step("a", MultiGet((b"k",) * 70)) != CLOSED
    assert play.step("a", MultiGet((b"k",) * 90)) == CLOSED


# --- anything -------------------------------------------------------------------------------------

NAMES = st.sampled_from([b"", b"k", b"l", b"q"])
TEXTS = st.sampled_from([b"", b"1", b"-7", b"x", b"long" * 4])
LISTS = st.lists(NAMES, max_size=3).map(tuple)
ANYTHING = st.one_of(
    st.builds(Set, NAMES, TEXTS), st.builds(CompareSet, NAMES, TEXTS, TEXTS), st.builds(Get, NAMES),
    st.builds(Add, NAMES, st.integers(-3, 3)), st.builds(Check, LISTS), st.builds(Wait, LISTS),
    st.builds(GetNumKeys), st.builds(DeleteKey, NAMES), st.builds(Append, NAMES, TEXTS),
    st.builds(MultiGet, LISTS), st.builds(CancelWait), st.builds(Ping, st.integers(0, 9)),
    st.builds(QueuePush, NAMES, TEXTS), st.builds(QueuePop, NAMES), st.builds(QueueLen, NAMES),
    st.builds(ListKeys), st.builds(Barrier, NAMES, st.integers(-1, 3)),
    LISTS.map(lambda keys: MultiSet(keys, tuple(b"%d" % i for i in range(len(keys))))),
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from("abc"), ANYTHING), max_size=60))
def test_whatever_is_asked_the_books_are_right(steps: list[tuple[str, AnyRequest]]) -> None:
    play = Play(Quota(bytes_max=60, keys_max=6))
    for client, ask in steps:
        play.step(client, ask)
        play.check()
        assert play.quota.bytes_used <= 60
        assert play.quota.keys_used <= 6
    play.space.clear()
    assert (play.quota.bytes_used, play.quota.keys_used) == (0, 0)
