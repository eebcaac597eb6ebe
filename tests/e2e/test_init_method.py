"""`init_method="rdzv://…"`: real processes without torchrun."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Cluster
from tests.e2e.kit.jobs import Process
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until

pytestmark = pytest.mark.torch

Start = Callable[..., Process]


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Start]:
    pytest.importorskip("torch")
    made: list[Process] = []

    def begin(server: Server, query: str, *words: str, **more: Any) -> Process:
        url = f"rdzv://{server.endpoint}/job?{query}"
        made.append(Process(cluster.folder, cluster.marker, len(made), url, *words, **more))
        return made[-1]

    yield begin
    for process in made:
        process.end()


def test_four_processes_meet_and_every_kind_of_group_works(cluster: Cluster, start: Start) -> None:
    server = cluster.server()
    work = ("collectives", "groups", "mesh", "ddp", "destroy")
    processes = [start(server, "min=4", *work) for _ in range(4)]
    assert [p.wait(90) for p in processes] == [0] * 4, processes[0].log
    inits = [p.said("init") for p in processes]
    assert sorted(row["rank"] for row in inits) == [0, 1, 2, 3]
    assert {(row["world"], row["generation"]) for row in inits} == {(4, 1)}
    for process in processes:
        assert all(process.all(word) for word in work[:-1])
        assert "ended" not in process.log, "nothing to worry about"
    assert len({p.said("ddp")["weight"] for p in processes}) == 1
    run = server.run("job")
    assert run is not None
    assert run.ended is not None
    assert (run.phase, run.ended.kind) == ("ended", "finished")


def test_fully_sharded_training_works(cluster: Cluster, start: Start) -> None:
    torch = pytest.importorskip(
        "torch", minversion="2.13", reason="FSDP on CPU is not in torch 2.6"
    )
    assert torch.distributed.is_available()
    server = cluster.server()
    processes = [start(server, "min=2", "fsdp", "destroy") for _ in range(2)]
    assert [p.wait(90) for p in processes] == [0, 0], processes[0].log
    assert len({p.said("fsdp")["weight"] for p in processes}) == 1


@pytest.mark.parametrize("store", ["rank0", "server"])
def test_a_second_process_group_is_a_new_generation_and_rpc_shares_the_first(
    cluster: Cluster, start: Start, store: str
) -> None:
    server = cluster.server()
    query = f"min=2&worker_store={store}"
    processes = [start(server, query, "collectives", "rpc", "again", "destroy") for _ in (1, 2)]
    assert [p.wait(90) for p in processes] == [0, 0], processes[0].log
    for process in processes:
        assert [row["generation"] for row in process.all("init")] == [1, 2]
        assert len(process.all("collectives")) == 2
        assert process.said("rpc")["answer"] == 100
    ranks = [[row["rank"] for row in p.all("init")] for p in processes]
    assert all(first == second for first, second in ranks), "survivors keep their ranks"


def test_ranks_that_were_given_come_out(cluster: Cluster, start: Start) -> None:
    server = cluster.server()
    processes = [start(server, "min=1&max=9", f"rank={r}", "world=2", "destroy") for r in (1, 0)]
    assert [p.wait(60) for p in processes] == [0, 0], processes[0].log
    assert [p.said("init")["rank"] for p in processes] == [1, 0]


def test_ranks_that_do_not_come_out_are_an_error_on_the_node_that_asked(
    cluster: Cluster, start: Start
) -> None:
    server = cluster.server()
    gap = start(server, "min=2&max=9&last_call_timeout=0", "rank=5")
    plain = start(server, "min=2&max=9&last_call_timeout=0", "timeout=50")
    assert gap.wait(60) == 1
    assert re.search(
        r"ValueError: .*rank=5 was asked for, but this process is rank 0 of 2", gap.log
    )
    assert plain.wait(20) == 1, "the store will never be served, and it does not wait for it"
    assert "failed: ValueError in init_process_group" in plain.log.rstrip().splitlines()[-1]
    (line,) = server.log_lines("generation_ended")
    assert "kind=failed" in line


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("mn=2", "unknown parameter 'mn': did you mean 'min'?"),
        ("max=2", "min is missing; the form is rdzv://"),
        ("min=2&timeout=soon", "join_timeout=soon: must be a number of seconds"),
    ],
)
def test_a_wrong_url_is_named_at_once(
    cluster: Cluster, start: Start, query: str, words: str
) -> None:
    process = start(cluster.server(), query)
    assert process.wait(60) == 1
    assert words in process.log.rstrip().splitlines()[-1]


def test_a_world_that_does_not_come_together_says_who_is_there(
    cluster: Cluster, start: Start
) -> None:
    process = start(cluster.server(), "min=2&timeout=1")
    assert process.wait(60) == 1
    last = process.log.rstrip().splitlines()[-1]
    assert "JoinTimeout" in last
    assert "1 of min 2" in last


def test_a_process_that_is_killed_is_named_to_the_others_and_in_the_story(
    cluster: Cluster, start: Start
) -> None:
    server = cluster.server()
    processes = [start(server, "min=2", "collectives", "ended", "sleep=60") for _ in (1, 2)]
    rows = [p.said("collectives") for p in processes]
    os.kill(rows[1]["pid"], signal.SIGKILL)
    ended = processes[0].said("ended", 20)
    assert ended["kind"] == "lost"
    assert "its connection closed" in ended["reason"]
    (line,) = server.log_lines("node_lost")
    assert f"-{rows[1]['pid']}-" in line
    assert "generation 1 ended: " in processes[0].log, "and its log says so"
    assert processes[0].process.poll() is None, "nothing restarts it, nothing kills it"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["destroy"], 0, "kind=finished"),
        (["destroy", "raise"], 1, 'kind=failed reason="'),
    ],
)
def test_the_way_a_process_ends_is_told(
    cluster: Cluster, start: Start, words: list[str], code: int, said: str
) -> None:
    server = cluster.server()
    process = start(server, "min=1", "collectives", *words)
    assert process.wait(60) == code, process.log
    (line,) = until(lambda: server.log_lines("node_left"), 10, "it leaves")
    assert said in line
    if code:
        assert "RuntimeError: the loss is NaN" in line


SPAWN = """
import sys
import torch.distributed as dist
import torch.multiprocessing as mp


def work(number, url):
    import rdzv_client.torch.init_method

    dist.init_process_group("gloo", init_method=url)
    dist.barrier()
    dist.destroy_process_group()
    if number == 1:
        sys.exit(3)


if __name__ == "__main__":
    try:
        mp.spawn(work, args=(sys.argv[2],), nprocs=2)
    except mp.ProcessExitedException as error:
        sys.exit(error.exit_code)
"""


def test_processes_of_multiprocessing_tell_their_exit_codes(cluster: Cluster, start: Start) -> None:
    server = cluster.server()
    script = cluster.folder / "spawn.py"
    script.write_text(SPAWN)
    process = start(server, "min=2", script=script)
    assert process.wait(90) == 3, process.log
    lines = until(
        lambda: len(found := server.log_lines("node_left")) == 2 and found, 10, "they leave"
    )
    assert isinstance(lines, list)
    assert any("exit code 3" in line for line in lines), lines
