"""Which of the servers is tried next: those that were named, in turn, and the one that leads."""

from collections.abc import Sequence

from rdzv_client import endpoint
from rdzv_client.endpoint import Endpoint


class Targets:
    """The servers of one client. Pure.

    Args:
        endpoints: as they were named; at least one.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = list(endpoints)
        self._turn = 0
        self._at = self._endpoints[0]
        self._first: Endpoint | None = None
        """Tried before it is anybody's turn."""

    def next(self) -> Endpoint:
        """The server for the attempt that begins now."""
        to, self._first = self._first, None
        if to is None:
            to = self._endpoints[self._turn % len(self._endpoints)]
            self._turn += 1
        self._at = to
        return to

    def welcomed(self) -> None:
        """The last one let us in. When contact to it breaks it is asked first: mostly only the connection
        has gone, and the others would send us back to it."""
        self._first = self._at

    def silent(self) -> None:
        """The last one says nothing any more: it is the others' turn before its own."""
        self._first = None
        if self._endpoints[self._turn % len(self._endpoints)] == self._at:
            self._turn += 1

    def redirected(self, leader: str) -> None:
        """The last one stands by, and named who leads (HOST:PORT). That one is asked once; if it does not
        answer, it is the others' turn again, who will know its successor."""
        try:
            self._first = endpoint.parse(leader)[0]
        except ValueError:
            self._first = None  # a name that cannot be one; the turn goes on
