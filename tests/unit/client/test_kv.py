"""Keys, through both classes: each test plays one course with the calls of both."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rdzv_client.aio import AsyncClient
from rdzv_client.blocking import Client
from rdzv_client.errors import GenerationEnded, InternalServerError, NotANumber, WaitTimeout
from rdzv_client.kv import AsyncKv, Kv
from rdzv_client.operations import KeyEntry, Swapped
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Done,
    Error,
    Heartbeat,
    KvAdd,
    KvCas,
    KvCheck,
    KvDelete,
    KvGet,
    KvList,
    KvMultiGet,
    KvSet,
    KvWait,
)
from tests.unit.client.fake_server import FENCE, FakeServer

Call = Callable[..., Any]


class Both:
    """Keys as one of the two classes shows them, called in the same way."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Call:
        return lambda *args, **kwargs: self._call(name, *args, **kwargs)


@pytest.fixture(params=["blocking", "asyncio"])
def client(server: FakeServer, request: pytest.FixtureRequest) -> Iterator["Side"]:
    side = Blocking(server) if request.param == "blocking" else Asyncio(server)
    yield side
    side.close()


class Side:
    """A client of one of the two kinds, joined."""

    kv: Both
    """Keys of its generation."""
    run_kv: Both

    def close(self) -> None:
        raise NotImplementedError


class Blocking(Side):
    def __init__(self, server: FakeServer) -> None:
        self._client = Client(server.address, run="llama", node_id="n")
        generation = self._client.join()
        self.kv = Both(lambda name, *a, **k: getattr(generation.kv, name)(*a, **k))
        self.run_kv = Both(lambda name, *a, **k: getattr(self._client.kv, name)(*a, **k))

    def close(self) -> None:
        self._client.close()


class Asyncio(Side):
    def __init__(self, server: FakeServer) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(server.address, run="llama", node_id="n")
        generation = self._loop.run_until_complete(self._client.join())
        self.kv = Both(lambda name, *a, **k: self._run(getattr(generation.kv, name)(*a, **k)))
        self.run_kv = Both(lambda name, *a, **k: self._run(getattr(self._client.kv, name)(*a, **k)))

    def _run(self, call: Any) -> Any:
        return self._loop.run_until_complete(call)

    def close(self) -> None:
        self._run(self._client.close())
        self._run(self._loop.shutdown_default_executor())
        self._loop.close()


def test_both_classes_have_the_same_calls_with_the_same_arguments() -> None:
    def calls(of: type) -> dict[str, str]:
        members = inspect.getmembers(of, inspect.isfunction)
        return {name: str(inspect.signature(call)) for name, call in members if name[0] != "_"}

    assert calls(Kv) == calls(AsyncKv)
    assert len(calls(Kv)) >= 13
    for name in calls(Kv):
        assert inspect.iscoroutinefunction(getattr(AsyncKv, name)), name
        assert getattr(Kv, name).__doc__, name
        assert getattr(AsyncKv, name).__doc__, name


def test_keys_of_a_generation_carry_its_fence_and_those_of_the_run_none(
    server: FakeServer, client: Side
) -> None:
    client.kv.set("a", "1")
    client.run_kv.set("a", "1")
    assert [ask.fence for ask in server.all(KvSet)] == [FENCE, None]
    client.run_kv.check(["a"])
    client.run_kv.add("n")
    client.run_kv.cas("a", None, "x")
    client.run_kv.delete("a")
    kinds = (KvCheck, KvAdd, KvCas, KvDelete)
    asks = [m for _, m in server.got if isinstance(m, kinds)]
    assert [ask.fence for ask in asks] == [None] * 4


def test_set_and_get(client: Side) -> None:
    assert [client.kv.set("a", "t\u00e4xt"), client.kv.set("b", b"\0\xff")] == [1, 2]
    assert client.kv.get("a") == b"t\xc3\xa4xt"
    assert client.kv.get("b", timeout=0) == b"\0\xff"
    assert client.kv.entry("b") == KeyEntry("b", 2, 2, b"\0\xff")


