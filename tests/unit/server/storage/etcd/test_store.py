"""Records in etcd: all or none, never behind a later write, never by a server that was deposed (S26, S30)."""

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest

from rdzv_server.storage.base import Changes, StorageError
from rdzv_server.storage.etcd.election import Election, Term
from rdzv_server.storage.etcd.gateway import Gateway
from rdzv_server.storage.etcd.place import Place
from rdzv_server.storage.etcd.store import OPERATIONS_MAX, EtcdStore
from rdzv_server.storage.lead import Lead
from rdzv_server.storage.schema import CURRENT, Schema
from tests.unit.server.storage.etcd.fake import FakeGateway

PLACE = Place(("h:1",), "p")
T = TypeVar("T")


class Cluster:
    """Servers that take turns at one fake etcd."""

    def __init__(self) -> None:
        self.etcd = FakeGateway()
        self.term: Term | None = None
        self.lead: Lead | None = None

    async def next(self, cluster: str = "rdzv", layout: Schema = CURRENT) -> EtcdStore:
        """Another server leads; its store, not loaded."""
        gateway = cast("Gateway", self.etcd)
        if self.term is not None:
            self.etcd.expire(self.term.lease)
        election = Election(gateway, PLACE, "me:1", 3, set())
        self.term, self.lead = await election.win(lambda leader, alive: None, lambda text: None)
        return EtcdStore(gateway, PLACE, self.term, self.lead, cluster, layout)

    async def loaded(self, layout: Schema = CURRENT) -> tuple[EtcdStore, dict[bytes, bytes]]:
        store = await self.next(layout=layout)
        return store, await off(store.load)


async def off(call: Callable[..., T], *arguments: Any) -> T:
    """In a thread, as the ledger's."""
    return await asyncio.to_thread(call, *arguments)


def changes(count: int, bytes_each: int = 1) -> dict[bytes, bytes | None]:
    return {b"k%d" % i: os.urandom(bytes_each) for i in range(count)}


async def test_what_was_committed_is_there_for_the_next_leader() -> None:
    cluster = Cluster()
    store, found = await cluster.loaded()
    assert found == {}
    await off(store.commit, {b"a": b"1", b"b": b"2", b"c": b""})
    await off(store.commit, {b"a": None, b"b": b"3"})
    assert (await cluster.loaded())[1] == {b"b": b"3", b"c": b""}


async def test_s30_a_deposed_server_writes_nothing_and_its_lead_is_over() -> None:
    cluster = Cluster()
    old, _ = await cluster.loaded()
    lead = cluster.lead
    assert lead is not None
    new, _ = await cluster.loaded()
    with pytest.raises(StorageError) as caught:
        await off(old.commit, {b"a": b"old"})
    assert caught.value.cause == "deposed"
    await asyncio.wait_for(lead.over.wait(), 5)
    await off(new.commit, {b"b": b"new"})
    assert cluster.etcd.records() == {b"b": b"new"}


async def test_s30_after_its_time_it_does_not_even_try() -> None:
    cluster = Cluster()
    store, _ = await cluster.loaded()
    assert cluster.lead is not None
    cluster.lead.until = 0.0
    before = cluster.etcd.transactions
    with pytest.raises(StorageError) as caught:
        await off(store.commit, {b"a": b"1"})
    assert caught.value.cause == "deposed"
    assert cluster.etcd.transactions == before


@pytest.mark.parametrize("fault", ["lost", "refused", "late"])
async def test_s26_a_write_whose_answer_was_lost_is_repeated_with_the_effect_of_once(
    fault: str,
) -> None:
    cluster = Cluster()
    store, _ = await cluster.loaded()
    cluster.etcd.faults.append(fault)
    with pytest.raises(StorageError):
        await off(store.commit, {b"a": b"1", b"b": b"1"})
    await off(store.commit, {b"a": b"2", b"b": b"1"})
    assert not any(cluster.etcd.arrive()), "it must not come behind the later one"
    assert cluster.etcd.records() == {b"a": b"2", b"b": b"1"}


async def test_a_write_that_arrives_between_two_others_is_under_the_later_one() -> None:
    cluster = Cluster()
    store, _ = await cluster.loaded()
    cluster.etcd.faults += ["late", "late"]
    for value in (b"1", b"2"):
        with pytest.raises(StorageError):
            await off(store.commit, {b"a": value})
    assert cluster.etcd.arrive() == [True, False]
    await off(store.commit, {b"a": b"3"})
    assert cluster.etcd.records() == {b"a": b"3"}


async def test_a_foreign_write_is_noticed() -> None:
    cluster = Cluster()
    store, _ = await cluster.loaded()
    cluster.etcd.rows[b"/p/head"].value = b"somebody"
    with pytest.raises(StorageError, match="somebody else wrote 'somebody'") as caught:
        await off(store.commit, {b"a": b"1"})
    assert caught.value.cause == "corrupt"


# --- large commits ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "large", [changes(2500), changes(7, 1 << 20), changes(300, 20_000)], ids=len
)
async def test_a_commit_of_any_size_goes_into_transactions_that_etcd_takes(
    large: dict[bytes, bytes | None],
) -> None:
    cluster = Cluster()
    store, _ = await cluster.loaded()
    await off(store.commit, large)
    assert cluster.etcd.records() == large
    assert cluster.etcd.operations_most <= OPERATIONS_MAX + 1
    assert cluster.etcd.bytes_most < 1_500_000
    assert (await cluster.loaded())[1] == large
    assert not [key for key in cluster.etcd.rows if b"/parts/" in key or b"/large" in key]


