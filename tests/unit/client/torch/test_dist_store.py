"""The `Store` subclass, over the real core: torch's own stores are what it is compared with."""

import gc
import random
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from rdzv_client import operations
from rdzv_client.calls import Calls
from rdzv_client.errors import ConnectionLost, RdzvError, RequestTimeout
from rdzv_client.kv import Kv
from rdzv_proto import limits
from rdzv_proto.messages import AnyReply, AnyRequest, Error, KvMultiSet
from tests.lab import Lab, Node, policy

if TYPE_CHECKING:
    from rdzv_client.torch.dist_store import RdzvStore

pytestmark = pytest.mark.torch

SHORT = timedelta(milliseconds=10)


class LabCalls:
    """Requests go straight into a core in virtual time; whoever waits has time pass for him."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.asked: list[AnyRequest] = []
        self.failure: Exception | None = None

    def ask(self, message: AnyRequest, kind: Any, timeout_s: float | None) -> Any:
        self.asked.append(message)
        if self.failure is not None:
            raise self.failure
        request_id = next(self.node.ids)
        reply = self.node.ask(message, request_id)
        while reply is None:
            self.node.beat()
            self.node.lab.advance(1)
            replies = self.node.wire.replies(request_id)
            reply = replies[0] if replies else None
        return operations.expect(cast(AnyReply, reply), kind)


@pytest.fixture
def calls() -> LabCalls:
    pytest.importorskip("torch")
    (node,) = Lab().world("a", rules=policy(1))
    return LabCalls(node)


def make(calls: LabCalls, **more: Any) -> "RdzvStore":
    from rdzv_client.torch.dist_store import RdzvStore

    return RdzvStore(Kv(cast(Calls, calls), calls.node.live_fence()), **more)


@pytest.fixture
def store(calls: LabCalls) -> "Iterator[RdzvStore]":
    made = make(calls)
    yield made
    made.close()


# --- as torch's own -------------------------------------------------------------------------------


def operate(rng: random.Random, store: Any) -> object:
    """One random operation; its outcome in comparable form."""
    from torch.distributed import DistStoreError

    key, value = rng.choice("abc"), rng.choice(["", "1", "x\0y"])
    kind = rng.choice(["set", "get", "append", "cas", "cas", "delete", "check", "count", "multi"])
    try:
        match kind:
            case "set":
                store.set(key, value)
            case "get":
                return store.get(key)
            case "append":
                store.append(key, value)
            case "cas":
                return store.compare_set(key, rng.choice(["", "1", "x\0y"]), value)
            case "delete":
                return store.delete_key(key)
            case "check":
                return store.check([key, rng.choice("abc")])
            case "count":
                return sum(store.check([name]) for name in "abc")
            case _:
                store.multi_set(["a", "b"], [value, "2"])
                return store.multi_get(["b", "a"])
    except DistStoreError:
        return "timeout"
    return None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("wrapped", [False, True], ids=["from Python", "through C++"])
def test_random_operations_come_out_as_with_a_tcp_store(
    calls: LabCalls, seed: int, wrapped: bool
) -> None:
    from torch.distributed import PrefixStore, TCPStore

    theirs: Any = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = make(calls)
    ours: Any = made
    if wrapped:
        ours, theirs = PrefixStore("p", ours), PrefixStore("p", theirs)
    for one in (ours, theirs, made):
        one.set_timeout(SHORT)
    rng_ours, rng_theirs = random.Random(seed), random.Random(seed)
    for step in range(150):
        a, b = operate(rng_ours, ours), operate(rng_theirs, theirs)
        assert a == b, step
    made.close()


@pytest.mark.parametrize("wrapped", [False, True], ids=["from Python", "through C++"])
def test_counters_and_keys(store: "RdzvStore", wrapped: bool) -> None:
    from torch.distributed import PrefixStore

    one: Any = PrefixStore("p", store) if wrapped else store
    assert one.add("n", 5) == 5
    assert one.add("n", -7) == -2
    assert one.get("n") == b"-2"
    assert one.num_keys() == 1
    assert one.delete_key("n") is True
    assert one.delete_key("n") is False
    assert one.num_keys() == 0


def test_keys_are_apart_from_those_of_others_and_listed_by_name(
    calls: LabCalls, store: "RdzvStore"
) -> None:
    calls.node.set("torchelastic/x")
    other = make(calls, prefix="mine/")
    other.set("y", "1")
    store.set("b", "1")
    store.set("a", "1")
    assert store.list_keys() == ["a", "b"]
    assert (store.num_keys(), other.num_keys()) == (2, 1)
    other.close()


def test_no_keys_are_no_request(calls: LabCalls, store: "RdzvStore") -> None:
    assert store.check([])
    store.wait([])
    assert store.multi_get([]) == []
    store.multi_set([], [])
    assert calls.asked == []


def test_more_keys_than_a_request_takes_are_several_requests(
    calls: LabCalls, store: "RdzvStore"
) -> None:
    keys = [str(i) for i in range(limits.KEYS_PER_REQUEST_MAX + 3)]
    store.multi_set(keys, keys)
    assert len(calls.asked) == 2
    assert store.multi_get(keys) == [key.encode() for key in keys]
    assert store.check(keys)
    store.wait(keys)


def test_a_multi_set_of_large_values_is_sent_in_parts_that_fit(
    calls: LabCalls, store: "RdzvStore"
) -> None:
    from rdzv_client.torch.dist_store import PART_BYTES

    values = [bytes([i]) * 400_000 for i in range(5)]
    store.multi_set([str(i) for i in range(5)], values)
    sizes = [sum(map(len, m.values)) for m in calls.asked if isinstance(m, KvMultiSet)]
    assert sum(sizes) == 2_000_000
    assert max(sizes) <= PART_BYTES
    assert store.get("4") == values[4]


def test_keys_and_values_of_unequal_number_are_refused(store: "RdzvStore") -> None:
    with pytest.raises(ValueError, match="2 keys and 1 values"):
        store.multi_set(["a", "b"], ["1"])


# --- timeouts and errors --------------------------------------------------------------------------


def test_a_timeout_set_through_cpp_is_the_patience_of_the_next_wait(
    calls: LabCalls, store: "RdzvStore"
) -> None:
    from torch.distributed import DistStoreError, PrefixStore

    began = calls.node.lab.now
    PrefixStore("p", store).set_timeout(timedelta(seconds=7))
    store.set_timeout(timedelta(seconds=7))
    with pytest.raises(DistStoreError, match="nobody set 'store/nope' within 7"):
        store.get("nope")
    assert 7 <= calls.node.lab.now - began < 9


def test_a_timeout_of_zero_fails_at_once(calls: LabCalls, store: "RdzvStore") -> None:
    from torch.distributed import DistStoreError

    began = calls.node.lab.now
    with pytest.raises(DistStoreError):
        store.wait(["nope"], timedelta(0))
    assert calls.node.lab.now == began


def test_the_end_of_the_generation_is_a_network_error_that_says_so(
    calls: LabCalls, store: "RdzvStore"
) -> None:
    from torch.distributed import DistNetworkError

    store.set("a", "1")
    calls.node.join()
    with pytest.raises(DistNetworkError, match=r"generation 1000\.1 of run 'llama' is over"):
        store.get("a")


@pytest.mark.parametrize("failure", [ConnectionLost("gone"), RequestTimeout("no answer")])
def test_a_server_that_is_gone_is_a_network_error(
    calls: LabCalls, store: "RdzvStore", failure: RdzvError
) -> None:
    from torch.distributed import DistNetworkError

    calls.failure = failure
    with pytest.raises(DistNetworkError, match=failure.message):
        store.check(["a"])


def test_what_the_server_refuses_is_a_store_error_that_says_why(store: "RdzvStore") -> None:
    from torch.distributed import DistStoreError

    store.set("a", "word")
    with pytest.raises(DistStoreError, match="no decimal number"):
        store.add("a", 1)


# --- life -----------------------------------------------------------------------------------------


def test_a_store_that_only_cpp_holds_keeps_its_methods(calls: LabCalls) -> None:
    from torch.distributed import PrefixStore

    wrapped = PrefixStore("p", make(calls))
    gc.collect()
    wrapped.set("a", "1")
    assert wrapped.get("a") == b"1"
    if not hasattr(wrapped, "clone"):  # torch 2.6
        return
    copy = wrapped.clone()
    gc.collect()
    assert copy.get("a") == b"1"


def test_a_closed_store_is_given_up(calls: LabCalls) -> None:
    made = make(calls)
    gone = weakref.ref(made)
    made.close()
    made.close()
    del made
    gc.collect()
    assert gone() is None


def test_a_clone_has_a_timeout_of_its_own(store: "RdzvStore") -> None:
    store.set_timeout(SHORT)
    copy = store.clone()
    assert copy.timeout == SHORT
    copy.set_timeout(timedelta(seconds=9))
    assert store.timeout == SHORT
    store.set("a", "1")
    assert copy.get("a") == b"1"
    copy.close()


def test_the_package_offers_it() -> None:
    import rdzv_client.torch
    from rdzv_client.torch.dist_store import RdzvStore

    assert rdzv_client.torch.RdzvStore is RdzvStore


def test_a_refusal_of_the_lab_is_an_error_here_too(calls: LabCalls) -> None:
    assert isinstance(calls.node.get("nope"), Error)
