"""The error table. A code on the wire, what it means, and what the one who gets it should do.

`definite` says whether the operation certainly did *not* happen; only then may a caller repeat it
under a new request id. What was under way when its session ended is answered with why that ended, so those
codes say nothing of it. Exception classes in `rdzv_client.errors` and the table in
`proto/PROTOCOL.md` come from here. Codes are never reused.
"""

import enum
from typing import NamedTuple


class Retry(enum.Enum):
    """What the caller may do after an error."""

    NO = "no"
    """Final: the same request can never succeed."""
    SAME = "same"
    """Send the same request again, under the same request id."""
    LATER = "later"
    """Try again after a pause."""
    REJOIN = "rejoin"
    """The generation or the session is over; join again."""


class ErrorCode(enum.IntEnum):
    """Numbers of the errors on the wire. See `ERRORS` for what each one means."""

    MALFORMED = 1
    UNSUPPORTED = 2
    UNKNOWN_RUN = 3
    SESSION_LOST = 4
    STALE_GENERATION = 5
    FENCED = 6
    RUN_CLOSED = 7
    JOIN_TIMEOUT = 8
    BARRIER_TIMEOUT = 9
    BARRIER_MISMATCH = 10
    LIMIT_EXCEEDED = 11
    SHUTTING_DOWN = 12
    INTERNAL = 13
    UNAUTHENTICATED = 14
    UNKNOWN_EPOCH = 15
    BAD_ROUND = 16
    POLICY_MISMATCH = 17
    DUPLICATE_RANK = 18
    RUN_FINISHED = 19
    RUN_FAILED = 20
    WAIT_TIMEOUT = 21
    NOT_A_MEMBER = 22
    SUPERSEDED = 23
    FRAME_TOO_LARGE = 24
    NOT_A_NUMBER = 25
    BARRIER_BROKEN = 26
    ID_MISMATCH = 27
    NCCL_VERSION_MISMATCH = 28
    DUPLICATE_ID = 29
    MINTER_LOST = 30
    MINT_FAILED = 31
    ID_FAILED = 32
    ID_TIMEOUT = 33
    ALREADY_USED = 34
    UNROUTABLE_ROOT = 35
    SERVER_BUSY = 36
    NOT_PERMITTED = 37
    NOT_LEADER = 38
    CONNECTION_LOST = 101
    REQUEST_TIMEOUT = 102


class ErrorInfo(NamedTuple):
    """One row of the table."""

    code: ErrorCode
    definite: bool
    """The operation certainly did not happen."""
    retry: Retry
    meaning: str
    """When it occurs, in one sentence."""
    action: str
    """What the one who reads it should do."""
    torch: str
    """The exception of `torch.distributed.elastic.rendezvous` that torchrun users see."""

    @property
    def label(self) -> str:
        """`RDZV-E008`: what error texts end with, so that it can be searched for."""
        return f"RDZV-E{self.code.value:03d}"


_STATE, _CONNECTION = "RendezvousStateError", "RendezvousConnectionError"
_CLOSED, _TIMEOUT = "RendezvousClosedError", "RendezvousTimeoutError"
_C = ErrorCode

