"""Ports for tests that have to name one before it is listened on.

A port that the kernel gave out and got back is given to the next who asks: in another test, in another process of
the same run. These lie below what it gives out of itself, and each process looks for them in another place.
"""

import random
import socket
from contextlib import ExitStack

LOW, HIGH = 12_000, 32_000
"""Above what services use, below where the kernel begins (32768)."""

_random = random.SystemRandom()


def free_ports(count: int) -> tuple[int, int]:
    """First and last of some neighbouring ports of 127.0.0.1 that nobody has.

    Raises:
        AssertionError: a hundred places in a row are taken.
    """
    for _ in range(100):
        low = _random.randrange(LOW, HIGH - count)
        with ExitStack() as stack:
            try:
                for port in range(low, low + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
        return low, low + count - 1
    raise AssertionError("no neighbouring free ports")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has."""
    return free_ports(1)[0]