def test_an_empty_value_is_a_value(client: Side) -> None:
    client.kv.set("empty", b"")
    assert client.kv.get("empty") == b""
    assert client.kv.entry("empty") == KeyEntry("empty", 1, 0, b"")


def test_the_server_is_told_how_long_to_wait(server: FakeServer, client: Side) -> None:
    server.values = {"a": b"1", "b": b"2"}
    client.kv.get("a", timeout=1.5)
    client.kv.entry("a", timeout=0)
    client.kv.wait(iter(["a", "b"]), timeout=2)
    client.kv.multi_get(["a"], timeout=3)
    client.kv.get("a")
    assert [ask.timeout_ms for ask in server.all(KvGet)] == [1500, 0, 300_000]
    assert server.all(KvWait) == [KvWait(fence=FENCE, keys=["a", "b"], timeout_ms=2000)]
    assert [ask.timeout_ms for ask in server.all(KvMultiGet)] == [3000]


def test_check_is_true_if_all_are_there(server: FakeServer, client: Side) -> None:
    server.values = {"a": b"1", "b": b""}
    assert client.kv.check(["a", "b"]) is True
    assert client.kv.check(["a", "c"]) is False


def test_nothing_is_asked_of_the_server_for_no_keys(server: FakeServer, client: Side) -> None:
    before = len(server.got)
    assert client.kv.check([]) is True
    client.kv.wait([])
    assert client.kv.multi_get([]) == []
    assert client.kv.delete() == 0
    assert [type(m) for _, m in server.got[before:] if not isinstance(m, Heartbeat)] == []


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda kv: kv.set("", b""), "key must not be empty"),
        (lambda kv: kv.set("k" * 1025, b""), "1025 characters; the limit is 1024"),
        (lambda kv: kv.get("k" * 1025), "1025 characters; the limit is 1024"),
        (lambda kv: kv.append("", b""), "key must not be empty"),
        (lambda kv: kv.cas("", None, b""), "key must not be empty"),
        (lambda kv: kv.wait(["a", ""]), "key must not be empty"),
        (lambda kv: kv.check(["k"] * 16_385), "16385 keys at once; it must be 1 to 16384"),
        (lambda kv: kv.multi_get(["k"] * 16_385), "16385 keys at once"),
        (lambda kv: kv.delete(*["k"] * 16_385), "16385 keys at once"),
        (lambda kv: kv.multi_set([], []), "0 keys at once"),
        (lambda kv: kv.multi_set(["a"], ["1", "2"]), "1 keys and 2 values"),
        (lambda kv: kv.add("n", 1 << 63), "a counter has 64 bits"),
        (lambda kv: kv.count("k" * 1025), "the prefix 'kkk"),
        (lambda kv: kv.list("k" * 1025), "the prefix 'kkk"),
        (lambda kv: kv.set("k", b"x" * (1 << 21)), "exceed the limit"),
        (lambda kv: kv.set("\ud800", b""), "surrogates not allowed"),
    ],
)
def test_a_wrong_argument_is_named_and_never_reaches_the_server(
    server: FakeServer, client: Side, call: Call, says: str
) -> None:
    before = len(server.got)
    with pytest.raises(ValueError, match=says):
        call(client.kv)
    assert [type(m) for _, m in server.got[before:] if not isinstance(m, Heartbeat)] == []
    client.kv.set("k", b"it goes on")


def test_whatever_patience_is_given_can_be_sent(server: FakeServer, client: Side) -> None:
    server.values = {"k": b""}
    for timeout in (float("inf"), 1e12, -1.0, 0.0004):
        client.kv.get("k", timeout)
    ten_years_ms = 10 * 365 * 24 * 3600 * 1000
    assert [ask.timeout_ms for ask in server.all(KvGet)] == [ten_years_ms, ten_years_ms, 0, 0]


def test_add_counts_by_one_or_as_told(client: Side) -> None:
    assert [client.kv.add("n"), client.kv.add("n", 5), client.kv.add("n", -7)] == [1, 6, -1]


