"""The store that agents get: a plain object over the keys of a generation."""

import json
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from rdzv_client.blocking import Generation
from rdzv_client.errors import (
    ConnectionLost,
    GenerationEnded,
    LimitExceeded,
    NotAMember,
    RdzvError,
    RequestTimeout,
    SessionLost,
    WaitTimeout,
)

if TYPE_CHECKING:
    from rdzv_client.torch.store import AgentStore

pytestmark = pytest.mark.torch

ROLE = json.dumps({"role": "trainer", "rank": 1, "local_world_size": 4})
OVER = [GenerationEnded("b was lost"), SessionLost("silent"), NotAMember("left already")]


class FakeKv:
    """Keys in a dictionary; raises instead when it is told to."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.error: RdzvError | None = None
        self.calls: list[tuple[str, float]] = []

    def set(self, key: str, value: str | bytes) -> None:
        self.multi_set([key], [value])

    def multi_set(self, keys: Iterable[str], values: Iterable[str | bytes]) -> None:
        self._check("set", 0)
        for key, value in zip(keys, values, strict=True):
            self.values[key] = value.encode() if isinstance(value, str) else value

    def multi_get(self, keys: Iterable[str], timeout: float) -> list[bytes]:
        self._check("get", timeout)
        return [self.values[key] for key in keys]

    def add(self, key: str, delta: int) -> int:
        self._check("add", 0)
        total = int(self.values.get(key, b"0")) + delta
        self.values[key] = b"%d" % total
        return total

    def wait(self, keys: Iterable[str], timeout: float) -> None:
        self._check("wait", timeout)

    def _check(self, call: str, timeout: float) -> None:
        self.calls.append((call, timeout))
        if self.error is not None:
            raise self.error


class FakeGeneration:
    run, rank, world_size = "llama", 2, 3

    def __init__(self) -> None:
        self.kv = FakeKv()


class Bench:
    """A store, and what it stands on."""

    def __init__(self, on_finished: Callable[[], None] | None = None) -> None:
        pytest.importorskip("torch")
        from rdzv_client.torch.store import AgentStore

        self.generation = FakeGeneration()
        self.kv = self.generation.kv
        self.finished = 0
        self.store: AgentStore = AgentStore(
            cast("Generation", self.generation),
            timedelta(seconds=60),
            on_finished or self._on_finished,
        )

    def _on_finished(self) -> None:
        assert "add" not in [call for call, _ in self.kv.calls], "before the add, not after it"
        self.finished += 1


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_while_the_generation_lives_it_is_a_store(bench: Bench) -> None:
    store = bench.store
    store.set("a", "text")
    store.multi_set(["b", "c"], [b"1", "2"])
    assert store.get("a") == b"text"
    assert store.multi_get(("c", "b")) == [b"2", b"1"]
    assert [store.add("n", 1), store.add("n", 4)] == [1, 5]
    store.wait(["a"])


def test_reads_wait_as_long_as_the_agent_says(bench: Bench) -> None:
    bench.kv.values["a"] = b""
    bench.store.get("a")
    bench.store.wait(["a"])
    bench.store.set_timeout(timedelta(milliseconds=1500))
    assert bench.store.timeout == timedelta(milliseconds=1500)
    bench.store.multi_get(["a"])
    bench.store.wait(["a"], timedelta(seconds=7))
    assert bench.kv.calls == [("get", 60), ("wait", 60), ("get", 1.5), ("wait", 7)]


def test_the_keys_are_those_of_torchs_agent() -> None:
    pytest.importorskip("torch")
    from torch.distributed.elastic.agent.server import api
    from torch.distributed.elastic.utils import store as torch_store

    from rdzv_client.torch import store

    assert store.TERMINAL_STATE == api._TERMINAL_STATE_SYNC_ID
    assert f"{api._TERMINAL_STATE_SYNC_ID}{torch_store._NUM_MEMBERS}" == store.NUM_MEMBERS


# --- once the generation has ended --------------------------------------------------------------


@pytest.mark.parametrize("error", OVER, ids=lambda e: type(e).__name__)
def test_writes_have_no_effect_and_no_error(bench: Bench, error: RdzvError) -> None:
    bench.kv.error = error
    bench.store.set("a", b"1")
    bench.store.multi_set(["a"], [b"1"])
    assert bench.store.add("n", 1) == 0


@pytest.mark.parametrize("error", OVER, ids=lambda e: type(e).__name__)
def test_reads_of_ranks_give_placeholders_for_a_world_of_the_right_size(
    bench: Bench, error: RdzvError
) -> None:
    bench.store.set("torchelastic/role_info/2", ROLE)
    bench.kv.error = error
    placeholder = json.loads(bench.store.get("torchelastic/assigned_ranks/2"))
    assert placeholder == [8, 12, 8, 12], "base and world of 3 nodes with 4 workers, group rank 2"


def test_reads_of_roles_give_the_own_role_for_every_node(bench: Bench) -> None:
    bench.store.set("torchelastic/role_info/2", ROLE)
    bench.kv.error = GenerationEnded("b was lost")
    roles = bench.store.multi_get([f"torchelastic/role_info/{i}" for i in range(3)])
    assert roles == [ROLE.encode()] * 3


def test_the_own_role_is_remembered_though_it_could_not_be_written(bench: Bench) -> None:
    """The generation may end right after the rendezvous, before anything was exchanged."""
    bench.kv.error = GenerationEnded("b was lost")
    bench.store.set("torchelastic/role_info/2", ROLE.encode())
    assert json.loads(bench.store.get("torchelastic/assigned_ranks/2")) == [8, 12, 8, 12]
    assert json.loads(bench.store.get("torchelastic/role_info/0"))["local_world_size"] == 4


def test_without_a_role_there_is_one_worker_a_node(bench: Bench) -> None:
    bench.kv.error = GenerationEnded("b was lost")
    assert json.loads(bench.store.get("torchelastic/assigned_ranks/0")) == [2, 3, 2, 3]


def test_torchs_rank_exchange_gets_through_a_generation_that_has_ended(bench: Bench) -> None:
    """The real code of torch's agent, on both sides of the exchange."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    spec = WorkerSpec(
        role="trainer",
        local_world_size=4,
        rdzv_handler=cast("Any", None),
        entrypoint="x",
        max_restarts=0,
    )
    bench.kv.error = GenerationEnded("b was lost")
    for rank in (0, 2):
        bench.generation.rank = rank
        assign: Any = LocalElasticAgent._assign_worker_ranks
        workers = assign(cast("Any", object()), bench.store, rank, 3, spec)
        assert [w.global_rank for w in workers] == [rank * 4 + i for i in range(4)]
        assert {w.world_size for w in workers} == {12}


