"""One key space: keys, counters, revisions, and waits for keys."""

import pytest

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Fence, KvMultiGet, KvWait
from rdzv_server.core.kv import Namespace, keys_of
from rdzv_server.core.quota import Quota
from rdzv_server.core.refusal import Refused

FENCE = Fence(1, 1)


def space(bytes_max: int = limits.KV_BYTES_PER_RUN_MAX, keys_max: int = 1000) -> Namespace:
    return Namespace(Quota(bytes_max, keys_max))


def values(kv: Namespace, *keys: str) -> list[bytes]:
    entries = kv.get(keys)
    assert entries is not None
    return [entry.value for entry in entries]


def wait_for(*keys: str) -> KvWait:
    return KvWait(fence=FENCE, keys=list(keys), timeout_ms=1000)


def test_a_value_is_what_was_set_last() -> None:
    kv = space()
    kv.set(("k",), (b"1",))
    kv.set(("k",), (b"22",))
    assert values(kv, "k") == [b"22"]
    assert kv.bytes_used == len("k") + 2


def test_a_missing_key_is_missing() -> None:
    kv = space()
    kv.set(("a",), (b"",))
    assert kv.get(("a", "b")) is None
    assert kv.missing(("a", "b")) == ["b"]


def test_a_counter_starts_at_0_and_shows_as_decimal_text() -> None:
    kv = space()
    assert kv.add("n", 0)[0] == 0
    assert kv.add("n", -5)[0] == -5
    assert values(kv, "n") == [b"-5"]


@pytest.mark.parametrize("value", [b"", b"x", b"1.5", b"1_0", b" 1", b"0x10", b"\xff"])
def test_adding_to_something_else_is_refused_and_changes_nothing(value: bytes) -> None:
    kv = space()
    kv.set(("n",), (value,))
    with pytest.raises(Refused) as refused:
        kv.add("n", 1)
    assert refused.value.code is ErrorCode.NOT_A_NUMBER
    assert values(kv, "n") == [value]


def test_additions_and_other_writes_of_one_key_follow_each_other() -> None:
    """What an addition knows of a counter ends with the next write that is none."""
    kv = space()
    kv.put("n", b"-007")
    assert kv.add("n", 1)[0] == -6
    assert kv.add("n", 1)[0] == -5
    kv.put("n", b"41")
    assert kv.add("n", 1)[0] == 42
    kv.append("n", b"0")
    assert kv.add("n", 1)[0] == 421
    kv.set(("n", "m"), (b"7", b"8"))
    assert kv.add("n", 1)[0] == 8
    kv.delete(["n"])
    assert kv.add("n", 1)[0] == 1
    assert values(kv, "n", "m") == [b"1", b"8"]


def test_a_counter_stays_within_64_bits() -> None:
    kv = space()
    kv.add("n", (1 << 63) - 1)
    with pytest.raises(Refused):
        kv.add("n", 1)
    assert kv.add("n", 0)[0] == (1 << 63) - 1


def test_s24_a_wait_ends_with_the_write_that_completes_it() -> None:
    kv = space()
    kv.wait((1, 7), wait_for("a", "b"))
    assert kv.set(("a",), (b"",)) == []
    (woken,) = kv.set(("b",), (b"",))
    assert woken.waiter == (1, 7)
    assert kv.waiters() == []


def test_s24_one_write_of_several_keys_wakes_each_waiter_once() -> None:
    kv = space()
    kv.wait((1, 1), wait_for("a", "b"))
    kv.wait((2, 1), wait_for("b"))
    woken = kv.set(("a", "b"), (b"", b""))
    assert sorted(w.waiter for w in woken) == [(1, 1), (2, 1)]


def test_a_dropped_wait_is_never_woken() -> None:
    kv = space()
    kv.wait((1, 1), wait_for("a", "b"))
    dropped = kv.drop((1, 1))
    assert dropped is not None
    assert dropped.missing_in_order() == ["a", "b"]
    assert kv.drop((1, 1)) is None
    assert kv.set(("a", "b"), (b"", b"")) == []


def test_the_same_key_twice_in_one_request_is_harmless() -> None:
    kv = space()
    kv.wait((1, 1), KvMultiGet(fence=FENCE, keys=["a", "a"], timeout_ms=1))
    (woken,) = kv.set(("a",), (b"v",))
    assert values(kv, *keys_of(woken.ask)) == [b"v", b"v"]


