"""The files of a database: their names, their rights, their one owner, and how they get to the disk."""

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path

from rdzv_server.storage import faults
from rdzv_server.storage.base import StorageError

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

_CHUNK = 1 << 20
_PID_BYTES_MAX = 20


class Files:
    """Names of all files of one database.

    Args:
        path: of the database; as the operator wrote it, for messages.
    """

    def __init__(self, path: Path) -> None:
        self.database = str(path)
        self.directory = path.parent
        self.wal = f"{path}-wal"
        self.shm = f"{path}-shm"
        self.acked = f"{path}-acked"
        self.lock = f"{path}-lock"
        self.new = f"{path}-new"
        self.repaired = f"{path}-repaired"

    @property
    def of_new(self) -> list[str]:
        """What a database in the making may have left behind."""
        tails = ("", "-journal", "-wal", "-shm")
        return [*(self.new + tail for tail in tails), temporary(self.acked)]

    @property
    def kept(self) -> list[str]:
        """The files that hold what was stored. Not the shared memory, which SQLite makes anew."""
        return [self.wal, self.acked, self.database]


class Lock:
    """The right to use a database, held as long as this lives. The kernel gives it back when the
    process ends, however it ends.

    Raises:
        StorageError: another server has it.
    """

    def __init__(self, files: Files) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(files.lock, flags, FILE_MODE)
        except OSError as error:
            raise faults.translate(error, files.lock, "open the lock file") from None
        try:
            _own(self._fd, files.lock)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            # Only for the message to a second server: a full disk must not keep us from starting.
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
        except StorageError:
            os.close(self._fd)
            raise
        except OSError as error:
            refusal = self._refusal(files, error)
            os.close(self._fd)
            raise refusal from None

    def release(self) -> None:
        """Let others have it. The file stays: removing it would let two servers lock two files of the
        same name."""
        # Said aloud: a child that another thread is just starting has a copy of the descriptor.
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)

    def _refusal(self, files: Files, error: OSError) -> StorageError:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return faults.translate(error, files.lock, "lock the database")
        owner = ""
        with contextlib.suppress(OSError, ValueError):
            owner = f" (process {int(os.pread(self._fd, _PID_BYTES_MAX, 0))})"
        return StorageError(
            f"{files.database} is in use by another server{owner}: stop that one, or take another "
            "directory",
            "owned",
        )


def prepare_directory(directory: Path) -> None:
    """Make the directory if it is not there; one that is there keeps the rights it has.

    Raises:
        StorageError: it cannot be made, or is none.
    """
    try:
        if not directory.is_dir():
            directory.parent.mkdir(parents=True, exist_ok=True)
            directory.mkdir(DIRECTORY_MODE)
            os.chmod(directory, DIRECTORY_MODE)
            sync_directory(directory.parent)
    except OSError as error:
        raise faults.translate(error, str(directory), "make the data directory") from None


def check(path: str) -> bool:
    """Look at a file before it is used, and close it to other users.

    Never while SQLite has the file open: closing any descriptor of a file drops all of the process's
    locks on it.

    Returns:
        Whether it is there.

    Raises:
        StorageError: it is a link, no plain file, or somebody else's.
    """
    try:
        # O_NONBLOCK: a named pipe in its place must not make the server wait for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise faults.translate(error, path, "open it") from None
    try:
        _own(fd, path)
    finally:
        os.close(fd)
    return True


def settle(path: str) -> None:
    """Bring to the disk what a file holds, by writing the same bytes once more.

    After a failed fsync the kernel takes the pages for clean, though the disk never got them: they are
    read as if all were well, and no later fsync writes them. Whoever goes on from such a file has to
    write it again first. The same is true after a crash, of which nobody knows what preceded it.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise faults.translate(error, path, "open it") from None
    try:
        at = 0
        while chunk := os.pread(fd, _CHUNK, at):
            write_at(fd, chunk, at)
            at += len(chunk)
        os.fsync(fd)
    except OSError as error:
        raise faults.translate(error, path, "write it") from None
    finally:
        os.close(fd)


def write_at(fd: int, data: bytes, at: int) -> None:
    """Write all of it, or raise OSError."""
    written = os.pwrite(fd, data, at)
    if written != len(data):
        # The kernel says why only when nothing at all was written.
        written += os.pwrite(fd, data[written:], at + written)
    if written != len(data):
        raise OSError(errno.EIO, "short write")


def replace(path: str, data: bytes) -> None:
    """Write a whole file anew, so that after a crash it is the old one or the new one. The caller
    syncs the directory.

    Raises:
        OSError: it cannot be written.
    """
    new = temporary(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    fd = create(new)
    try:
        write_at(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(new, path)


def create(path: str) -> int:
    """Make a file that was not there, for nobody else, whatever the umask."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, FILE_MODE)
    os.fchmod(fd, FILE_MODE)
    return fd


def sync(path: str) -> None:
    """Bring a file to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory to the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(paths: list[str]) -> None:
    """Remove what is there of these."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def temporary(path: str) -> str:
    """The name of a file in the making."""
    return f"{path}.tmp"


def _own(fd: int, path: str) -> None:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(f"{path} is not a plain file: remove it", "access")
    if status.st_uid != os.geteuid():
        raise StorageError(
            f"{path} belongs to user {status.st_uid}, and the server runs as {os.geteuid()}: run it as "
            "that user, or change the owner of the files",
            "access",
        )
    if stat.S_IMODE(status.st_mode) != FILE_MODE:
        os.fchmod(fd, FILE_MODE)
