"""A small process that uses a store and says on stdout what it was promised, so that it can be killed or
lied to: `python -m tests.disk.writer write DIR FIRST LAST`, `… repair DIR`, `… fill DIR [tidy]`,
`… short DIR BYTES`, `… migrate DIR`."""

import os
import resource
import sys
from pathlib import Path

from rdzv_server.storage import sqlite
from rdzv_server.storage.base import StorageError
from rdzv_server.storage.repair import repair
from rdzv_server.storage.sqlite import SqliteStore
from tests.disk import script
from tests.disk.tally import NAME

TRIES = 4
"""For each commit. A fault that is there once needs two."""


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def write(directory: Path, first: int, last: int) -> int:
    """Commits `first` to `last`; those that fail are tried again."""
    for _ in range(TRIES):
        store = SqliteStore(directory / NAME)
        try:
            store.load()
            break
        except StorageError as error:
            store.close()
            say(f"failed 0 {error.cause} {error}")
    else:
        return 3
    for number in range(first, last + 1):
        for _ in range(TRIES):
            try:
                store.commit(script.changes(number))
                break
            except StorageError as error:
                say(f"failed {number} {error.cause} {error}")
        else:
            return 3
        say(f"acked {number}")
        if number % 3 == 0:
            store.tidy()
    store.close()
    say("closed")
    return 0


def fill(directory: Path, *, tidy: bool) -> int:
    """Until the disk is full; then there is room again, and it goes on, without a restart."""
    if tidy:
        sqlite.TIDY_BYTES = 50_000
    ballast = directory / "ballast"
    ballast.write_bytes(bytes(300_000))
    store = SqliteStore(directory / NAME)
    store.load()
    number, failed, big = 0, 0, 0
    while failed < 3:
        number += 1
        wanted = script.changes(number)
        wanted[b"big/%d" % (big := big + 1)] = os.urandom(20_000)
        try:
            store.commit(wanted)
            say(f"acked {number}")
            store.tidy()
        except StorageError as error:
            say(f"failed {number} {error.cause} {error}")
            failed += 1
            number -= 1
            big -= 1
    ballast.unlink()
    store.commit(dict.fromkeys(b"big/%d" % i for i in range(big + 2)))
    for _ in range(5):
        number += 1
        store.commit(script.changes(number))
        say(f"acked {number}")
    store.close()
    store = SqliteStore(directory / NAME)
    good = script.number_of(store.load()) == number
    store.close()
    say("whole" if good else "wrong")
    return 0


def short(directory: Path, limit: int) -> int:
    """No file may be longer than `limit`: the kernel writes up to there, and says so. Then it may."""
    store = SqliteStore(directory / NAME)
    store.load()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    number, failed = 1, 0
    while failed < 2:
        try:
            store.commit(script.changes(number))
            say(f"acked {number}")
            number += 1
        except StorageError as error:
            say(f"failed {number} {error.cause} {error}")
            failed += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    for number in range(number, number + 5):  # noqa: B020  (goes on from there)
        store.commit(script.changes(number))
        say(f"acked {number}")
    store.close()
    return 0


def migrate(directory: Path) -> int:
    """Start as a later server does, and end."""
    from tests.disk.migration import LATER

    store = SqliteStore(directory / NAME, layout=LATER)
    store.load()
    say(f"migrated {store.migrated}")
    store.close()
    return 0


def main() -> int:
    what, directory = sys.argv[1], Path(sys.argv[2])
    try:
        if what == "write":
            return write(directory, int(sys.argv[3]), int(sys.argv[4]))
        if what == "fill":
            return fill(directory, tidy=len(sys.argv) > 3)
        if what == "short":
            return short(directory, int(sys.argv[3]))
        if what == "migrate":
            return migrate(directory)
        repair(directory / NAME)
        say("repaired")
    except StorageError as error:
        say(f"failed 0 {error.cause} {error}")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
