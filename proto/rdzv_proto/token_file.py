"""Reading a token file: the one place, for both sides."""

from rdzv_proto import auth, small_file
from rdzv_proto.auth import Token


def load(path: str) -> list[Token]:
    """The tokens of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: as `auth.read`.
    """
    content, mode = small_file.read(path, auth.FILE_BYTES_MAX + 1)
    return auth.read(content, mode, path)
