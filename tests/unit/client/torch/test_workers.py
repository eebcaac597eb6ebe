"""Finding the workers of an agent among its children."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rdzv_client.torch import workers
from tests.e2e.kit.wait import until

FENCE = "7.1"


@contextmanager
def child(**environ: str) -> "Iterator[subprocess.Popen[bytes]]":
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=os.environ | environ
    )
    try:
        yield process
    finally:
        process.communicate(b"\n", timeout=10)


def as_worker(rank: int, fence: str = FENCE, local: int = 2) -> dict[str, str]:
    return {
        "RDZV_FENCE": fence, "RANK": str(rank), "LOCAL_WORLD_SIZE": str(local), "WORLD_SIZE": "4",
    }  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_children_of_this_generation_are_found_with_their_ranks() -> None:
    with child(**as_worker(2)) as a, child(**as_worker(3)) as b:
        until(lambda: workers.find(FENCE).complete, 10, "both workers")
        found = workers.find(FENCE)
    assert found.ranks == {a.pid: 2, b.pid: 3}
    assert (found.local_world_size, found.world_size) == (2, 4)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_workers_of_another_generation_and_other_children_are_not() -> None:
    with child(**as_worker(2)) as a, child(**as_worker(0, fence="7.2")), child():
        until(lambda: a.pid in workers.find(FENCE).ranks, 10, "the worker")
        found = workers.find(FENCE)
    assert list(found.ranks) == [a.pid]
    assert not found.complete, "one of two"


def test_a_system_without_proc_shows_nothing(tmp_path: Path) -> None:
    found = workers.find(FENCE, str(tmp_path))
    assert found.ranks == {}
    assert not found.complete


def test_broken_entries_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "self" / "task" / "1").mkdir(parents=True)
    (tmp_path / "self" / "task" / "2").mkdir()
    (tmp_path / "self" / "task" / "1" / "children").write_text("11 12 13 14 ")
    for pid, environ in (
        (11, b"RDZV_FENCE=7.1\0RANK=x\0LOCAL_WORLD_SIZE=2\0WORLD_SIZE=4\0"),
        (12, b"RDZV_FENCE=7.1\0\xff\xfe=\xff\0RANK=1\0LOCAL_WORLD_SIZE=2\0WORLD_SIZE=4\0"),
        (13, b""),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "environ").write_bytes(environ)
    assert workers.find(FENCE, str(tmp_path)).ranks == {12: 1}