@pytest.mark.parametrize("error", OVER, ids=lambda e: type(e).__name__)
def test_waiting_for_others_is_over(bench: Bench, error: RdzvError) -> None:
    bench.kv.error = error
    bench.store.wait(["torchelastic/agent/terminal_state/last_member"], timedelta(seconds=300))
    assert bench.kv.calls == [("wait", 300)]


# --- the end of the job -------------------------------------------------------------------------


def test_the_terminal_state_key_says_that_this_node_has_finished(bench: Bench) -> None:
    bench.store.add("torchelastic/agent/terminal_state/num_members", 1)
    assert bench.finished == 1
    assert bench.kv.values == {"torchelastic/agent/terminal_state/num_members": b"1"}


def test_other_keys_say_nothing_of_the_kind(bench: Bench) -> None:
    bench.store.add("num_members", 1)
    bench.store.set("torchelastic/agent/terminal_state/last_member", b"x")
    assert bench.finished == 0


def test_finishing_is_told_also_when_the_generation_has_ended(bench: Bench) -> None:
    bench.kv.error = GenerationEnded("b was lost")
    assert bench.store.add("torchelastic/agent/terminal_state/num_members", 1) == 0
    assert bench.finished == 1


def test_torchs_exit_barrier_passes_alone_once_the_generation_has_ended(bench: Bench) -> None:
    from torch.distributed.elastic.utils.store import barrier

    bench.kv.error = GenerationEnded("all others finished")
    barrier(
        store=bench.store,
        world_size=3,
        key_prefix="torchelastic/agent/terminal_state",
        barrier_timeout=300,
    )
    assert bench.finished == 1


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [WaitTimeout("a is missing"), RequestTimeout("no answer")])
def test_a_timeout_is_the_error_that_torch_catches_by_name(bench: Bench, error: RdzvError) -> None:
    from torch.distributed import DistStoreError

    bench.kv.error = error
    for call in calls(bench.store):
        with pytest.raises(DistStoreError, match=error.message) as caught:
            call()
        assert caught.value.__cause__ is None
        assert error.info.label in str(caught.value)


@pytest.mark.parametrize("error", [ConnectionLost("gone"), LimitExceeded("too many keys")])
def test_anything_else_is_a_network_error_of_torch(bench: Bench, error: RdzvError) -> None:
    from torch.distributed import DistNetworkError

    bench.kv.error = error
    for call in calls(bench.store):
        with pytest.raises(DistNetworkError, match=error.message):
            call()


def calls(store: "AgentStore") -> list[Callable[[], object]]:
    """Everything an agent may call."""
    return [
        lambda: store.get("a"),
        lambda: store.multi_get(["a"]),
        lambda: store.wait(["a"]),
        lambda: store.set("a", b""),
        lambda: store.multi_set(["a"], [b""]),
        lambda: store.add("a", 1),
    ]
