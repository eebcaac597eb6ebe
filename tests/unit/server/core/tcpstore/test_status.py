"""What is told of a store: who is connected, which unique ids are on their way, and never a value."""

import json

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    CommunicatorStatus,
    Done,
    Error,
    Fence,
    KvMultiSet,
    StoreStatus,
    WorkersStarted,
)
from rdzv_server.core.tcpstore import status as store_status
from tests.lab import Lab, Node, StoreWire, policy
from tests.unit.proto.tcpstore_bytes import (
    delete,
    get,
    multi_get,
    multi_set,
    ping,
    set_,
)

ID = b"\xab" * 128
NCCL = b"/default_pg/0//cuda//0"
GROUP = b"/default_pg/0//tp//cuda//0"


class Job:
    """Two nodes with a store; node-0 is at 10.0.0.1, node-1 at 10.0.0.2."""

    def __init__(self) -> None:
        self.lab = Lab()
        rules = policy(2, worker_store="server")
        self.nodes = [
            self.lab.node(f"node-{i}", rules=rules, peer=f"10.0.0.{i + 1}", lease_s=600)
            for i in range(2)
        ]
        for node in self.nodes:
            node.join()

    def client(self, node: int = 0, pid: int | None = None) -> StoreWire:
        joined = self.nodes[0].joined
        assert joined is not None
        wire = self.lab.store(joined.store_port, f"10.0.0.{node + 1}")
        if pid is not None:
            wire.send(ping(pid))
        return wire

    def started(self, node: int, **pids: int) -> None:
        """`r0=11` says that rank 0 is process 11."""
        ask = WorkersStarted(
            fence=self.nodes[node].live_fence(),
            ranks=[int(rank[1:]) for rank in pids],
            pids=list(pids.values()),
        )
        assert isinstance(self.nodes[node].ask(ask), Done)

    def exchange_ranks(self, world: int) -> None:
        """As torch's agent of group rank 0 does it."""
        a: Node = self.nodes[0]
        values = [json.dumps([base, world, base, world]).encode() for base in (0, world // 2)]
        keys = [f"torchelastic/assigned_ranks/{i}" for i in range(2)]
        a.ask(KvMultiSet(fence=a.live_fence(), keys=keys, values=values))

    @property
    def store(self) -> StoreStatus:
        status = store_status.show(self.lab.core.tables, self.lab.run())
        assert status is not None
        return status

    @property
    def communicators(self) -> list[CommunicatorStatus]:
        return store_status.communicators(self.lab.core.tables, self.lab.run())


@pytest.fixture
def job() -> Job:
    return Job()


# --- who is connected -----------------------------------------------------------------------------


def test_an_empty_store(job: Job) -> None:
    assert job.store == StoreStatus(port=40_001)
    assert job.communicators == []


def test_counts(job: Job) -> None:
    job.client().send(set_(b"/k", b"1234"))
    job.client()
    assert (job.store.clients, job.store.keys, job.store.value_bytes) == (2, 1, 6)


def test_gloo_s_keys_tell_ranks(job: Job) -> None:
    job.exchange_ranks(4)
    for rank in (2, 0, 3):
        job.client(pid=100 + rank).send(set_(b"/default_pg/0//cpu//0/%d" % rank, b"address"))
    assert job.store.world_size == 4
    assert job.store.ranks == [0, 2, 3]
    assert job.store.missing == ["rank 1"]


def test_reported_processes_tell_ranks_and_nodes(job: Job) -> None:
    job.started(0, r0=11, r1=12)
    job.started(1, r2=11, r3=12)
    job.client(0, pid=11), job.client(1, pid=12)
    assert job.store.world_size == 4
    assert job.store.ranks == [0, 3]
    assert job.store.missing == ["rank 1 on node-0", "rank 2 on node-1"]


def test_a_process_id_of_another_host_counts_for_nobody(job: Job) -> None:
    job.started(0, r0=11)
    job.client(1, pid=11)
    assert job.store.ranks == []
    assert job.store.missing == [], "one that is not known may be any rank"


def test_a_process_id_that_two_ranks_claim_counts_for_nobody(job: Job) -> None:
    """Two containers behind one address."""
    job.started(0, r0=11)
    job.client(0, pid=11).send(set_(b"/default_pg/0//cpu//0/5", b""))
    job.client(0, pid=11)
    assert job.store.ranks == [5]


def test_a_further_connection_of_a_known_process_is_the_same_rank(job: Job) -> None:
    job.client(0, pid=11).send(set_(b"/default_pg/0//cpu//0/1", b""))
    job.client(0, pid=11)
    assert (job.store.clients, job.store.ranks) == (2, [1])


def test_the_world_is_not_known_before_every_node_reported(job: Job) -> None:
    job.started(0, r0=11, r1=12)
    assert job.store.world_size == 0
    job.started(1, r2=11)
    assert job.store.world_size == 3


@pytest.mark.parametrize("value", [b"", b"[]", b"[1]", b"{}", b"\xff", b'["a", "b"]'])
def test_a_strange_value_in_the_rank_exchange_tells_nothing(job: Job, value: bytes) -> None:
    job.nodes[0].set("torchelastic/assigned_ranks/0", value)
    assert job.store.world_size == 0


def test_long_lists_of_missing_ranks_are_cut(job: Job) -> None:
    job.exchange_ranks(4000)
    assert len(job.store.missing) == 8


def test_nothing_is_told_of_an_ended_generation(job: Job) -> None:
    job.client(pid=1).send(set_(NCCL, ID))
    job.nodes[0].leave("failed")
    tables, run = job.lab.core.tables, job.lab.run()
    assert store_status.show(tables, run) is None
    assert store_status.communicators(tables, run) == []


def test_nothing_is_told_where_worker_0_has_the_store() -> None:
    lab = Lab()
    lab.world("a", rules=policy(1))
    assert store_status.show(lab.core.tables, lab.run()) is None
    assert store_status.communicators(lab.core.tables, lab.run()) == []


# --- unique ids -----------------------------------------------------------------------------------


def test_who_has_not_fetched_the_id_yet(job: Job) -> None:
    job.started(0, r0=11, r1=12)
    job.started(1, r2=11, r3=12)
    zero, one, two = job.client(0, 11), job.client(0, 12), job.client(1, 11)
    zero.send(set_(NCCL, ID))
    one.send(get(NCCL)), two.send(get(NCCL))
    job.lab.advance(3)
    (row,) = job.communicators
    assert row == CommunicatorStatus(
        name="default_pg/0//cuda//0", via="store", state="published", minter="rank 0 on node-0",
        fetched=2, needed=4, missing=["rank 3 on node-1"], age_ms=3000,
    )  # fmt: skip


def test_everybody_has_the_id(job: Job) -> None:
    job.started(0, r0=11)
    job.started(1, r1=11)
    job.client(0, 11).send(set_(NCCL, ID))
    job.client(1, 11).send(get(NCCL))
    (row,) = job.communicators
    assert (row.state, row.fetched, row.needed, row.missing) == ("spent", 1, 2, [])


def test_a_worker_that_is_gone_still_has_what_it_fetched(job: Job) -> None:
    job.started(0, r0=11)
    job.started(1, r1=11)
    job.client(0, 11).send(set_(NCCL, ID))
    gone = job.client(1, 11)
    gone.send(get(NCCL))
    gone.lose()
    assert job.communicators[0].state == "spent"


def test_a_worker_that_asks_twice_counts_once(job: Job) -> None:
    job.client(0, 11).send(set_(NCCL, ID))
    for _ in range(2):
        job.client(1, 11).send(get(NCCL) + get(NCCL))
    assert job.communicators[0].fetched == 1


def test_without_ranks_the_counts_are_told_and_nobody_is_accused(job: Job) -> None:
    job.exchange_ranks(4)
    job.client(0, 11).send(set_(NCCL, ID))
    job.client(1, 12).send(get(NCCL))
    (row,) = job.communicators
    assert (row.minter, row.fetched, row.needed, row.missing) == (
        "process 11 at 10.0.0.1", 1, 4, [],
    )  # fmt: skip


def test_a_group_of_unknown_size(job: Job) -> None:
    job.exchange_ranks(4)
    job.client(0, 11).send(set_(GROUP, ID))
    job.client(1, 11).send(get(GROUP))
    (row,) = job.communicators
    assert (row.name, row.needed, row.missing, row.state) == (
        "default_pg/0//tp//cuda//0", 0, [], "published",
    )  # fmt: skip


def test_a_pair_needs_two(job: Job) -> None:
    key = b"/default_pg/0//cuda//0:1"
    job.client(0, 11).send(set_(key, ID))
    assert job.communicators[0].needed == 2
    job.client(1, 11).send(get(key))
    assert job.communicators[0].state == "spent"


def test_several_roots(job: Job) -> None:
    keys = [b"/default_pg/0//cuda//UniqueNCCLID:%d" % rank for rank in (0, 128)]
    for pid, key in enumerate(keys):
        job.client(0, pid).send(multi_set((key, ID)))
    job.client(1, 12).send(multi_get(*keys))
    assert [row.fetched for row in job.communicators] == [1, 1]
    assert [row.minter for row in job.communicators] == ["rank 0", "rank 128"]


def test_a_second_id_under_one_key_is_another_attempt(job: Job) -> None:
    wire = job.client(0, 11)
    wire.send(set_(NCCL, ID) + set_(NCCL, ID))
    assert job.communicators[0].attempt == 1
    wire.send(delete(NCCL))
    assert job.communicators == []


def test_unfinished_ones_come_first(job: Job) -> None:
    job.exchange_ranks(2)
    job.client(0, 11).send(set_(NCCL, ID) + set_(GROUP, ID))
    job.client(1, 11).send(get(NCCL))
    assert [row.state for row in job.communicators] == ["published", "spent"]


def test_names_hold_nothing_that_a_terminal_obeys(job: Job) -> None:
    job.client(0, 11).send(set_(b"/\x1b[2J\xff//cuda//0", ID))
    name = job.communicators[0].name
    assert name.isprintable()
    assert name.endswith("//cuda//0")


def test_values_are_never_told(job: Job) -> None:
    job.client(0, 11).send(set_(NCCL, b"secret" + b"x" * 122))
    told = f"{job.store} {job.communicators} {job.lab.reports} {job.lab.core.tables.stores}"
    assert "secret" not in told


# --- reports of agents ----------------------------------------------------------------------------


def test_a_report_must_fit_together(job: Job) -> None:
    node = job.nodes[0]
    reply = node.ask(WorkersStarted(fence=node.live_fence(), ranks=[0, 1], pids=[11]))
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.MALFORMED


def test_a_report_about_another_generation_is_refused(job: Job) -> None:
    node = job.nodes[0]
    stale = Fence(node.live_fence().epoch, 99)
    reply = node.ask(WorkersStarted(fence=stale, ranks=[0], pids=[11]))
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.STALE_GENERATION


def test_a_standby_cannot_report(job: Job) -> None:
    fence = job.nodes[0].live_fence()
    standby = job.lab.node("late", rules=policy(2, worker_store="server")).join()
    reply = standby.ask(WorkersStarted(fence=fence, ranks=[0], pids=[11]))
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.NOT_A_MEMBER
