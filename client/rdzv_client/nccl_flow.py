"""How a rank gets the ids of a communicator, as a flow of steps without any waiting in it.

The blocking and the asyncio client drive the same generator: it yields what to do and is sent what came
of it. Whatever goes wrong between "mint" and the id being there is told to the server before it is
raised, since all other ranks wait for this one.
"""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal

from rdzv_client import nccl_library
from rdzv_client.errors import DuplicateId, MintFailed, RdzvError, UnroutableRoot
from rdzv_client.nccl_library import Source
from rdzv_client.operations import OPERATION_S, SLACK_S, printable
from rdzv_proto.messages import (
    AnyReply,
    AnyRequest,
    Done,
    Fence,
    NcclFail,
    NcclGet,
    NcclIds,
    NcclPut,
)

RANKS_PER_ROOT = 128
"""With `n_ids="auto"`: as many ranks for each root as torch gives it."""

GET_S = 120.0
"""Default patience for the ids."""

INIT_S = 300.0
"""Default time from the ids being there until all ranks are ready."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a rank asks for. All ranks must say the same but for `rank`.

    Raises:
        ValueError: the numbers cannot be those of a communicator.
    """

    group: str
    rank: int
    nranks: int
    n_ids: int | Literal["auto"] = 1
    minter: int | None = None
    mint: Callable[[], object] | None = None
    attempt: int | None = None
    timeout: float = GET_S
    init_timeout: float = INIT_S
    nccl_library: str | None = None
    allow_comm_id: bool = False

    def __post_init__(self) -> None:
        if self.nranks < 1 or not 0 <= self.rank < self.nranks:
            raise ValueError(f"rank {self.rank} is not among {self.nranks} ranks")
        if not 1 <= self.count <= self.nranks:
            raise ValueError(f"n_ids is {self.n_ids}; {self.nranks} ranks take 1 to {self.nranks}")

    @property
    def count(self) -> int:
        """Number of ids."""
        return -(-self.nranks // RANKS_PER_ROOT) if self.n_ids == "auto" else self.n_ids

    @property
    def elected(self) -> bool:
        """This rank will be told to mint: it was named, or is the first of a root's block of ranks."""
        if self.minter is not None:
            return self.rank == self.minter
        size, larger = divmod(self.nranks, self.count)
        return any(self.rank == i * size + min(i, larger) for i in range(self.count))


@dataclass(frozen=True)
class Ask:
    """Send a request; the result is its reply."""

    message: AnyRequest
    kind: type[Any]
    timeout_s: float


@dataclass(frozen=True)
class Tell:
    """Send a request and go on."""

    message: AnyRequest


@dataclass(frozen=True)
class Mint:
    """Call this, where it may take its time; the result is what it returns."""

    call: Callable[[], object]


Step = Ask | Tell | Mint
Flow = Generator[Step, Any, NcclIds]


def obtain(wanted: Wanted, fence: Fence) -> Flow:
    """Get the ids, minting some of them if this rank is told to.

    Returns:
        The answer that holds them.

    Raises:
        NcclError, GenerationEnded, DuplicateRank, RequestTimeout.
    """
    if not wanted.elected and not wanted.allow_comm_id and nccl_library.comm_id_set():
        raise _comm_id(wanted)
    ends_at = time.monotonic() + wanted.timeout
    source, problem = _source(wanted) if wanted.elected else (None, None)
    version = nccl_library.version_here() if source is None else source.version
    attempt = wanted.attempt
    while True:
        left_s = max(0.0, ends_at - time.monotonic())
        ask = _get(wanted, fence, attempt, version, left_s)
        reply: AnyReply = yield Ask(ask, NcclIds, left_s + SLACK_S)
        assert isinstance(reply, NcclIds), "the driver checks the kind of a reply"
        if reply.ids:
            return reply
        attempt = reply.attempt
        if source is None and problem is None:
            source, problem = _source(wanted)
        for index in reply.mint:
            yield from _mint(wanted, fence, attempt, index, source, problem)


def failure(wanted: Wanted, fence: Fence, attempt: int, why: BaseException | str) -> NcclFail:
    """Tell the others that this rank will not be there."""
    text = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
    return NcclFail(
        fence=fence,
        group=wanted.group,
        attempt=attempt,
        rank=wanted.rank,
        reason=printable(text),
    )


def _mint(
    wanted: Wanted,
    fence: Fence,
    attempt: int,
    index: int,
    source: Source | None,
    problem: RdzvError | None,
) -> Generator[Step, Any, None]:
    try:
        if problem is not None or source is None:
            raise problem or MintFailed("nothing to mint with")
        raw = nccl_library.to_raw((yield Mint(source.mint)))
    except RdzvError as error:
        yield Tell(failure(wanted, fence, attempt, error.message))
        raise
    except Exception as error:
        yield Tell(failure(wanted, fence, attempt, error))
        raise MintFailed(
            f"rank {wanted.rank} could not mint an id of communicator {wanted.group!r}: "
            f"{type(error).__name__}: {error}"
        ) from error
    except BaseException as error:
        yield Tell(failure(wanted, fence, attempt, error))
        raise
    put = NcclPut(
        fence=fence, group=wanted.group, attempt=attempt, rank=wanted.rank, index=index, id=raw
    )
    try:
        yield Ask(put, Done, OPERATION_S)
    except DuplicateId as error:
        # Either another id is there, and the others have it; or nobody has one.
        again = yield Ask(_get(wanted, fence, attempt, 0, 0.0), NcclIds, OPERATION_S)
        if index in again.mint:
            yield Tell(failure(wanted, fence, attempt, error.message))
        raise
    except BaseException as error:
        yield Tell(failure(wanted, fence, attempt, getattr(error, "message", error)))
        raise


def _get(
    wanted: Wanted, fence: Fence, attempt: int | None, version: int, timeout_s: float
) -> NcclGet:
    return NcclGet(
        fence=fence,
        group=wanted.group,
        rank=wanted.rank,
        nranks=wanted.nranks,
        n_ids=wanted.count,
        minter=wanted.minter,
        attempt=attempt,
        version=version,
        timeout_ms=round(timeout_s * 1000),
        init_timeout_ms=round(wanted.init_timeout * 1000),
    )


def _source(wanted: Wanted) -> tuple[Source | None, RdzvError | None]:
    """What to mint with, or why there is nothing. The others are told when it is asked for."""
    if not wanted.allow_comm_id and nccl_library.comm_id_set():
        return None, _comm_id(wanted)
    if wanted.mint is not None:
        return Source(_as_bytes(wanted.mint), nccl_library.version_here(), "mint="), None
    try:
        return nccl_library.find(wanted.nccl_library), None
    except MintFailed as error:
        return None, error


def _as_bytes(mint: Callable[[], object]) -> Callable[[], bytes]:
    return lambda: nccl_library.to_raw(mint())


def _comm_id(wanted: Wanted) -> UnroutableRoot:
    return UnroutableRoot(
        f"NCCL_COMM_ID is set for rank {wanted.rank} of communicator {wanted.group!r}: NCCL would use "
        "that address and not the id that the ranks agree on",
        "Unset NCCL_COMM_ID (also in nccl.conf), or pass allow_comm_id=True if it is meant.",
    )
