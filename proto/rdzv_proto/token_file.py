"""Reading a token file: the one place, for both sides."""

import os

from rdzv_proto import auth
from rdzv_proto.auth import Token


def load(path: str) -> list[Token]:
    """The tokens of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: as `auth.read`.
    """
    # Without O_NONBLOCK a FIFO of that name would hold this process for ever.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        mode = os.fstat(fd).st_mode
        content = file.read(auth.FILE_BYTES_MAX + 1)
    return auth.read(content or b"", mode, path)