ERRORS: dict[ErrorCode, ErrorInfo] = {
    row.code: row
    for row in (
        ErrorInfo(
            _C.MALFORMED,
            True,
            Retry.NO,
            "The bytes are no message of this protocol, or a field is out of its range.",
            "Report it: a client library never sends such a request.",
            _STATE,
        ),
        ErrorInfo(
            _C.UNSUPPORTED,
            True,
            Retry.NO,
            "The protocol version or the operation is not known to the server.",
            "Upgrade the older side; both versions are in the message.",
            _CONNECTION,
        ),
        ErrorInfo(
            _C.UNKNOWN_RUN,
            True,
            Retry.NO,
            "No run of that name is known: it never began, or it ended and was forgotten.",
            "Check the run id against `rdzv status`.",
            _STATE,
        ),
        ErrorInfo(
            _C.SESSION_LOST,
            False,
            Retry.REJOIN,
            "The session is over: the node was silent for its whole lease, or its connection was "
            "gone for longer than the reconnect grace.",
            "Join again; the client library does so by itself.",
            _STATE,
        ),
        ErrorInfo(
            _C.STALE_GENERATION,
            True,
            Retry.REJOIN,
            "The request names a generation that is not the live one.",
            "Join again and use the new generation.",
            _STATE,
        ),
        ErrorInfo(
            _C.FENCED,
            False,
            Retry.NO,
            "A newer process took over this node id; this one may never act for it again.",
            "Stop this process, or give the two processes different node ids.",
            _STATE,
        ),
        ErrorInfo(
            _C.RUN_CLOSED,
            True,
            Retry.NO,
            "The run was closed on purpose and refuses joins for its keep time.",
            "Use another run id, or wait until the keep time is over.",
            _CLOSED,
        ),
        ErrorInfo(
            _C.JOIN_TIMEOUT,
            True,
            Retry.LATER,
            "Too few nodes joined within `join_timeout`.",
            "Start the missing nodes, raise join_timeout, or allow fewer nodes.",
            _TIMEOUT,
        ),
        ErrorInfo(
            _C.LIMIT_EXCEEDED,
            True,
            Retry.NO,
            "A limit of the server would be passed (runs, members, keys, bytes, parked requests).",
            "Ask for less; the limit and its value are in the message.",
            _STATE,
        ),
        ErrorInfo(
            _C.SHUTTING_DOWN,
            True,
            Retry.LATER,
            "The server is shutting down and lets nobody in; requests of sessions wait for the next server.",
            "Reconnect after the time given; the client library does so by itself.",
            _CONNECTION,
        ),
        ErrorInfo(
            _C.INTERNAL,
            False,
            Retry.SAME,
            "A fault of the server.",
            "Report it with the server's log.",
            _STATE,
        ),
        ErrorInfo(
            _C.UNAUTHENTICATED,
            False,
            Retry.NO,
            "One side could not prove who it is: a token or certificate that is missing, wrong, "
            "expired or not good for this run or node, or a server that does not know the token.",
            "Give the client the server's token (--token-file, RDZV_TOKEN_FILE, "
            "--rdzv-conf=token_file=FILE), and a certificate for its node id where TLS asks for one.",
            _CONNECTION,
        ),
        ErrorInfo(
            _C.UNKNOWN_EPOCH,
            False,
            Retry.REJOIN,
            "The server restarted without its memory: every session and generation of before "
            "is over.",
            "Join again; the client library does so by itself.",
            _STATE,
        ),
        ErrorInfo(
            _C.POLICY_MISMATCH,
            True,
            Retry.NO,
            "The join disagrees with what the run's first node fixed (min, max, node unit, worker "
            "store; for run `none` also the owner).",
            "Start all nodes of a run with the same --nnodes and --rdzv-conf.",
            _STATE,
        ),
        ErrorInfo(
            _C.DUPLICATE_RANK,
            True,
            Retry.NO,
            "Somebody else has that rank: a rank hint, a worker's rank at a barrier, or a rank of a "
            "communicator that is claimed twice or outside its size.",
            "Give each its own rank; for nodes --rdzv-conf=rank=K, or none at all.",
            _STATE,
        ),
        ErrorInfo(
            _C.RUN_FINISHED,
            True,
            Retry.NO,
            "The run ended in success while this node was waiting as a standby.",
            "Nothing: the job is done.",
            _CLOSED,
        ),
        ErrorInfo(
            _C.RUN_FAILED,
            True,
            Retry.NO,
            "Nodes that cannot come back (failed or finished) leave fewer than the minimum.",
            "Look at the node that is named; restart the job when it is mended.",
            _CLOSED,
        ),
        ErrorInfo(
            _C.WAIT_TIMEOUT,
            True,
            Retry.LATER,
            "A key did not appear in time.",
            "Look at the node that should have set it; the missing keys are named.",
            _TIMEOUT,
        ),
        ErrorInfo(
            _C.NOT_A_MEMBER,
            True,
            Retry.NO,
            "The operation is for members of a run (or of the generation), and this session is "
            "none.",
            "Join first.",
            _STATE,
        ),
        ErrorInfo(
            _C.SUPERSEDED,
            True,
            Retry.NO,
            "A newer connection or a newer request of the same process took this one's place.",
            "Nothing: the newer one goes on.",
            _CONNECTION,
        ),
        ErrorInfo(
            _C.FRAME_TOO_LARGE,
            True,
            Retry.NO,
            "A frame is longer than the limit; the connection is closed without reading it.",
            "Send smaller values; the limit is in the message.",
            _STATE,
        ),
        ErrorInfo(
            _C.NOT_A_NUMBER,
            True,
            Retry.NO,
            "`kv_add` on a value that is no decimal number of 64 bits.",
            "Use another key for the counter.",
            _STATE,
        ),
        ErrorInfo(
            _C.BARRIER_TIMEOUT,
            True,
            Retry.LATER,
            "A barrier round was not complete in time; the missing are named. Every member gets the "
            "same decision.",
            "Look at the members that are named; the next call begins a new round.",
            _TIMEOUT,
        ),
        ErrorInfo(
            _C.BARRIER_BROKEN,
            True,
            Retry.LATER,
            "A barrier round cannot be completed any more: a member it needs was lost, or has "
            "finished. Every member gets the same decision.",
            "Leave out the one that is named, or wait for the generation's end and join again.",
            _STATE,
        ),
        ErrorInfo(
            _C.BARRIER_MISMATCH,
            True,
            Retry.NO,
            "The members of a barrier round disagree on who takes part or on what it is; the round "
            "fails for all of them.",
            "Call the barrier with the same arguments everywhere, or use another name.",
            _STATE,
        ),
        ErrorInfo(
            _C.BAD_ROUND,
            True,
            Retry.NO,
            "A barrier round was named that is neither open nor remembered.",
            "Leave the round to the server.",
            _STATE,
        ),
        ErrorInfo(
            _C.ID_MISMATCH,
            True,
            Retry.NO,
            "The ranks of a communicator disagree on its size, its number of ids or its minter. NCCL "
            "itself would hang.",
            "Ask with the same arguments on all ranks.",
            _STATE,
        ),
        ErrorInfo(
            _C.NCCL_VERSION_MISMATCH,
            True,
            Retry.NO,
            "The ranks of a communicator use different NCCL versions.",
            "Install the same NCCL on all nodes; both versions are in the message.",
            _STATE,
        ),
        ErrorInfo(
            _C.DUPLICATE_ID,
            True,
            Retry.NO,
            "A unique id was offered twice, or another one is there already. An id is good for one "
            "communicator only.",
            "Mint a new id for each communicator.",
            _STATE,
        ),
        ErrorInfo(
            _C.MINTER_LOST,
            True,
            Retry.LATER,
            "The rank that was to mint a unique id was lost before it did.",
            "Wait for the generation's end and join again; the new one has ids of its own.",
            _STATE,
        ),
        ErrorInfo(
            _C.MINT_FAILED,
            True,
            Retry.LATER,
            "The rank that was to mint a unique id could not.",
            "Mend what the message names (library, interface) and ask again: that is a new attempt.",
            _STATE,
        ),
        ErrorInfo(
            _C.ID_FAILED,
            True,
            Retry.LATER,
            "The communicator did not come about: one of its ranks failed or was lost after ids were "
            "handed out.",
            "Abort the communicator's init; ask again (a new attempt), or join again.",
            _STATE,
        ),
        ErrorInfo(
            _C.ID_TIMEOUT,
            True,
            Retry.LATER,
            "Not all ranks of a communicator asked for its id, or not all got ready, in time; the "
            "message lists them.",
            "Look at the ranks that are named.",
            _TIMEOUT,
        ),
        ErrorInfo(
            _C.ALREADY_USED,
            True,
            Retry.NO,
            "The unique id of this attempt has served its communicator; a second use would hang.",
            "Ask for the next attempt.",
            _STATE,
        ),
        ErrorInfo(
            _C.UNROUTABLE_ROOT,
            True,
            Retry.NO,
            "The unique id's root cannot be reached by the other ranks: NCCL_COMM_ID is set on the "
            "minter, or NCCL chose a loopback interface.",
            "Unset NCCL_COMM_ID; set NCCL_SOCKET_IFNAME on the minter to the right interface.",
            _STATE,
        ),
        ErrorInfo(
            _C.SERVER_BUSY,
            True,
            Retry.LATER,
            "The server has as many connections as its limit of open files allows.",
            "Raise the limit of open files of rdzv-server (`ulimit -n`, LimitNOFILE); the client "
            "library tries again by itself.",
            _CONNECTION,
        ),
        ErrorInfo(
            _C.NOT_PERMITTED,
            True,
            Retry.NO,
            "The token does not allow this operation.",
            "Use a token whose scope (read, join, admin) includes it.",
            _CONNECTION,
        ),
        ErrorInfo(
            _C.NOT_LEADER,
            True,
            Retry.LATER,
            "This server stands by: another one of its cluster leads, or none does yet.",
            "Nothing: the client library follows to the leader. If none is named for long, look at etcd and "
            "at the log of the servers.",
            _CONNECTION,
        ),
        ErrorInfo(
            _C.CONNECTION_LOST,
            False,
            Retry.SAME,
            "Client side: the server could not be reached for `connect_timeout` or "
            "`reconnect_timeout`.",
            "Check that rdzv-server runs at the endpoint and can be reached from here.",
            _CONNECTION,
        ),
        ErrorInfo(
            _C.REQUEST_TIMEOUT,
            False,
            Retry.SAME,
            "Client side: no answer came in time.",
            "Check the server's load and log.",
            _TIMEOUT,
        ),
    )
}


def info(code: int) -> ErrorInfo:
    """The row for a code from the wire; an unknown one (a newer peer's) reads as `INTERNAL`."""
    try:
        return ERRORS[ErrorCode(code)]
    except (ValueError, KeyError):
        return ERRORS[ErrorCode.INTERNAL]
