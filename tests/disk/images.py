"""Damaged files: cut at every byte, a bit flipped in every byte."""

import contextlib
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rdzv_server.storage.base import StorageError
from rdzv_server.storage.repair import repair
from rdzv_server.storage.schema import PAGE_BYTES
from rdzv_server.storage.sqlite import SqliteStore
from tests.disk import script
from tests.disk.tally import FILES, NAME, Tally, judge

BEFORE = 32
"""Commits that are in the main file."""

AFTER = 5
"""Commits that are in the log."""

LAST = BEFORE + AFTER

GO_ON_EVERY = 8
"""Damage that a start does not notice must not hurt later: every so many of those starts, a commit."""

MEND_EVERY = 7
"""A repair takes some ten milliseconds."""

Image = dict[str, bytes]
"""The files of a database, by name."""


@dataclass
class Images:
    """What a server leaves.

    Args:
        crashed: killed after the last commit.
        closed: stopped in an orderly way.
        acked: the file with the number, after each commit.
        ends: where the log ended after each commit.
        older: the main file, at times before.
    """

    crashed: Image
    closed: Image
    acked: dict[int, bytes]
    ends: dict[int, int]
    older: list[bytes]


@contextlib.contextmanager
def memory_directory() -> Iterator[Path]:
    """On a file system in memory if there is one: these campaigns are about bytes, not about fsync."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="rdzv-disk-", dir=shm if os.access(shm, os.W_OK) else None
    ) as name:
        yield Path(name)


def make() -> Images:
    with memory_directory() as directory:
        older: list[bytes] = []
        for number in range(1, BEFORE + 1):
            store = SqliteStore(directory / NAME)
            store.load()
            store.commit(script.changes(number))
            store.close()
            older.append((directory / NAME).read_bytes())
        store = SqliteStore(directory / NAME)
        store.load()
        acked = {BEFORE: (directory / FILES[2]).read_bytes()}
        ends = {BEFORE: 0}
        for number in range(BEFORE + 1, LAST + 1):
            store.commit(script.changes(number))
            acked[number] = (directory / FILES[2]).read_bytes()
            ends[number] = (directory / FILES[1]).stat().st_size
        crashed = copy(directory)
        store.close()
        return Images(crashed, copy(directory), acked, ends, older)


def copy(directory: Path) -> Image:
    return {name: (directory / name).read_bytes() for name in FILES if (directory / name).exists()}


def put(directory: Path, image: Image) -> None:
    """In place of whatever is there."""
    for path in directory.iterdir():
        path.unlink()
    for name, data in image.items():
        (directory / name).write_bytes(data)
        (directory / name).chmod(0o600)


Point = tuple[str, int]
"""A file and a place in it."""


def cut(image: Image, point: Point) -> Image:
    name, at = point
    return {**image, name: image[name][:at]}


def flip(image: Image, point: Point) -> Image:
    name, at = point
    data = bytearray(image[name])
    data[at] ^= 1 << (at * 5 + at // 8) % 8
    return {**image, name: bytes(data)}


def points(image: Image, step: int) -> list[Point]:
    """Every byte, or some. Small steps at the beginning, where the headers are."""
    return [
        (name, at)
        for name, data in image.items()
        for at in range(len(data))
        if at % step == 0 or (at < 200 and at % max(step // 10, 1) == 0)
    ]


def damage(
    name: str, image: Image, change: Callable[[Image, Point], Image], chosen: Iterable[Point]
) -> Tally:
    """One file damaged, the others whole: all of the state, or a refusal."""
    tally = Tally(name)
    with memory_directory() as directory:
        for index, point in enumerate(chosen):
            put(directory, change(image, point))
            judge(
                tally,
                f"{point[0]} at {point[1]}",
                directory,
                LAST,
                LAST,
                may_refuse=True,
                go_on=index % GO_ON_EVERY == 0,
            )
    return tally


def misplaced(images: Images, versions: Iterable[int]) -> Tally:
    """A page that was not written, or written in the place of another, or is full of zeros: as good by
    itself as SQLite can tell."""
    tally = Tally("a page stale, misplaced or empty")
    main = images.closed[NAME]
    sources = [images.older[n] for n in versions] + [bytes(len(main))]
    with memory_directory() as directory:
        for version, source in enumerate(sources):
            for at in range(0, len(main), PAGE_BYTES):
                for other in range(0, len(source), PAGE_BYTES):
                    page = source[other : other + PAGE_BYTES]
                    changed = main[:at] + page + main[at + PAGE_BYTES :]
                    if changed != main:
                        put(directory, {**images.closed, NAME: changed})
                        what = f"page at {at} as at {other} in version {version}"
                        judge(tally, what, directory, LAST, LAST, may_refuse=True)
    return tally


def torn(images: Images, places: Iterable[int]) -> Tally:
    """The log ends anywhere, as when the machine went down while it was written: a start without a
    word, with all commits that were whole."""
    tally = Tally("log torn within a commit")
    log = images.crashed[FILES[1]]
    with memory_directory() as directory:
        for at in places:
            done = max(number for number, end in images.ends.items() if end <= at)
            image = {
                **images.crashed,
                FILES[1]: log[:at],
                FILES[2]: images.acked[done],
            }
            put(directory, image)
            judge(tally, f"log cut at {at}", directory, done, done, may_refuse=False)
    return tally


def behind(images: Images, places: Iterable[int]) -> Tally:
    """The machine lost power: the number says less than there is. Cut anywhere, nothing that the number
    tells of is missing without a word."""
    tally = Tally("log cut, number as it was 3 commits before")
    log = images.crashed[FILES[1]]
    said = LAST - 3
    with memory_directory() as directory:
        for at in places:
            put(
                directory,
                {**images.crashed, FILES[1]: log[:at], FILES[2]: images.acked[said]},
            )
            judge(tally, f"log cut at {at}", directory, said, LAST, may_refuse=True)
    return tally


def mended(
    name: str, image: Image, change: Callable[[Image, Point], Image], chosen: Iterable[Point]
) -> Tally:
    """One file damaged, and repaired: the next start is clean, and all that it finds was once written."""
    tally = Tally(name)
    written = {item for n in range(BEFORE, LAST + 1) for item in script.state(n).items()}
    with memory_directory() as directory:
        for point in chosen:
            put(directory, change(image, point))
            what = f"{point[0]} at {point[1]}"
            tally.tried += 1
            try:
                report = repair(directory / NAME)
                store = SqliteStore(directory / NAME)
                try:
                    records = store.load()
                finally:
                    store.close()
            except StorageError as error:
                tally.wrong += 1
                tally.note(what, f"refused: {error}")
                continue
            good = records.items() <= written and len(records) == sum(report.kept.values())
            tally.whole += good
            tally.wrong += not good
            if not good:
                tally.note(what, f"records that never were; {report}")
    return tally


def campaign(step: int, processes: int) -> Iterator[Tally]:
    """All of it.

    Args:
        step: between points; 1 is every byte.
        processes: to share the work.
    """
    images = make()
    every = range(0, len(images.crashed[FILES[1]]) + 1, step)
    jobs: list[tuple[Callable[..., Tally], tuple[object, ...], list[object]]] = [
        (torn, (images,), list(every)),
        (behind, (images,), list(every)),
        (misplaced, (images,), list(range(0, BEFORE, 1 if step == 1 else 6))),
    ]
    for what, image in (("killed", images.crashed), ("stopped", images.closed)):
        chosen: list[object] = list(points(image, step))
        jobs.append((damage, (f"cut at a byte, server {what}", image, cut), chosen))
        jobs.append((damage, (f"bit flipped in a byte, server {what}", image, flip), chosen))
        fewer = chosen[::MEND_EVERY]
        jobs.append((mended, (f"repaired after a cut, server {what}", image, cut), fewer))
        jobs.append((mended, (f"repaired after a flip, server {what}", image, flip), fewer))
    if processes == 1:
        for function, arguments, chosen in jobs:
            yield function(*arguments, chosen)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for function, arguments, chosen in jobs:
            parts = [(*arguments, chosen[i :: processes * 8]) for i in range(processes * 8)]
            results = pool.starmap(function, parts, chunksize=1)
            for other in results[1:]:
                results[0].add(other)
            yield results[0]
