"""Unique ids through real processes: B35, real roots of libnccl with fake ranks, and what is lost when."""

from pathlib import Path

import pytest

from tests import nccl_here
from tests.e2e.conftest import Cluster
from tests.e2e.kit.ncclrank import fingerprint, made_up
from tests.e2e.kit.nodes import Node
from tests.e2e.kit.wait import stays, until

needs_nccl = pytest.mark.skipif(not nccl_here.path(), reason=nccl_here.MISSING)

WORKER = Path(__file__).parent / "kit" / "ncclworker.py"
MADE_UP = {"seed": 1, "size": 128}
PATIENCE_S = 15.0


@pytest.fixture(autouse=True)
def the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which NCCL the processes mint with, on which interface."""
    monkeypatch.setenv("RDZV_NCCL_LIB", nccl_here.path())
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    monkeypatch.delenv("NCCL_COMM_ID", raising=False)


def world(cluster: Cluster, count: int, run: str) -> list[Node]:
    """Live nodes, by rank."""
    server = cluster.server()
    options = {"min_nodes": count - 1 if count > 2 else count, "max_nodes": count}
    nodes = [cluster.nccl_node(server, run, name=f"n{i}", rank=i, **options) for i in range(count)]
    for node in nodes:
        node.joined(count, PATIENCE_S)
    assert [node.rank for node in nodes] == list(range(count))
    return nodes


def comm(nodes: list[Node], **options: object) -> None:
    for node in nodes:
        node.do("comm", **{"group": "dp", "nranks": len(nodes), **options})


def same_ids(nodes: list[Node], count: int = 1) -> str:
    """All have the same ones (the n-th time), and no others."""
    lines = [node.wait_for("ids", PATIENCE_S, count) for node in nodes]
    (shown,) = {line["fingerprint"] for line in lines}
    return str(shown)


def check_secret(cluster: Cluster, raw: bytes) -> None:
    """S22: not a word of an id in any log."""
    texts = [server.log for server in cluster.servers]
    texts += [node.log_path.read_text() for node in cluster.nodes]
    for text in texts:
        assert raw[:8].hex() not in text
        assert repr(raw[:8])[2:-1] not in text


# --- B35: the straggler and the second writer -------------------------------------------------


def test_b35a_all_have_the_id_at_once_however_late_it_comes(
    cluster: Cluster, tmp_path: Path
) -> None:
    nodes = world(cluster, 3, "b35a")
    go = tmp_path / "go"
    comm(nodes, timeout=60, mint=MADE_UP, mint_when=str(go), ring=False, ready=False)
    nodes[0].wait_for("minting", PATIENCE_S)
    stays(lambda: not any(n.all("ids") + n.all("failed") for n in nodes),
          cluster.quiet_s(20, 2), "nobody has an id or an error")  # fmt: skip
    go.touch()
    assert same_ids(nodes) == fingerprint([made_up(1, 128)])
    published = nodes[0].wait_for("minted", PATIENCE_S)["at"]
    assert all(node.wait_for("ids", 1)["at"] - published < 1 for node in nodes)
    check_secret(cluster, made_up(1, 128))


def test_b35b_a_waiter_that_gives_up_learns_whose_id_is_missing(
    cluster: Cluster, tmp_path: Path
) -> None:
    nodes = world(cluster, 3, "b35b")
    go, patience_s = tmp_path / "go", 5 if cluster.full else 2
    comm(nodes[:1], nranks=3, mint=MADE_UP, mint_when=str(go), ring=False, ready=False)
    nodes[0].wait_for("minting", PATIENCE_S)
    comm(nodes[1:], nranks=3, timeout=patience_s, ring=False, ready=False)
    for node in nodes[1:]:
        failed = node.wait_for("failed", PATIENCE_S)
        assert failed["error"] == "IdTimeout"
        assert patience_s <= failed["took_s"] < patience_s + 1
        for part in ("run 'b35b' generation", "communicator 'dp'", "rank 0 (n0",
                     "was told to mint", "it is alive, last heard"):  # fmt: skip
            assert part in failed["message"]
    go.touch()
    nodes[0].wait_for("ids", PATIENCE_S)
    comm(nodes[1:], nranks=3, ring=False, ready=False)
    same_ids(nodes)


def test_b35b_a_waiter_learns_that_the_minter_never_asked(cluster: Cluster) -> None:
    nodes = world(cluster, 3, "b35b2")
    comm(nodes[1:], nranks=3, timeout=1, ring=False, ready=False)
    for node in nodes[1:]:
        failed = node.wait_for("failed", PATIENCE_S)
        assert "rank 0 (n0" in failed["message"]
        assert "has not asked yet; it is alive" in failed["message"]


def test_b35c_the_first_id_wins_and_a_second_writer_is_told(cluster: Cluster) -> None:
    nodes = world(cluster, 3, "b35c")
    comm(nodes, mint=MADE_UP, ring=False, ready=False)
    shown = same_ids(nodes)
    for rank in (0, 1):
        told = nodes[1].ask("put", group="dp", rank=rank, seed=2, size=128)
        assert told["error"] == "DuplicateId"
        assert "the first one counts" in told["message"]
    comm(nodes[2:], nranks=3, ring=False, ready=False)
    assert nodes[2].wait_for("ids", PATIENCE_S, 2)["fingerprint"] == shown


def test_b35d_127_bytes_are_refused_with_both_sizes_on_either_side(
    cluster: Cluster, tmp_path: Path
) -> None:
    nodes = world(cluster, 3, "b35d")
    go = tmp_path / "go"
    comm(nodes, mint={"seed": 1, "size": 127}, mint_when=str(go), ring=False, ready=False)
    nodes[0].wait_for("minting", PATIENCE_S)
    told = nodes[0].ask("put", group="dp", rank=0, seed=1, size=127)
    assert "128 bytes, this one has 127" in told["message"]
    go.touch()
    until(lambda: len(nodes[0].all("failed")) == 2, PATIENCE_S, "the minter's own error")
    assert "mint returned 127 bytes" in nodes[0].all("failed")[1]["message"]
    for node in nodes[1:]:
        failed = node.wait_for("failed", PATIENCE_S)
        assert failed["error"] == "MintFailed"
        assert "127 bytes; a unique id has 128" in failed["message"]


def test_b35e_any_128_bytes_are_equal_everywhere(cluster: Cluster) -> None:
    nodes = world(cluster, 3, "b35e")
    comm(nodes, mint={"seed": 35, "size": 128}, ring=False)
    assert same_ids(nodes) == fingerprint([made_up(35, 128)])
    check_secret(cluster, made_up(35, 128))


# --- real roots -------------------------------------------------------------------------------


@needs_nccl
@pytest.mark.parametrize(("count", "n_ids"), [(2, 1), (4, 1), (4, 2), (4, 4), (5, 3)])
def test_ids_lead_all_ranks_to_one_ring(cluster: Cluster, count: int, n_ids: int) -> None:
    nodes = world(cluster, count, "ring")
    comm(nodes, n_ids=n_ids)
    for node in nodes:
        assert node.wait_for("ring", PATIENCE_S)["met"] == count
        node.wait_for("ready", PATIENCE_S)
    same_ids(nodes)
    assert cluster.servers[0].log_lines("nccl_ready")


@needs_nccl
@pytest.mark.torch
def test_training_processes_get_their_ids_under_their_agents_generation(cluster: Cluster) -> None:
    server = cluster.server()
    minting = {"RDZV_NCCL_LIB": nccl_here.path(), "NCCL_SOCKET_IFNAME": "lo"}
    agents = [
        cluster.agent(
            server, "workers", "2", nproc=2, script=str(WORKER), name=f"a{i}", environment=minting
        )
        for i in (1, 2)
    ]  # told to them: the process that they are forked from is older than this test
    for agent in agents:
        assert agent.wait(60) == 0
    rows = [row for agent in agents for row in agent.lines("ring")]
    assert sorted(row["rank"] for row in rows) == [0, 1, 2, 3]
    assert {row["met"] for row in rows} == {4}
    assert len({row["fingerprint"] for row in rows}) == 1


@needs_nccl
def test_s18_each_communicator_gets_an_id_of_its_own_and_a_spent_one_is_refused(
    cluster: Cluster,
) -> None:
    nodes = world(cluster, 2, "again")
    shown = []
    for number in (1, 2, 3):
        comm(nodes)
        shown.append(same_ids(nodes, number))
        for node in nodes:
            assert node.wait_for("ready", PATIENCE_S, number)["attempt"] == number - 1
    assert len(set(shown)) == 3
    comm(nodes[:1], nranks=2, attempt=1)
    failed = nodes[0].wait_for("failed", PATIENCE_S)
    assert failed["error"] == "AlreadyUsed"


@needs_nccl
def test_s21_a_rank_that_dies_before_all_are_ready_revokes_the_id_and_the_next_world_gets_a_new_one(
    cluster: Cluster,
) -> None:
    nodes = world(cluster, 3, "reform")
    comm(nodes, ring=False, ready=False)
    old = same_ids(nodes)
    nodes[1].kill()
    rest = [nodes[0], nodes[2]]
    for node in rest:
        why = node.wait_for("revoked", PATIENCE_S)["why"]
        assert "rank 1 (n1" in why
        assert "was lost before all ranks were ready" in why
        node.joined(2, PATIENCE_S, above=1)
    for rank, node in enumerate(rest):
        node.do("comm", group="dp", nranks=2, rank=rank)
    assert same_ids(rest, 2) != old
    for node in rest:
        assert node.wait_for("ring", PATIENCE_S)["met"] == 2
        assert node.last("ids")["number"] > 1  # type: ignore[index]


def test_s21_a_minter_that_is_killed_frees_all_waiters(cluster: Cluster, tmp_path: Path) -> None:
    nodes = world(cluster, 3, "killed")
    comm(nodes, mint=MADE_UP, mint_when=str(tmp_path / "never"), ring=False)
    nodes[0].wait_for("minting", PATIENCE_S)
    nodes[0].kill()
    for node in nodes[1:]:
        failed = node.wait_for("failed", PATIENCE_S)
        assert failed["error"] == "MinterLost"
        assert failed["took_s"] < 10
        assert "rank 0 (n0" in failed["message"]


def test_a_rank_that_never_gets_ready_is_named_to_all(cluster: Cluster) -> None:
    nodes = world(cluster, 3, "init")
    limit_s = 20 if cluster.full else 2
    comm(nodes[:2], nranks=3, mint=MADE_UP, ring=False, ready=False, init_timeout=limit_s)
    for node in nodes[:2]:
        why = node.wait_for("revoked", limit_s + PATIENCE_S)["why"]
        assert "never asked: rank 2" in why
        assert "fetched: rank 0 (n0" in why
