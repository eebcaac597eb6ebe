"""Clients in a forked child: none of them works there, and none keeps a connection of its parent open."""

import os
import weakref
from typing import Protocol


class Owned(Protocol):
    """What belongs to the process that made it."""

    def forked(self) -> None:
        """This process is a child of the one that made it."""


_owned: "weakref.WeakSet[Owned]" = weakref.WeakSet()


def tell(one: Owned) -> None:
    """Let it know when this process is forked, in the child, as long as it lives."""
    _owned.add(one)


def _after_fork() -> None:
    for one in list(_owned):
        one.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
