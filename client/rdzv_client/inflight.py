"""Requests that have no answer yet, and what the server may forget of the others."""

from collections.abc import Iterator

from rdzv_proto.messages import AnyRequest

ACKNOWLEDGE_EVERY = 256
"""Answers after which the server is told that it may forget them; its window holds 1,024."""


ACKNOWLEDGE_BYTES = 1 << 20
"""Bytes of answers after which it is told so as well: gathers at barriers may be large, and the server
keeps each one for a retry until then."""


class InFlight:
    """Ids and requests of one session, in the order in which they were made."""

    def __init__(self) -> None:
        self._last = 0
        self._requests: dict[int, AnyRequest] = {}
        self._answered = self._answered_bytes = 0

    def next_id(self) -> int:
        """A new request id."""
        self._last += 1
        return self._last

    def add(self, request_id: int, message: AnyRequest) -> None:
        """A request that must be answered, on this connection or a later one."""
        self._requests[request_id] = message

    def take(self, request_id: int) -> AnyRequest | None:
        """Its answer came, or nobody waits for it any more; None if it was not there."""
        message = self._requests.pop(request_id, None)
        self._answered += message is not None
        return message

    def received(self, frame_bytes: int) -> None:
        """So many bytes came from the server."""
        self._answered_bytes += frame_bytes

    def __iter__(self) -> Iterator[tuple[int, AnyRequest]]:
        return iter(list(self._requests.items()))

    def acknowledge(self) -> int:
        """All ids up to this one are answered: what a heartbeat tells the server."""
        self._answered = self._answered_bytes = 0
        return min(self._requests, default=self._last + 1) - 1

    @property
    def acknowledgement_due(self) -> bool:
        """So many answers came since the last heartbeat that the server's window fills up."""
        return self._answered >= ACKNOWLEDGE_EVERY or self._answered_bytes >= ACKNOWLEDGE_BYTES
