"""Keys of one generation, and waits for them."""

import pytest

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Fence, KvMultiGet, KvWait
from rdzv_server.core.kv import Namespace, keys_of
from rdzv_server.core.refusal import Refused

FENCE = Fence(1, 1)


def wait_for(*keys: str) -> KvWait:
    return KvWait(fence=FENCE, keys=list(keys), timeout_ms=1000)


def test_a_value_is_what_was_set_last() -> None:
    kv = Namespace()
    kv.set(("k",), (b"1",))
    kv.set(("k",), (b"22",))
    assert kv.get(("k",)) == [b"22"]
    assert kv.bytes_used == len("k") + 2


def test_a_missing_key_is_missing() -> None:
    kv = Namespace()
    kv.set(("a",), (b"",))
    assert kv.get(("a", "b")) is None
    assert kv.missing(("a", "b")) == ["b"]


def test_a_counter_starts_at_0_and_shows_as_decimal_text() -> None:
    kv = Namespace()
    assert kv.add("n", 0)[0] == 0
    assert kv.add("n", -5)[0] == -5
    assert kv.get(("n",)) == [b"-5"]


@pytest.mark.parametrize("value", [b"", b"x", b"1.5", b"1_0", b" 1", b"0x10", b"\xff"])
def test_adding_to_something_else_is_refused_and_changes_nothing(value: bytes) -> None:
    kv = Namespace()
    kv.set(("n",), (value,))
    with pytest.raises(Refused) as refused:
        kv.add("n", 1)
    assert refused.value.code is ErrorCode.NOT_A_NUMBER
    assert kv.get(("n",)) == [value]


def test_a_counter_stays_within_64_bits() -> None:
    kv = Namespace()
    kv.add("n", (1 << 63) - 1)
    with pytest.raises(Refused):
        kv.add("n", 1)
    assert kv.add("n", 0)[0] == (1 << 63) - 1


def test_s24_a_wait_ends_with_the_write_that_completes_it() -> None:
    kv = Namespace()
    kv.wait((1, 7), wait_for("a", "b"))
    assert kv.set(("a",), (b"",)) == []
    (woken,) = kv.set(("b",), (b"",))
    assert woken.waiter == (1, 7)
    assert kv.waiters() == []


def test_s24_one_write_of_several_keys_wakes_each_waiter_once() -> None:
    kv = Namespace()
    kv.wait((1, 1), wait_for("a", "b"))
    kv.wait((2, 1), wait_for("b"))
    woken = kv.set(("a", "b"), (b"", b""))
    assert sorted(w.waiter for w in woken) == [(1, 1), (2, 1)]


def test_a_dropped_wait_is_never_woken() -> None:
    kv = Namespace()
    kv.wait((1, 1), wait_for("a", "b"))
    dropped = kv.drop((1, 1))
    assert dropped is not None
    assert list(dropped.missing) == ["a", "b"]
    assert kv.drop((1, 1)) is None
    assert kv.set(("a", "b"), (b"", b"")) == []


def test_the_same_key_twice_in_one_request_is_harmless() -> None:
    kv = Namespace()
    kv.wait((1, 1), KvMultiGet(fence=FENCE, keys=["a", "a"], timeout_ms=1))
    (woken,) = kv.set(("a",), (b"v",))
    assert kv.get(keys_of(woken.ask)) == [b"v", b"v"]


def test_limits_refuse_without_side_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KV_BYTES_PER_RUN_MAX", 10)
    monkeypatch.setattr(limits, "KV_KEYS_PER_RUN_MAX", 2)
    kv = Namespace()
    kv.set(("a",), (b"123456789",))
    for keys, values in ((("b",), (b"",)), (("a",), (b"1234567890",))):
        with pytest.raises(Refused) as refused:
            kv.set(keys, values)
        assert refused.value.code is ErrorCode.LIMIT_EXCEEDED
    kv.set(("a",), (b"",))
    kv.set(("b",), (b"",))
    with pytest.raises(Refused, match="more than 2 keys"):
        kv.set(("c",), (b"",))
    assert len(kv) == 2
    assert kv.bytes_used == 2
