"""Reading a small file that somebody named: never more of it than it may hold, and never held up by it."""

import os
import stat


def read(path: str | os.PathLike[str], bytes_max: int) -> tuple[bytes, int]:
    """What a file holds, and its mode as `fstat` tells it. What is no ordinary file is not read.

    Args:
        path: of the file.
        bytes_max: that are read at most.

    Raises:
        OSError: it cannot be read.
    """
    # Without O_NONBLOCK a FIFO of that name would hold this process for ever.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(fd).st_mode
        return os.read(fd, bytes_max) if stat.S_ISREG(mode) else b"", mode
    finally:
        os.close(fd)
