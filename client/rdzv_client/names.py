"""How a node calls itself."""

import os
import re
import secrets
import socket

from rdzv_proto import __version__, limits
from rdzv_proto.messages import PRINTABLE

CLIENT = f"rdzv {__version__}"

_PRINTABLE = re.compile(PRINTABLE)


def host_name() -> str:
    """This machine's name, without asking any name service."""
    return socket.gethostname()[: limits.NAME_CHARS_MAX] or "localhost"


def unique_node_id(name: str) -> str:
    """An id no other process has: two agents on one host (or in containers with equal names and
    pids) never take each other's place by accident."""
    tail = f"-{os.getpid()}-{secrets.token_hex(3)}"
    return name[: limits.NAME_CHARS_MAX - len(tail)] + tail


def checked(text: str, what: str) -> str:
    """A name as the protocol allows it.

    Raises:
        ValueError: naming what is wrong.
    """
    if not 0 < len(text) <= limits.NAME_CHARS_MAX:
        raise ValueError(
            f"{what} must have 1 to {limits.NAME_CHARS_MAX} characters, {text[:40]!r} has {len(text)}"
        )
    if not _PRINTABLE.fullmatch(text):
        raise ValueError(f"{what} must not contain control characters: {text!r}")
    return text
