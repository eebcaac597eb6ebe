"""A store in a directory of its own, and what a crash would leave of it."""

import shutil
from pathlib import Path

from rdzv_server.storage.sqlite import SqliteStore

NAME = "rdzv.db"


def opened(directory: Path) -> tuple[SqliteStore, dict[bytes, bytes]]:
    """A store that is loaded, and what it held."""
    store = SqliteStore(directory / NAME)
    try:
        return store, store.load()
    except BaseException:
        store.close()
        raise


def held(directory: Path) -> dict[bytes, bytes]:
    """What a server would find."""
    store, records = opened(directory)
    store.close()
    return records


def crashed(source: Path, target: Path) -> Path:
    """The files as they are, elsewhere."""
    target.mkdir()
    for path in source.iterdir():
        if path.name in (NAME, f"{NAME}-wal", f"{NAME}-acked"):
            shutil.copyfile(path, target / path.name)
    return target


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
