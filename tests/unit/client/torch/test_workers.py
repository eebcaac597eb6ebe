"""Finding the workers that an agent has started, and telling the server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rdzv_client import worker
from rdzv_client.torch import workers
from rdzv_client.torch.workers import workers_of
from rdzv_proto.messages import Done, Ended, Join, View, ViewChanged, WorkersStarted
from tests.e2e.kit.wait import until
from tests.unit.client.fake_server import FENCE, FakeServer, joined

FENCE_TEXT = str(FENCE)


@contextmanager
def child(rank: int, fence: str = FENCE_TEXT, count: int = 2) -> Iterator[int]:
    """A process with the environment of a worker."""
    environment = {worker.FENCE: fence, "RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | environment,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.communicate(b"\n")


def test_real_children_of_this_process_are_found() -> None:
    with child(4) as four, child(5) as five, child(9, fence="7.99"):
        assert workers_of(os.getpid(), FENCE_TEXT) == ({4: four, 5: five}, 2)
    assert workers_of(os.getpid(), FENCE_TEXT) == ({}, 0)


def fake_proc(folder: Path, environ: bytes | None) -> str:
    (folder / "1" / "task" / "1").mkdir(parents=True)
    (folder / "1" / "task" / "1" / "children").write_text("2 ")
    (folder / "2").mkdir()
    if environ is not None:
        (folder / "2" / "environ").write_bytes(environ)
    return str(folder)


@pytest.mark.parametrize(
    "environ",
    [
        None, b"", b"\0\0", b"RANK=0\0LOCAL_WORLD_SIZE=1\0", b"RDZV_FENCE=7.1\0RANK=0\0",
        b"RDZV_FENCE=7.1\0RANK=x\0LOCAL_WORLD_SIZE=1\0", b"RDZV_FENCE=7.1\0RANK=\0LOCAL_WORLD_SIZE=1\0",
        b"RDZV_FENCE=7.2\0RANK=0\0LOCAL_WORLD_SIZE=1\0",
    ],
)  # fmt: skip
def test_other_children_are_no_workers(tmp_path: Path, environ: bytes | None) -> None:
    assert workers_of(1, "7.1", fake_proc(tmp_path, environ)) == ({}, 0)


def test_odd_bytes_in_an_environment_do_no_harm(tmp_path: Path) -> None:
    environ = b"RDZV_FENCE=7.1\0X=\xff\0RANK=3\0LOCAL_WORLD_SIZE=1\0"
    assert workers_of(1, "7.1", fake_proc(tmp_path, environ)) == ({3: 2}, 1)


def test_without_proc_nothing_is_found(tmp_path: Path) -> None:
    assert workers_of(1, "7.1", str(tmp_path)) == ({}, 0)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        running.on(Join, lambda ask: joined())
        running.on(WorkersStarted, lambda ask: Done())
        yield running


def test_the_server_is_told_once_all_are_there(server: FakeServer) -> None:
    from rdzv_client import Client

    with Client(server.address, run="llama", min_nodes=1) as client:
        generation = client.join()
        with child(4) as four:
            workers.report(client, generation)
            with child(5) as five:
                told = server.wait_for(WorkersStarted)
    assert (told.fence, told.ranks, told.pids) == (FENCE, [4, 5], [four, five])


def test_nothing_is_reported_after_the_end(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rdzv_client import Client

    monkeypatch.setattr(workers, "PAUSES_S", (0.05,))
    with Client(server.address, run="llama", min_nodes=1) as client, child(4, count=1):
        generation = client.join()
        view = View(fence=FENCE, ended=Ended(kind="lost", reason="it is over"))
        server.push(ViewChanged(view=view))
        until(lambda: generation.ended.is_set(), 10, "the end is known")
        workers._watch(client, generation)
        assert server.all(WorkersStarted) == []
