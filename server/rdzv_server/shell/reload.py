"""Tokens and certificates are taken anew when their files change, or on SIGHUP.

Secrets that an orchestrator mounts are exchanged without any signal, so the files are looked at as well.
What cannot be read is logged, and what was there before stays in force.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rdzv_server.shell import log

LOOK_S = 30.0
"""Between two looks at the files: a token that must go should be gone within a minute."""

_Seen = tuple[tuple[int, int, int] | None, ...]


@dataclass
class Reloadable:
    """Something that was read from files."""

    what: str
    paths: Sequence[Path]
    reload: Callable[[], None]
    """Raises ValueError, with a text for the operator, and changes nothing then."""
    seen: _Seen = ()


class Reloads:
    """Keeps several of them current.

    Args:
        items: what to keep.
    """

    def __init__(self, items: Sequence[Reloadable]) -> None:
        self._items = list(items)
        self._timer: asyncio.TimerHandle | None = None
        for item in self._items:
            item.seen = _look(item.paths)

    def start(self) -> None:
        """Look at the files from now on."""
        if self._items:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._again)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def all(self) -> None:
        """Take everything anew (SIGHUP)."""
        for item in self._items:
            item.seen = _look(item.paths)
            _reload(item)

    def changed(self) -> None:
        """Take anew what has changed."""
        for item in self._items:
            seen = _look(item.paths)
            if seen != item.seen:
                item.seen = seen
                _reload(item)

    def _again(self) -> None:
        self.changed()
        self.start()


def _reload(item: Reloadable) -> None:
    files = ", ".join(str(path) for path in item.paths)
    try:
        item.reload()
    except ValueError as error:
        log.event("reload_failed", "error", what=item.what, reason=str(error), files=files,
                  text="what was there before stays in force")  # fmt: skip
    else:
        log.event("reloaded", what=item.what, files=files)


def _look(paths: Sequence[Path]) -> _Seen:
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
