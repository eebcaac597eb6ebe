"""How a rule says no: an exception that becomes an `error` reply."""

from rdzv_proto.errors import ERRORS, ErrorCode
from rdzv_proto.messages import Error


class Refused(Exception):  # noqa: N818  (a refusal is an answer, not a fault)
    """A request cannot be done. Nothing was changed.

    Args:
        code: row of the error table.
        message: what, who, where, since when.
        action: what to do; the table's own advice if empty.
    """

    def __init__(
        self, code: ErrorCode, message: str, action: str = "", retry_after_ms: int = 0
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.action = action or ERRORS[code].action
        self.retry_after_ms = retry_after_ms

    recorded = True
    """The answer is kept for a retry, if those of such requests are."""

    def reply(self) -> Error:
        """The refusal as a message."""
        return Error(
            code=self.code,
            message=self.message,
            action=self.action,
            retry_after_ms=self.retry_after_ms,
        )


class RefusedUnread(Refused):
    """A request was not even looked at, so no record of it is kept: nothing bounds how many there are."""

    recorded = False
