"""Writes on keys over the whole core: each kind is done once, answers those who wait for it, and is refused whole."""

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyRequest,
    Done,
    Error,
    Fence,
    KvAdd,
    KvAppend,
    KvCas,
    KvCheck,
    KvCount,
    KvDelete,
    KvGet,
    KvMissing,
    KvMultiSet,
    KvNumber,
    KvSet,
    KvSwapped,
    KvValue,
)
from tests.lab import Lab, Node, policy

WRITES = (KvSet, KvAdd, KvMultiSet, KvCas, KvAppend)
"""All that may complete a wait."""


def world(lab: Lab, *names: str) -> list[Node]:
    return lab.world(*names, rules=policy(len(names)))


def writes(kind: type[AnyRequest], fence: Fence | None) -> AnyRequest:
    """A request that makes "k" the text 7."""
    if kind is KvAdd:
        return KvAdd(fence=fence, key="k", delta=7)
    if kind is KvMultiSet:
        return KvMultiSet(fence=fence, keys=["other", "k"], values=[b"", b"7"])
    assert kind in (KvSet, KvCas, KvAppend)
    return kind(fence=fence, key="k", value=b"7")


def value(reply: object) -> bytes | int:
    assert isinstance(reply, KvValue | KvNumber), reply
    return reply.value


@pytest.mark.parametrize("of_run", [False, True])
@pytest.mark.parametrize("kind", WRITES)
def test_s24_each_kind_of_write_answers_those_who_wait_and_tells_its_revision(
    kind: type[AnyRequest], of_run: bool
) -> None:
    a, b = world(Lab(), "a", "b")
    fence = None if of_run else a.live_fence()
    assert b.ask(KvGet(fence=fence, key="k", timeout_ms=9_000), 900) is None
    reply = a.ask(writes(kind, fence))
    assert isinstance(reply, Done | KvNumber | KvSwapped)
    assert reply.revision == 1
    assert b.wire.replies(900) == [KvValue(value=b"7", revision=1)]
    assert a.ask(KvGet(fence=fence, key="k")) == KvValue(value=b"7", revision=1)


@pytest.mark.parametrize("kind", [*WRITES, KvDelete])
def test_s10_each_kind_of_write_is_refused_under_a_stale_fence_and_changes_nothing(
    kind: type[AnyRequest],
) -> None:
    a, b = world(Lab(), "a", "b")
    old = a.live_fence()
    b.leave("drained")
    b = b.lab.node("c", rules=policy(2))
    b.join()
    a.join()
    assert a.live_fence() > old
    a.set("there")
    late = KvDelete(fence=old, keys=["there"]) if kind is KvDelete else writes(kind, old)
    refused = a.ask(late)
    assert isinstance(refused, Error)
    assert refused.code == ErrorCode.STALE_GENERATION
    check = KvCheck(fence=a.live_fence(), keys=["there", "k", "other"])
    assert a.ask(check) == KvMissing(keys=["k", "other"])


def test_a_delete_says_how_many_keys_were_there_and_the_next_one_finds_none() -> None:
    a, _ = world(Lab(), "a", "b")
    a.set("x")
    delete = KvDelete(fence=a.live_fence(), keys=["x", "x", "y"])
    assert a.ask(delete) == KvNumber(value=1, revision=2)
    assert a.ask(delete) == KvNumber(value=0, revision=2)


def test_keys_and_values_of_unequal_number_are_refused() -> None:
    a, _ = world(Lab(), "a", "b")
    reply = a.ask(KvMultiSet(fence=a.live_fence(), keys=["x", "y"], values=[b"1"]))
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.MALFORMED


def test_s23_a_retried_addition_counts_once_and_gets_the_recorded_reply() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    assert value(a.add("n", 1, request_id=900)) == 1
    b.add("n", 10)
    a.lose()
    a.resume()
    assert value(a.add("n", 1, request_id=900)) == 1
    assert value(b.add("n", 0)) == 11


def test_s23_a_retried_append_cas_or_delete_is_done_once() -> None:
    a, _ = world(Lab(), "a", "b")
    fence = a.live_fence()
    append = KvAppend(fence=fence, key="l", value=b"x")
    assert a.ask(append, 900) == a.ask(append, 900) == KvNumber(value=1, revision=1)
    cas = KvCas(fence=fence, key="c", value=b"1")
    assert a.ask(cas, 901) == a.ask(cas, 901) == KvSwapped(swapped=True, value=b"1", revision=2)
    delete = KvDelete(fence=fence, keys=["l", "c", "no"])
    assert a.ask(delete, 902) == a.ask(delete, 902) == KvNumber(value=2, revision=3)
    assert a.ask(KvCount(fence=fence)) == KvNumber(value=0)


def test_cas_compares_values_and_says_how_the_key_is() -> None:
    a, _ = world(Lab(), "a", "b")
    fence = a.live_fence()
    missing = KvCas(fence=fence, key="k", expected=b"", value=b"1")
    assert a.ask(missing) == KvSwapped()
    assert a.ask(KvCas(fence=fence, key="k", value=b"")) == KvSwapped(
        swapped=True, value=b"", revision=1
    )
    assert a.ask(missing) == KvSwapped(swapped=True, value=b"1", revision=2)