async def test_s26_a_large_commit_is_whole_or_not_at_all_wherever_the_server_ends() -> None:
    before, large = {b"k1": b"before", b"other": b"x"}, changes(250)
    outcomes = []
    for at in range(40):
        cluster = Cluster()
        store, _ = await cluster.loaded()
        await off(store.commit, before)
        cluster.etcd.faults += [""] * at + ["refused"]
        try:
            await off(store.commit, large)
        except StorageError:
            outcomes.append((await cluster.loaded())[1])
        else:
            break
    else:
        raise AssertionError("it never got through")
    assert outcomes[0] == before
    assert outcomes[-1] == before | large
    assert all(found in (before, before | large) for found in outcomes)
    assert len(outcomes) >= 5, "parts, marker, records, and the marker again"


async def test_what_is_committed_after_an_interrupted_large_commit_is_not_undone_by_its_rest() -> (
    None
):
    for at in range(12):
        cluster = Cluster()
        store, _ = await cluster.loaded()
        cluster.etcd.faults += [""] * at + ["late"]
        large = changes(250)
        try:
            await off(store.commit, large)
        except StorageError:
            await off(store.commit, large | {b"k1": b"later", b"k249": None})
            cluster.etcd.arrive()
            expected = {**large, b"k1": b"later"}
            del expected[b"k249"]
            assert (await cluster.loaded())[1] == expected, at


async def test_s26_random_faults_lose_nothing_that_was_acknowledged() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        cluster = Cluster()
        store, _ = await cluster.loaded()
        expected: dict[bytes, bytes] = {}
        pending: dict[bytes, bytes | None] = {}
        for _ in range(40):
            step: dict[bytes, bytes | None] = {
                b"k%d" % rng.randrange(400): rng.choice((None, rng.randbytes(5)))
                for _ in range(rng.choice((1, 3, 150)))
            }
            pending |= step
            if rng.random() < 0.4:
                cluster.etcd.faults.append(rng.choice(("lost", "refused", "late")))
            try:
                await off(store.commit, pending)
            except StorageError as error:
                if error.cause != "io":
                    raise
            else:
                for key, value in pending.items():
                    expected.pop(key, None)
                    if value is not None:
                        expected[key] = value
                pending = {}
            if rng.random() < 0.3:
                cluster.etcd.arrive()
            if not pending and rng.random() < 0.2:
                cluster.etcd.faults.clear()
                store, found = await cluster.loaded()
                assert found == expected, seed


# --- whose prefix it is -------------------------------------------------------------------------


async def test_t23_a_prefix_of_another_cluster_is_refused() -> None:
    cluster = Cluster()
    await cluster.loaded()
    other = await cluster.next("west")
    with pytest.raises(StorageError, match="belongs to cluster 'rdzv'") as caught:
        await off(other.load)
    assert caught.value.cause == "owned"


async def test_t23_a_prefix_with_something_else_below_it_is_refused() -> None:
    cluster = Cluster()
    await cluster.etcd.call(
        "kv/txn",
        {"compare": [], "success": [EtcdStore._put(b"/p/pods/a", b"x")], "failure": []},
        1.0,
    )
    store = await cluster.next()
    with pytest.raises(StorageError, match="keys of something else"):
        await off(store.load)


async def test_parts_that_are_not_what_was_written_are_no_commit() -> None:
    cluster = Cluster()
    store, _ = await cluster.loaded()
    cluster.etcd.faults += [""] * 3 + ["refused"]
    with pytest.raises(StorageError):
        await off(store.commit, changes(250))
    row = next(row for key, row in cluster.etcd.rows.items() if b"/parts/" in key)
    row.value = row.value[:-1] + b"?"
    with pytest.raises(StorageError, match="not what was written") as caught:
        await cluster.loaded()
    assert caught.value.cause == "corrupt"


# --- versions of the records --------------------------------------------------------------------


def doubled(records: dict[bytes, bytes]) -> Changes:
    return {key: value * 2 for key, value in records.items()} | {b"new": b"!"}


async def test_records_of_an_older_version_come_forward_in_one_commit() -> None:
    for at in range(12):
        cluster = Cluster()
        store, _ = await cluster.loaded()
        before = {b"k%03d" % i: b"x" for i in range(250)}
        await off(store.commit, before)
        after = dict.fromkeys(before, b"xx") | {b"new": b"!"}
        newer = Schema(2, {1: doubled})
        cluster.etcd.faults += [""] * at + ["refused"]
        try:
            store, found = await cluster.loaded(newer)
        except StorageError:
            cluster.etcd.faults.clear()
            store, found = await cluster.loaded(newer)
        assert found == after, at
        cluster.etcd.faults.clear()
        store, found = await cluster.loaded(newer)
        assert (found, store.migrated) == (after, None)


async def test_records_that_are_too_new_or_too_old_are_refused_with_both_versions() -> None:
    cluster = Cluster()
    await cluster.loaded(Schema(3))
    with pytest.raises(StorageError, match=r"schema version 3, .* versions up to 1: ") as caught:
        await cluster.loaded()
    assert caught.value.cause == "newer"
    with pytest.raises(StorageError, match=r"schema version 3, .* from 4 on forward") as caught:
        await cluster.loaded(Schema(5, {4: doubled}))
    assert caught.value.cause == "older"
