"""Requests that have no answer yet, and what the server may forget of the others."""

from collections.abc import Iterator

from rdzv_proto.errors import ErrorCode, Retry, info
from rdzv_proto.messages import AnyRequest, Error, Finished, Join, Leave

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
        self._unsent: set[int] = set()
        self._answered = self._answered_bytes = 0

    def next_id(self) -> int:
        """A new request id."""
        self._last += 1
        return self._last

    def add(self, request_id: int, message: AnyRequest) -> None:
        """A request that must be answered, on this connection or a later one."""
        self._requests[request_id] = message
        self._unsent.add(request_id)

    def sent(self, request_id: int) -> None:
        """It went to a server."""
        self._unsent.discard(request_id)

    def take(self, request_id: int) -> AnyRequest | None:
        """Its answer came, or nobody waits for it any more; None if it was not there."""
        message = self._requests.pop(request_id, None)
        self._unsent.discard(request_id)
        self._answered += message is not None
        return message

    def received(self, frame_bytes: int) -> None:
        """So many bytes came from the server."""
        self._answered_bytes += frame_bytes

    def __iter__(self) -> Iterator[tuple[int, AnyRequest]]:
        return iter(list(self._requests.items()))

    def without_answer(self, request_id: int, why: Error) -> Error:
        """What a request is told that never gets an answer. One that was sent may have been done: `why` is told
        of what came after it, and must not say that it certainly was not (`definite` in the table of errors), or
        somebody does it twice. For those that change nothing, or may be repeated, that makes no difference."""
        message, row = self._requests[request_id], info(why.code)
        harmless = not message.recorded or isinstance(message, Join | Leave | Finished)
        if not row.definite or harmless or request_id in self._unsent:
            return why
        rejoin = row.retry is Retry.REJOIN
        return Error(
            code=ErrorCode.SESSION_LOST if rejoin else ErrorCode.CONNECTION_LOST,
            message=f"{why.message}; `{message.op}` had been sent before, and may have been done",
            action=why.action or row.action,
        )

    def acknowledge(self) -> int:
        """All ids up to this one are answered: what a heartbeat tells the server."""
        self._answered = self._answered_bytes = 0
        return min(self._requests, default=self._last + 1) - 1

    @property
    def acknowledgement_due(self) -> bool:
        """So many answers came since the last heartbeat that the server's window fills up."""
        return self._answered >= ACKNOWLEDGE_EVERY or self._answered_bytes >= ACKNOWLEDGE_BYTES
