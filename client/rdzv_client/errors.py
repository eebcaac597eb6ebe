"""What the client library raises. One class for each row of the protocol's error table.

RdzvError
  MalformedRequest, Unsupported, UnknownRun, NotAMember, LimitExceeded, FrameTooLarge,
  NotANumber, InternalServerError
  BarrierBroken, BarrierMismatch, BadRound
  NcclError
    IdMismatch, NcclVersionMismatch, DuplicateId, MinterLost, MintFailed, IdFailed, AlreadyUsed,
    UnroutableRoot, IdTimeout
  Final: no retry can help
    Fenced, Unauthenticated, NotPermitted, RunClosed, RunFinished, RunFailed, PolicyMismatch,
    DuplicateRank
  GenerationEnded: join again
    SessionLost, UnknownEpoch
  Timeout
    JoinTimeout, WaitTimeout, RequestTimeout, BarrierTimeout, IdTimeout
  Unreachable
    ConnectionLost, ShuttingDown, ServerBusy, NotLeader, Superseded
"""

from typing import ClassVar

from rdzv_proto.errors import ERRORS, ErrorCode, ErrorInfo, info
from rdzv_proto.messages import Error
from rdzv_proto.text import visible

_CLASSES: dict[ErrorCode, type["RdzvError"]] = {}


class RdzvError(Exception):
    """Base of all errors of this library.

    Attributes:
        message: what happened, to whom, where, since when.
        action: what to do about it.
        info: the row of the error table.
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL

    def __init__(self, message: str, action: str = "") -> None:
        self.message = message
        self.action = action or self.info.action
        text = f"{message}. {self.action} [{self.info.label}]"
        super().__init__(text.replace(".. ", ". ").replace("?. ", "? "))

    def __init_subclass__(cls) -> None:
        if "code" in cls.__dict__:
            _CLASSES[cls.code] = cls

    @property
    def info(self) -> ErrorInfo:
        """The row of the error table."""
        return ERRORS[self.code]

    def __reduce__(self) -> tuple[type["RdzvError"], tuple[str, str]]:
        return type(self), (self.message, self.action)


class Final(RdzvError):
    """No retry can help."""


class GenerationEnded(RdzvError):
    """The generation is over: join again."""

    code = ErrorCode.STALE_GENERATION


class Timeout(RdzvError, TimeoutError):
    """Something did not happen in time."""


class Unreachable(RdzvError, ConnectionError):
    """The server cannot be talked to."""


class MalformedRequest(RdzvError):
    """The server could not read a request."""

    code = ErrorCode.MALFORMED


class Unsupported(RdzvError):
    """Client and server are of versions that do not go together."""

    code = ErrorCode.UNSUPPORTED


class UnknownRun(RdzvError):
    """There is no such run."""

    code = ErrorCode.UNKNOWN_RUN


class SessionLost(GenerationEnded):
    """The server gave this node up, and its generation is over. A training process (`Client.from_env()`) may try again:
    its generation may live on, and `g.ended` says when that is over; but what it had asked for may have been done."""

    code = ErrorCode.SESSION_LOST


class UnknownEpoch(GenerationEnded):
    """The server restarted without its memory."""

    code = ErrorCode.UNKNOWN_EPOCH


class Fenced(Final):
    """A newer process took over this node id."""

    code = ErrorCode.FENCED


class RunClosed(Final):
    """The run was closed on purpose."""

    code = ErrorCode.RUN_CLOSED


class JoinTimeout(Timeout):
    """Too few nodes joined in time."""

    code = ErrorCode.JOIN_TIMEOUT


class LimitExceeded(RdzvError):
    """A limit of the server would be passed."""

    code = ErrorCode.LIMIT_EXCEEDED


class ShuttingDown(Unreachable):
    """The server is going away."""

    code = ErrorCode.SHUTTING_DOWN


class ServerBusy(Unreachable):
    """The server has no room for another connection."""

    code = ErrorCode.SERVER_BUSY


class NotLeader(Unreachable):
    """The server stands by for another one, and nobody who leads could be reached."""

    code = ErrorCode.NOT_LEADER


class InternalServerError(RdzvError):
    """A fault of the server."""

    code = ErrorCode.INTERNAL


class Unauthenticated(Final):
    """One side could not prove who it is."""

    code = ErrorCode.UNAUTHENTICATED


class NotPermitted(Final):
    """The token does not allow this."""

    code = ErrorCode.NOT_PERMITTED


class PolicyMismatch(Final):
    """This node disagrees with what the run's first node fixed."""

    code = ErrorCode.POLICY_MISMATCH


