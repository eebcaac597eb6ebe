"""What a failing file, disk or database is called: errors of the system and of SQLite as `StorageError`."""

import errno
import os
import sqlite3

from rdzv_server.storage.base import Cause, StorageError

REPAIR = "restore a backup of all files of the database, or keep what is whole with `rdzv-server --repair`"

_ERRNOS: dict[int, Cause] = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EACCES: "access",
    errno.EPERM: "access",
    errno.EROFS: "access",
    errno.ELOOP: "access",
    errno.EEXIST: "access",
    errno.ENOTDIR: "access",
}

_CODES: dict[int, Cause] = {
    3: "access",  # SQLITE_PERM
    5: "busy",  # SQLITE_BUSY
    6: "busy",  # SQLITE_LOCKED
    8: "access",  # SQLITE_READONLY
    10: "io",  # SQLITE_IOERR
    11: "corrupt",  # SQLITE_CORRUPT
    13: "full",  # SQLITE_FULL
    14: "access",  # SQLITE_CANTOPEN
    26: "corrupt",  # SQLITE_NOTADB
}

_WORDS: tuple[tuple[str, Cause], ...] = (
    ("is full", "full"),
    ("disk i/o", "io"),
    ("malformed", "corrupt"),
    ("not a database", "corrupt"),
    ("locked", "busy"),
    ("readonly", "access"),
    ("unable to open", "access"),
)
"""SQLite's own texts. Python 3.10 does not hand on the code."""

_ADVICE: dict[Cause, str] = {
    "full": "make room; it goes on by itself",
    "io": "see the kernel's log about the disk; it is tried again on the next change",
    "corrupt": REPAIR,
    "busy": "end the other program that has the file open (`fuser` names it)",
    "access": "the server's user must own the files and may write in their directory",
}


def translate(error: sqlite3.Error | OSError, path: str, doing: str) -> StorageError:
    """The same for operators.

    Args:
        error: what was raised.
        path: of the file, or of the database it belongs to.
        doing: what was tried, as in "cannot `doing`".
    """
    if isinstance(error, OSError):
        cause = _ERRNOS.get(error.errno or 0, "io")
        why = "is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)
    else:
        cause = _of_sqlite(error)
        why = str(error)
    if cause == "io" and _no_room(path):
        cause = "full"
    return StorageError(f"{path}: cannot {doing}: {why}: {_ADVICE[cause]}", cause)


def corrupt(path: str, what: str) -> StorageError:
    """Something is not as it was written."""
    return StorageError(f"{path}: {what}: {REPAIR}", "corrupt")


def lost(path: str, what: str) -> StorageError:
    """What is there is older than what was acknowledged."""
    return StorageError(f"{path}: {what}: {REPAIR}", "lost")


def _of_sqlite(error: sqlite3.Error) -> Cause:
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int):
        # What SQLite calls an error of the program (1, and others that are not listed) comes of a
        # statement that does not fit the tables: ours do, so the tables are not ours.
        return _CODES.get(code & 0xFF, "corrupt")
    text = str(error).lower()
    return next((cause for words, cause in _WORDS if words in text), "corrupt")


def _no_room(path: str) -> bool:
    """SQLite calls some failures for want of space failures of the disk."""
    try:
        return os.statvfs(os.path.dirname(path) or ".").f_bavail == 0
    except OSError:
        return False
