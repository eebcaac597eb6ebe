"""NCCL unique ids on their way through a store, recognised by their keys and their size.

torch gives each communicator one key: rank 0 of it sets 128 bytes, the others wait for them and get
them. So the server can tell who has not fetched an id yet, which is what such a job hangs on. The ids
themselves are never looked at.
"""

import re
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rdzv_proto import limits

C = TypeVar("C")

_UNIQUE_ID = re.compile(
    rb"(?:.*//)?cuda//(?:(?P<count>\d{1,18})|(?P<low>\d{1,9}):(?P<high>\d{1,9})"
    rb"|UniqueNCCLID:(?P<root>\d{1,9}))",
    re.DOTALL,
)
"""A counter for each communicator of a group, a pair of ranks for a single send and receive, or one
of several roots of a large communicator (TORCH.md 11)."""

_DEFAULT_GROUP = re.compile(rb"/default_pg/\d+//(?:cpu|cuda)//")
"""Only here are the ranks in keys those of the whole job."""

_OWN_RANK = re.compile(rb"/default_pg/\d+//(?:cpu//\d+/|cuda//UniqueNCCLID:)(?P<rank>\d{1,9})")
"""Keys that name the rank of who sets them: gloo's addresses, and ids of several roots."""

FETCHES_MAX = 1_000_000
"""Noted (key, client) pairs of one store: the largest default group a few times over."""


@dataclass(slots=True, eq=False)
class Exchange(Generic[C]):
    """One unique id."""

    key: bytes
    minter: C
    published_at: float
    attempt: int = 0
    """How often the key was set before: a second id under one key is a stale one for somebody."""
    fetched: dict[C, None] = field(default_factory=dict)
    pair: tuple[int, int] | None = None
    """The two ranks of its group that a send and receive is between."""

    @property
    def of_all(self) -> bool:
        """All ranks of the job need this id."""
        return self.pair is None and _DEFAULT_GROUP.match(self.key) is not None


class Exchanges(Generic[C]):
    """The unique ids that passed through one store, by key."""

    __slots__ = ("_fetches", "by_key")

    def __init__(self) -> None:
        self.by_key: dict[bytes, Exchange[C]] = {}
        self._fetches = 0

    def published(self, key: bytes, size: int, client: C, t: float) -> None:
        """A client set a key to a value of this size."""
        if size != limits.NCCL_ID_BYTES:
            self.deleted(key)
            return
        found = _UNIQUE_ID.fullmatch(key)
        if found is None:
            return
        pair = None if found["low"] is None else (int(found["low"]), int(found["high"]))
        old = self.by_key.pop(key, None)
        if old is not None:
            self._fetches -= len(old.fetched)
        elif len(self.by_key) >= limits.NCCL_GROUPS_MAX:
            oldest = self.by_key.pop(next(iter(self.by_key)))
            self._fetches -= len(oldest.fetched)
        attempt = 0 if old is None else old.attempt + 1
        self.by_key[key] = Exchange(key, client, t, attempt, pair=pair)

    def fetched(self, key: bytes, client: C) -> None:
        """A client was given the value of a key."""
        exchange = self.by_key.get(key)
        if (
            exchange is None
            or client is exchange.minter
            or client in exchange.fetched
            or self._fetches >= FETCHES_MAX
        ):
            return
        exchange.fetched[client] = None
        self._fetches += 1

    def clear(self) -> None:
        """Forget everything."""
        self.by_key.clear()
        self._fetches = 0

    def deleted(self, key: bytes) -> None:
        """The key is gone, and its id with it."""
        exchange = self.by_key.pop(key, None)
        if exchange is not None:
            self._fetches -= len(exchange.fetched)


def rank_told_by(key: bytes) -> int | None:
    """The global rank of a client that sets this key, if the key tells it."""
    if not key.startswith(b"/default_pg/"):
        return None
    found = _OWN_RANK.fullmatch(key)
    return None if found is None else int(found["rank"])
