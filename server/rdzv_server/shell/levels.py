"""The level of the log, from a file that may change while the server runs.

Neither flags nor the environment of a process can be changed from outside; a file can, and SIGHUP makes the server read
it again, as it does with tokens and certificates.
"""

import stat
from pathlib import Path

from rdzv_proto import small_file
from rdzv_proto.text import visible
from rdzv_server.config import Config
from rdzv_server.shell import log
from rdzv_server.shell.reload import Reloadable

BYTES_MAX = 64
"""A level is one word; more of a wrong file need not be read, nor repeated in the log."""


class LevelError(Exception):
    """The file cannot be used; the text is for the operator."""


class Levels:
    """Keeps the log at the level that the configuration names.

    Args:
        config: of the server. Its `log_level` counts where there is no file, or nothing in it.

    Raises:
        LevelError: what is in the file is no level, or it cannot be read.
    """

    def __init__(self, config: Config) -> None:
        self._otherwise = config.log_level
        self._path = Path(config.log_level_file) if config.log_level_file else None
        try:
            level = self._wanted()
        except ValueError as error:
            raise LevelError(str(error)) from None
        log.set_up(config.log_format, level)

    def reloadable(self) -> list[Reloadable]:
        """What keeps it current; empty if there is no file."""
        if self._path is None:
            return []
        return [Reloadable("log level", [self._path], self.reload)]

    def reload(self) -> None:
        """Read the file again. The change is told at whichever of both levels lets the line through.

        Raises:
            ValueError: it is no level. That of before stays.
        """
        was, now = log.level(), self._wanted()
        if was == now:
            return
        louder = log.LEVELS[now] < log.LEVELS[was]
        if louder:
            log.set_level(now)
        log.event("log_level", was=was, now=now)
        log.set_level(now)

    def _wanted(self) -> str:
        text = "" if self._path is None else _read(self._path)
        if not text:
            return self._otherwise
        if text.lower() not in log.LEVELS:
            shown = visible(text, BYTES_MAX)
            raise ValueError(
                f"log level file {self._path}: {shown!r} is no level; it must be {', '.join(log.LEVELS)}"
            )
        return text.lower()


def _read(path: Path) -> str:
    """What is in the file; empty if there is none."""
    try:
        content, mode = small_file.read(path, BYTES_MAX)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ValueError(f"log level file {path}: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise ValueError(f"log level file {path}: that is no ordinary file")
    return content.decode("utf-8", "replace").strip()
