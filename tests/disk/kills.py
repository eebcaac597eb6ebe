"""Killed, or told of a fault, at every system call that changes a file."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from rdzv_server.storage.base import StorageError
from rdzv_server.storage.repair import repair
from tests.disk import images, traced
from tests.disk.tally import NAME, Tally, judge

CALLS = "pwrite64,write,fsync,fdatasync,rename,renameat,renameat2,ftruncate,unlink,unlinkat,mkdir"
"""`write` is the acknowledgement itself. Names that this machine does not have are left out below."""

SEEN = ",".join(f"?{name}" for name in CALLS.split(",")) + ",close,pread64"

FAULTS = {
    "ENOSPC": ("pwrite64", "ftruncate", "fsync"),
    "EIO": ("pwrite64", "fsync", "fdatasync", "ftruncate", "pread64", "rename", "unlink"),
}
"""What a disk may say to which call."""

COMMITS = 7


def scenarios() -> dict[str, tuple[images.Image, list[str], int]]:
    """What the writer finds, what it is told to do, and which commit is the last before it."""
    made = images.make()
    last = images.LAST
    return {
        "a new database": ({}, ["write", "1", str(COMMITS)], 0),
        "going on after a crash": (made.crashed, ["write", str(last + 1), str(last + 3)], last),
        "a repair": (made.crashed, ["repair"], last),
    }


def killed(name: str, step: int, processes: int) -> Tally:
    """SIGKILL at the n-th call of each kind."""
    image, arguments, before = scenarios()[name]
    counts = _run(image, arguments, None)[0].counts()
    points = [
        (call, n) for call in CALLS.split(",") for n in range(1, counts[call] + 1) if n % step == 0
    ]
    tally = Tally(f"killed at a system call: {name}")
    _all(partial(_kill, tally, image, arguments, before), points, processes)
    return tally


def faulty(name: str, error: str, step: int, processes: int, *, lasting: bool) -> Tally:
    """A call fails, once or from then on."""
    image, arguments, before = scenarios()[name]
    counts = _run(image, arguments, None)[0].counts()
    points = [
        (call, n) for call in FAULTS[error] for n in range(1, counts[call] + 1) if n % step == 0
    ]
    tally = Tally(f"{error} {'from a call on' if lasting else 'once'}: {name}")
    _all(partial(_fail, tally, image, arguments, before, error, lasting), points, processes)
    return tally


def campaign(step: int, processes: int) -> Iterator[Tally]:
    """All of it; of each kind every `step`-th."""
    for name in scenarios():
        yield killed(name, step, processes)
    for error in FAULTS:
        for name in ("a new database", "going on after a crash"):
            for lasting in (False, True):
                yield faulty(name, error, step, processes, lasting=lasting)


def _kill(
    tally: Tally,
    image: images.Image,
    arguments: list[str],
    before: int,
    point: tuple[str, int],
) -> None:
    call, n = point
    ran, directory = _run(image, arguments, f"{call}:signal=SIGKILL:when={n}")
    acked = max(ran.acked, before)
    last = max(ran.begun, acked + 1)
    try:
        if ran.returncode >= 0:
            tally.wrong += 1
            tally.note(f"{call} {n}", "it was not killed")
        if arguments[0] == "repair":
            last = acked
            with suppress(StorageError):
                _finish_repair(directory)
        judge(tally, f"{call} {n}", directory, acked, last, may_refuse=False, go_on=True)
    finally:
        shutil.rmtree(directory.parent)


def _finish_repair(directory: Path) -> None:
    """As the server says when it finds an interrupted one; else the old files have to be good still."""
    if (directory / f"{NAME}-repaired").exists():
        repair(directory / NAME)


def _fail(
    tally: Tally,
    image: images.Image,
    arguments: list[str],
    before: int,
    error: str,
    lasting: bool,
    point: tuple[str, int],
) -> None:
    call, n = point
    ran, directory = _run(
        image, arguments, f"{call}:error={error}:when={n}{'+' if lasting else ''}"
    )
    try:
        what = f"{error} at {call} {n}"
        acked = max(ran.acked, before)
        judge(tally, what, directory, acked, max(ran.begun, acked), may_refuse=False, go_on=True)
        line = ran.went_on_after_fault()
        if line is not None:
            tally.wrong += 1
            tally.note(what, f"went on with a descriptor after a fault: {line}")
        if not lasting and any(ran.failed) and ran.returncode != 0:
            tally.wrong += 1
            tally.note(what, f"it did not go on when the fault was over: {ran.lines[-3:]}")
    finally:
        shutil.rmtree(directory.parent)


def _run(image: images.Image, arguments: list[str], inject: str | None) -> tuple[traced.Ran, Path]:
    directory = Path(tempfile.mkdtemp(prefix="rdzv-kill-")) / "data"
    if image:
        directory.mkdir(0o700)
        images.put(directory, image)
    ran = traced.run([arguments[0], str(directory), *arguments[1:]], SEEN, inject)
    if inject is None:
        shutil.rmtree(directory.parent)
    return ran, directory


def _all(
    function: Callable[[tuple[str, int]], None], points: list[tuple[str, int]], processes: int
) -> None:
    with ThreadPoolExecutor(processes) as pool:
        for _ in pool.map(function, points):
            pass