def test_append_tells_the_length(client: Side) -> None:
    assert [client.kv.append("l", "ab"), client.kv.append("l", b"c")] == [2, 3]
    assert client.kv.get("l") == b"abc"


def test_delete_counts_those_that_were_there(client: Side) -> None:
    client.kv.multi_set(["a", "b"], ["1", "2"])
    assert client.kv.delete("a", "b", "c") == 2
    assert client.kv.delete("a") == 0


def test_compare_and_set_by_value(server: FakeServer, client: Side) -> None:
    assert client.kv.cas("k", None, "1") == Swapped(True, b"1", 1)
    assert client.kv.cas("k", None, "2") == Swapped(False, b"1", 1)
    assert client.kv.cas("k", b"1", "2") == Swapped(True, b"2", 2)
    assert client.kv.cas("k", "1", "3") == Swapped(False, b"2", 2)
    asks = server.all(KvCas)
    assert [ask.expected for ask in asks] == [None, None, b"1", b"1"]
    assert {ask.revision for ask in asks} == {None}


def test_compare_and_set_by_revision(server: FakeServer, client: Side) -> None:
    assert client.kv.cas("k", None, "1", revision=0) == Swapped(True, b"1", 1)
    assert client.kv.cas("k", None, "2", revision=7) == Swapped(False, b"1", 1)
    assert client.kv.cas("k", None, "2", revision=1) == Swapped(True, b"2", 2)
    assert [ask.revision for ask in server.all(KvCas)] == [0, 7, 1]


def test_what_a_failed_swap_says_of_a_missing_key_is_none(client: Side) -> None:
    assert client.kv.cas("k", "was", "new") == Swapped(False, None, 0)


def test_several_keys_at_once(server: FakeServer, client: Side) -> None:
    assert client.kv.multi_set(iter(["a", "b"]), iter(["1", b"2"])) == 1
    assert server.values == {"a": b"1", "b": b"2"}
    assert client.kv.multi_get(["b", "a"]) == [b"2", b"1"]


def test_a_list_is_fetched_page_by_page(server: FakeServer, client: Side) -> None:
    server.page_rows = 3
    names = [f"k{i}" for i in range(7)]
    client.kv.multi_set([*names, "other"], [*names, "x"])
    rows = client.kv.list("k", values=True)
    assert rows == [KeyEntry(name, 1, 2, name.encode()) for name in names]
    assert [ask.after for ask in server.all(KvList)] == ["", "k2", "k5"]
    assert {ask.values for ask in server.all(KvList)} == {True}


def test_a_list_without_values_has_sizes_only(client: Side) -> None:
    client.kv.set("a", "12345")
    assert client.kv.list() == [KeyEntry("a", 1, 5, None)]
    assert client.kv.list("z") == []


def test_count_takes_a_prefix(client: Side) -> None:
    client.kv.multi_set(["a1", "a2", "b"], ["", "", ""])
    assert [client.kv.count(), client.kv.count("a"), client.kv.count("z")] == [3, 2, 0]


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (ErrorCode.WAIT_TIMEOUT, WaitTimeout),
        (ErrorCode.STALE_GENERATION, GenerationEnded),
        (ErrorCode.NOT_A_NUMBER, NotANumber),
    ],
)
def test_a_refusal_is_raised(
    server: FakeServer, client: Side, code: ErrorCode, raised: type[Exception]
) -> None:
    for kind in (KvGet, KvWait, KvMultiGet, KvAdd):
        server.on(kind, lambda m: Error(code=code, message="nobody set 'k'"))
    calls: list[Callable[[], object]] = [
        lambda: client.kv.get("k", 0),
        lambda: client.kv.wait(["k"], 0),
        lambda: client.kv.multi_get(["k"], 0),
        lambda: client.run_kv.add("k"),
    ]
    for call in calls:
        with pytest.raises(raised, match="nobody set 'k'"):
            call()


def test_an_answer_of_another_kind_is_a_fault_of_the_server(
    server: FakeServer, client: Side
) -> None:
    server.on(KvCheck, lambda m: Done())
    with pytest.raises(InternalServerError, match="answered with done instead of kv_missing"):
        client.kv.check(["k"])
