"""A migration that is killed at a system call: what is found then is the old state or the new one, and whole."""

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from rdzv_server.storage.base import Changes, StorageError
from rdzv_server.storage.schema import CURRENT, Schema
from rdzv_server.storage.sqlite import SqliteStore
from tests.disk import images, script, traced
from tests.disk.kills import CALLS, SEEN
from tests.disk.tally import NAME, Tally

Records = dict[bytes, bytes]


def _rename(records: Records) -> Changes:
    """Every record but one gets another key: so each half of it would be seen."""
    moved = {key: value for key, value in records.items() if key != b"epoch"}
    return {**dict.fromkeys(moved), **{b"v2/" + key: value for key, value in moved.items()}}


def _count(records: Records) -> Changes:
    return {b"count": b"%d" % len(records)}


LATER = Schema(CURRENT.version + 2, {CURRENT.version: _rename, CURRENT.version + 1: _count})
"""Two versions after ours, as an upgrade that leaves one out."""


def migrated(number: int) -> Records:
    """The state after commit `number`, brought forward."""
    records = dict(script.state(number))
    script.apply(records, dict(_rename(records)))
    script.apply(records, dict(_count(records)))
    return records


def killed(step: int, processes: int) -> Tally:
    """SIGKILL at every `step`-th call of each kind, on what a crash and on what an orderly stop left. Counted as
    `whole` is the old state, as `refused` the new one, which the older server refuses."""
    tally = Tally("killed at a system call: a migration")
    made = images.make()
    for image in (made.crashed, made.closed):
        counts = _run(image, None)[0].counts()
        points = [
            (call, n)
            for call in CALLS.split(",")
            for n in range(1, counts[call] + 1)
            if n % step == 0
        ]
        with ThreadPoolExecutor(processes) as pool:
            list(pool.map(partial(_kill, tally, image), points))
    return tally


def _kill(tally: Tally, image: images.Image, point: tuple[str, int]) -> None:
    call, n = point
    ran, directory = _run(image, f"{call}:signal=SIGKILL:when={n}")
    tally.tried += 1
    if ran.returncode >= 0:
        tally.wrong += 1
        tally.note(f"{call} {n}", "it was not killed")
    try:
        text, old = _fault(directory)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is counted and shown
        text, old = f"{type(error).__name__}: {error}", False
    finally:
        shutil.rmtree(directory.parent)
    if text:
        tally.wrong += 1
        tally.note(f"{call} {n}", text)
    elif old:
        tally.whole += 1
    else:
        tally.refused += 1


def _fault(directory: Path) -> tuple[str, bool]:
    """What is wrong with what was left (empty if nothing is), and whether it is the old state."""
    old = True
    copy = directory.parent / "copy"
    shutil.copytree(directory, copy)
    try:
        if _load(copy, CURRENT) != script.state(images.LAST):
            return "the older server finds a state that never was", old
    except StorageError as error:
        if error.cause != "newer":
            return f"the older server is refused: {error}", old
        old = False
    for _ in range(2):
        if _load(directory, LATER) != migrated(images.LAST):
            return "the later server finds a state that never was", old
    return "", old


def _load(directory: Path, layout: Schema) -> Records:
    store = SqliteStore(directory / NAME, layout=layout)
    try:
        return store.load()
    finally:
        store.close()


def _run(image: images.Image, inject: str | None) -> tuple[traced.Ran, Path]:
    directory = Path(tempfile.mkdtemp(prefix="rdzv-migration-")) / "data"
    directory.mkdir(0o700)
    images.put(directory, image)
    ran = traced.run(["migrate", str(directory)], SEEN, inject)
    if inject is None:
        shutil.rmtree(directory.parent)
    return ran, directory
