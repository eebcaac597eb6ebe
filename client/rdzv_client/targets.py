"""Which of the servers is tried next: those that were named, in turn, and the one that leads."""

from collections.abc import Sequence

from rdzv_client import endpoint
from rdzv_client.endpoint import Endpoint
from rdzv_client.reconnect import Reconnect

Address = tuple[str, int]
"""Of a server: numeric host and port."""


class Targets:
    """The servers of one client. Pure.

    Args:
        endpoints: as they were named; at least one.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = list(endpoints)
        self._turn = 0
        self._at = self._endpoints[0]
        self._tried: Endpoint | None = None
        """The one that came to nothing last: it is another one's turn now, if there is another."""
        self._first: Endpoint | None = None
        """Tried before it is anybody's turn."""
        self._reached: Address = ("", 0)
        self._fell_silent: Address | None = None
        """The one that said nothing any more; until one lets us in."""

    def reached(self, host: str) -> bool:
        """The attempt has led to a connection.

        Args:
            host: the address at the other end. The server that fell silent may be named otherwise by another
                one than by the user.

        Returns:
            True if this server has just fallen silent, and another one says that it leads: that one may not
            have noticed yet, and there is no time to wait long.
        """
        self._reached = host, self._at.port
        return self._reached == self._fell_silent and len(self._endpoints) > 1

    def next(self, again: Reconnect) -> Endpoint:
        """The server for the attempt that begins now.

        Args:
            again: knows how the last connection ended; what it says of that is used up.
        """
        if again.leader:
            self._redirected(again.leader)
        elif again.silent:
            self._silent()
        again.leader, again.silent = "", False
        to, self._first = self._first, None
        if to is None:
            self._pass_by(self._tried)
            to = self._endpoints[self._turn % len(self._endpoints)]
            self._turn += 1
        self._at = self._tried = to
        return to

    def welcomed(self) -> None:
        """The last one let us in. When contact to it breaks it is asked first: mostly only the connection
        has gone, and the others would send us back to it."""
        self._first, self._tried, self._fell_silent = self._at, None, None

    def _silent(self) -> None:
        """The last one says nothing any more: it is the others' turn before its own."""
        self._first, self._tried, self._fell_silent = None, self._at, self._reached

    def _redirected(self, leader: str) -> None:
        """The last one stands by, and named who leads (HOST:PORT). That one is asked once; if it does not
        answer, it is the others' turn again, who will know its successor."""
        try:
            self._first = endpoint.parse(leader)[0]
        except ValueError:
            self._first = None  # a name that cannot be one; the turn goes on

    def _pass_by(self, one: Endpoint | None) -> None:
        """If it is the turn of this one, it is the next one's."""
        whose = self._endpoints[self._turn % len(self._endpoints)]
        if one is not None and whose[:2] == one[:2]:  # a port is one, whether it was written or not
            self._turn += 1