class DuplicateRank(Final):
    """Somebody else has that rank."""

    code = ErrorCode.DUPLICATE_RANK


class RunFinished(Final):
    """The run ended in success while this node was a standby."""

    code = ErrorCode.RUN_FINISHED


class RunFailed(Final):
    """Too few nodes are left, and those that are gone cannot come back."""

    code = ErrorCode.RUN_FAILED


class WaitTimeout(Timeout):
    """A key did not appear in time."""

    code = ErrorCode.WAIT_TIMEOUT


class NotAMember(RdzvError):
    """The operation is for members."""

    code = ErrorCode.NOT_A_MEMBER


class Superseded(Unreachable):
    """A newer request or connection of this process took the place."""

    code = ErrorCode.SUPERSEDED


class FrameTooLarge(RdzvError):
    """A message is longer than the protocol allows."""

    code = ErrorCode.FRAME_TOO_LARGE


class NotANumber(RdzvError):
    """The value of a key is no counter."""

    code = ErrorCode.NOT_A_NUMBER


class BarrierTimeout(Timeout):
    """Not all members of a barrier round came in time."""

    code = ErrorCode.BARRIER_TIMEOUT


class BarrierBroken(RdzvError):
    """A member that a barrier round needs cannot come any more."""

    code = ErrorCode.BARRIER_BROKEN


class BarrierMismatch(RdzvError):
    """The members of a barrier round disagree on what it is."""

    code = ErrorCode.BARRIER_MISMATCH


class BadRound(RdzvError):
    """A barrier round was named that is neither open nor remembered."""

    code = ErrorCode.BAD_ROUND


class NcclError(RdzvError):
    """The ids of a communicator cannot be had."""


class IdMismatch(NcclError):
    """The ranks of a communicator disagree on what it is."""

    code = ErrorCode.ID_MISMATCH


class NcclVersionMismatch(NcclError):
    """The ranks of a communicator use different NCCL versions."""

    code = ErrorCode.NCCL_VERSION_MISMATCH


class DuplicateId(NcclError):
    """A unique id was offered twice, or another one is there already."""

    code = ErrorCode.DUPLICATE_ID


class MinterLost(NcclError):
    """The rank that was to mint a unique id was lost before it did."""

    code = ErrorCode.MINTER_LOST


class MintFailed(NcclError):
    """The rank that was to mint a unique id could not."""

    code = ErrorCode.MINT_FAILED


class IdFailed(NcclError):
    """A rank of the communicator failed or was lost after ids were handed out."""

    code = ErrorCode.ID_FAILED


class IdTimeout(NcclError, Timeout):
    """Not all ranks asked for the id, or not all got ready, in time."""

    code = ErrorCode.ID_TIMEOUT


class AlreadyUsed(NcclError):
    """The unique id of this attempt has served its communicator."""

    code = ErrorCode.ALREADY_USED


class UnroutableRoot(NcclError):
    """The other ranks cannot reach the unique id's root."""

    code = ErrorCode.UNROUTABLE_ROOT


class ConnectionLost(Unreachable):
    """The server could not be reached for too long."""

    code = ErrorCode.CONNECTION_LOST


class RequestTimeout(Timeout):
    """No answer came in time."""

    code = ErrorCode.REQUEST_TIMEOUT


def from_reply(error: Error) -> RdzvError:
    """The exception for an error reply; a code of a newer server reads as its nearest kind."""
    kind = _CLASSES[info(error.code).code]
    return kind(visible(error.message), visible(error.action))