def test_s25_limits_refuse_without_side_effect() -> None:
    kv = space(bytes_max=10, keys_max=2)
    kv.set(("a",), (b"123456789",))
    for keys, new in ((("b",), (b"",)), (("a",), (b"1234567890",))):
        with pytest.raises(Refused) as refused:
            kv.set(keys, new)
        assert refused.value.code is ErrorCode.LIMIT_EXCEEDED
    kv.set(("a",), (b"",))
    kv.set(("b",), (b"",))
    with pytest.raises(Refused, match="or 2 keys"):
        kv.set(("c",), (b"",))
    assert len(kv) == 2
    assert kv.bytes_used == 2


def test_s25_a_value_may_always_shrink_or_stay_when_another_space_used_up_the_room() -> None:
    quota = Quota(10, 10)
    one, other = Namespace(quota), Namespace(quota)
    one.set(("a",), (b"1234",))
    other.set(("b",), (b"1234",))
    with pytest.raises(Refused):
        one.set(("c",), (b"",))
    one.set(("a",), (b"12",))
    other.set(("c",), (b"",))
    assert quota.bytes_used == 9


def test_clearing_gives_the_room_back_and_keeps_the_waits() -> None:
    quota = Quota(10, 10)
    kv = Namespace(quota)
    kv.set(("a",), (b"123456789",))
    kv.wait((1, 1), wait_for("a", "b"))
    kv.clear()
    assert (quota.bytes_used, quota.keys_used, len(kv)) == (0, 0, 0)
    assert kv.set(("b",), (b"",)) == []
    assert [w.waiter for w in kv.set(("a",), (b"",))] == [(1, 1)]


def test_s25_an_append_beyond_the_size_of_a_value_is_refused() -> None:
    kv = space()
    kv.set(("a",), (b"x" * limits.VALUE_BYTES_MAX,))
    with pytest.raises(Refused) as refused:
        kv.append("a", b"y")
    assert refused.value.code is ErrorCode.LIMIT_EXCEEDED
    assert len(values(kv, "a")[0]) == limits.VALUE_BYTES_MAX


def test_appending_begins_with_nothing() -> None:
    kv = space()
    assert kv.append("a", b"12")[0] == 2
    assert kv.append("a", b"3")[0] == 3
    assert values(kv, "a") == [b"123"]


def test_s24_appending_and_adding_wake_as_setting_does() -> None:
    kv = space()
    kv.wait((1, 1), wait_for("a"))
    kv.wait((1, 2), wait_for("n"))
    assert [w.waiter for w in kv.append("a", b"")[1]] == [(1, 1)]
    assert [w.waiter for w in kv.add("n", 1)[1]] == [(1, 2)]


def test_s24_a_key_that_is_deleted_before_the_others_come_is_waited_for_again() -> None:
    kv = space()
    kv.wait((1, 1), wait_for("a", "b"))
    kv.set(("a",), (b"",))
    assert kv.delete(["a"]) == 1
    assert kv.set(("b",), (b"",)) == []
    assert [w.waiter for w in kv.set(("a",), (b"",))] == [(1, 1)]


def test_deleting_counts_each_key_once_and_missing_ones_not() -> None:
    kv = space()
    kv.set(("a", "b"), (b"12", b"34"))
    assert kv.delete(["a", "a", "c"]) == 1
    assert kv.get(("a",)) is None
    assert kv.bytes_used == len("b") + 2


def test_every_change_has_a_number_and_a_key_that_of_its_last_one() -> None:
    kv = space()
    kv.set(("a", "b"), (b"", b""))
    kv.set(("a",), (b"",))
    kv.delete(["nothing"])
    kv.delete(["b"])
    entry = kv.find("a")
    assert entry is not None
    assert (entry.revision, kv.revision) == (2, 3)


def test_a_page_is_in_order_begins_behind_a_key_and_has_an_end() -> None:
    kv = space()
    keys = [f"x/{i:02}" for i in range(9, -1, -1)] + ["y"]
    kv.set(keys, [b""] * len(keys))
    assert [key for key, _ in kv.page("x/", "x/03", 3)] == ["x/04", "x/05", "x/06"]
    assert [key for key, _ in kv.page("", "x/09", 3)] == ["y"]
    assert kv.count("x/") == 10
    assert kv.count("") == 11
