"""Unique ids of NCCL communicators, from the server, for both client classes.

    with g.nccl_comm("dp", rank=r, nranks=n) as h:
        comm = init(h.id)

One rank mints, everybody gets the same bytes, and whoever waits for a rank that will not come is told so.
An id is a secret that lets its holder into the communicator: no repr here shows one.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rdzv_client import nccl_flow
from rdzv_client.generation import GenerationState
from rdzv_client.nccl_flow import Ask, Flow, Tell, Wanted
from rdzv_client.operations import OPERATION_S
from rdzv_client.revocations import Listener, RevokedFlag, on_a_thread
from rdzv_proto.messages import Done, Fence, NcclIds, NcclReady

if TYPE_CHECKING:
    from rdzv_client.aio import AsyncCalls
    from rdzv_client.calls import Calls
    from rdzv_client.engine import Engine


class _Ids:
    """The ids of one attempt to make one communicator.

    Attributes:
        raw: the ids, 128 bytes each.
        nccl_version: of the ranks, as `ncclGetVersion` numbers it; 0: not known.
        generation: number of the generation that they are good for.
        attempt: counts the communicators of this name in the generation.
    """

    def __init__(self, wanted: Wanted, fence: Fence, got: NcclIds) -> None:
        self._wanted, self._fence = wanted, fence
        self.raw: list[bytes] = list(got.ids)
        self.nccl_version = got.version
        self.attempt = got.attempt

    @property
    def generation(self) -> int:
        return self._fence.generation

    def __bytes__(self) -> bytes:
        if len(self.raw) != 1:
            raise ValueError(f"there are {len(self.raw)} ids; take them from .raw")
        return self.raw[0]

    def for_cupy(self) -> bytes | tuple[int, ...]:
        """The id as `cupy.cuda.nccl.NcclCommunicator` takes it: bytes from cupy 14 on, before that a
        tuple of signed numbers."""
        raw = bytes(self)
        version = str(getattr(sys.modules.get("cupy"), "__version__", ""))
        major = version.partition(".")[0]
        if major.isdigit() and int(major) < 14:
            return tuple(b - 256 if b > 127 else b for b in raw)
        return raw

    def __repr__(self) -> str:
        w = self._wanted
        return (
            f"<{type(self).__name__} {w.group!r} rank {w.rank} of {w.nranks}, "
            f"{len(self.raw)} ids, generation {self._fence}, attempt {self.attempt}>"
        )

    def _ready(self) -> NcclReady:
        w = self._wanted
        return NcclReady(fence=self._fence, group=w.group, attempt=self.attempt, rank=w.rank)


class UniqueIds(_Ids):
    """What `Generation.nccl_unique_id` returns."""

    _calls: "Calls"

    def ready(self) -> None:
        """This rank's communicator stands. The id is not given out again: the next call for this
        communicator is for the next one.

        Raises:
            IdFailed, IdTimeout: another rank was lost or failed meanwhile.
            GenerationEnded.
        """
        self._calls.ask(self._ready(), Done, OPERATION_S)

    def fail(self, reason: str) -> None:
        """This rank could not make its communicator: the others are told, with the reason."""
        ask = nccl_flow.failure(self._wanted, self._fence, self.attempt, reason)
        self._calls.ask(ask, Done, OPERATION_S)


class AsyncUniqueIds(_Ids):
    """What `AsyncGeneration.nccl_unique_id` returns; see `UniqueIds`."""

    _calls: "AsyncCalls"

    async def ready(self) -> None:
        """This rank's communicator stands."""
        await self._calls.ask(self._ready(), Done, OPERATION_S)

    async def fail(self, reason: str) -> None:
        """This rank could not make its communicator: the others are told, with the reason."""
        ask = nccl_flow.failure(self._wanted, self._fence, self.attempt, reason)
        await self._calls.ask(ask, Done, OPERATION_S)


class _Comm:
    """A communicator in the making."""

    def __init__(self, generation: GenerationState, engine: "Engine", wanted: Wanted) -> None:
        self._generation, self._engine, self._wanted = generation, engine, wanted
        self._open = True
        self.revoked = RevokedFlag(on_a_thread)
        """True once the ids lead nowhere; `revoked.reason` says why."""

    def on_revoked(self, callback: Listener) -> None:
        """Call `callback(why)` once if the ids lead nowhere: a rank failed, was lost or did not come,
        or the generation ended before this rank was ready. Abort the communicator there.

        It runs on a thread of its own, or on the event loop of the asyncio client.
        """
        self.revoked.when_set(callback)

    def _watch(self, ids: _Ids) -> None:
        key = (self._generation.fence, self._wanted.group, ids.attempt)
        self._engine.handout.revocations.listen(key, self.revoked.set)
        ended = self._generation.ended

        def over() -> None:
            if self._open:
                self.revoked.set(ended.reason)

        ended.when_set(over)

    def __repr__(self) -> str:
        w = self._wanted
        return f"<{type(self).__name__} {w.group!r} rank {w.rank} of {w.nranks}>"


class NcclComm(_Comm):
    """What `Generation.nccl_comm` returns: a context that has the ids, and tells how it went."""

    def __init__(self, generation: "NcclGeneration", wanted: Wanted) -> None:
        super().__init__(generation, generation._calls.engine, wanted)
        self._calls = generation._calls
        self._ids: UniqueIds | None = None

    @property
    def unique_ids(self) -> UniqueIds:
        """The ids, inside the block."""
        if self._ids is None:
            raise ValueError("the ids are there inside of the `with` block")
        return self._ids

    @property
    def id(self) -> bytes:
        """The only id."""
        return bytes(self.unique_ids)

    @property
    def ids(self) -> list[bytes]:
        """All ids, for `ncclCommInitRankScalable`."""
        return self.unique_ids.raw

    def __enter__(self) -> "NcclComm":
        self._ids = _get(self._calls, self._wanted, self._generation.fence)
        self._watch(self._ids)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ids = self.unique_ids
        try:
            if error is None:
                ids.ready()
            else:
                fence = self._generation.fence
                message = nccl_flow.failure(self._wanted, fence, ids.attempt, error)
                self._engine.submit(message, lambda reply: None)
        finally:
            self._open = False


class AsyncNcclComm(_Comm):
    """What `AsyncGeneration.nccl_comm` returns; see `NcclComm`."""

    def __init__(self, generation: "AsyncNcclGeneration", wanted: Wanted) -> None:
        super().__init__(generation, generation._calls.engine, wanted)
        self._calls = generation._calls
        self._ids: AsyncUniqueIds | None = None

    @property
    def unique_ids(self) -> AsyncUniqueIds:
        """The ids, inside the block."""
        if self._ids is None:
            raise ValueError("the ids are there inside of the `async with` block")
        return self._ids

    @property
    def id(self) -> bytes:
        """The only id."""
        return bytes(self.unique_ids)

    @property
    def ids(self) -> list[bytes]:
        """All ids, for `ncclCommInitRankScalable`."""
        return self.unique_ids.raw

    async def __aenter__(self) -> "AsyncNcclComm":
        loop = asyncio.get_running_loop()
        self.revoked = RevokedFlag(_on_loop(loop))
        self._ids = await _get_async(self._calls, self._wanted, self._generation.fence)
        self._watch(self._ids)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ids = self.unique_ids
        try:
            if error is None:
                await ids.ready()
            else:
                fence = self._generation.fence
                message = nccl_flow.failure(self._wanted, fence, ids.attempt, error)
                self._engine.submit(message, lambda reply: None)
        finally:
            self._open = False


class NcclGeneration(GenerationState):
    """A generation that hands out unique ids."""

    _calls: "Calls"

    def nccl_unique_id(self, group: str, **wanted: Any) -> UniqueIds:
        """The ids of a communicator; the same bytes on all its ranks.

        The ranks that have to mint do so here: with NCCL's own library, found where the process has it,
        or with `mint`. Call `ready()` on the result once the communicator stands, or `fail(reason)`;
        until then this returns the same ids again. `nccl_comm` does both by itself.

        Args:
            group: names the communicator within its generation.
            **wanted: `rank` and `nranks` in the communicator; `n_ids` (1, or "auto" for one per 128
                ranks), `minter` (a rank that mints all ids), `mint` (a function that returns an id),
                `nccl_library` (a path), `attempt` (from 0; by itself the next one), `timeout`
                (seconds to wait for the ids), `init_timeout` (seconds until all ranks must be
                ready; the first caller's counts), `allow_comm_id` (use NCCL although NCCL_COMM_ID
                is set).

        Raises:
            IdMismatch, NcclVersionMismatch, DuplicateRank: this rank disagrees with the others.
            IdTimeout: the minter did not give the ids in time; the text says how it is.
            MinterLost, MintFailed, IdFailed: a rank that is needed is lost, or failed.
            UnroutableRoot, AlreadyUsed, DuplicateId.
            GenerationEnded: join again.
        """
        return _get(self._calls, Wanted(group=group, **wanted), self.fence)

    def nccl_comm(self, group: str, **wanted: Any) -> NcclComm:
        """A block in which a communicator is made; arguments as for `nccl_unique_id`.

        Leaving it tells the server that this rank is ready; an exception tells all other ranks that it
        failed.
        """
        return NcclComm(self, Wanted(group=group, **wanted))


class AsyncNcclGeneration(GenerationState):
    """A generation that hands out unique ids, for asyncio; see `NcclGeneration`."""

    _calls: "AsyncCalls"

    async def nccl_unique_id(self, group: str, **wanted: Any) -> AsyncUniqueIds:
        """The ids of a communicator; minting happens on another thread."""
        return await _get_async(self._calls, Wanted(group=group, **wanted), self.fence)

    def nccl_comm(self, group: str, **wanted: Any) -> AsyncNcclComm:
        """An `async with` block in which a communicator is made."""
        return AsyncNcclComm(self, Wanted(group=group, **wanted))


def _get(calls: "Calls", wanted: Wanted, fence: Fence) -> UniqueIds:
    flow = nccl_flow.obtain(wanted, fence)
    ids = UniqueIds(wanted, fence, _drive(calls, flow))
    ids._calls = calls
    return ids


async def _get_async(calls: "AsyncCalls", wanted: Wanted, fence: Fence) -> AsyncUniqueIds:
    flow = nccl_flow.obtain(wanted, fence)
    ids = AsyncUniqueIds(wanted, fence, await _drive_async(calls, flow))
    ids._calls = calls
    return ids


def _drive(calls: "Calls", flow: Flow) -> NcclIds:
    try:
        step = next(flow)
        while True:
            try:
                if isinstance(step, Ask):
                    result: object = calls.ask(step.message, step.kind, step.timeout_s)
                elif isinstance(step, Tell):
                    result = calls.engine.submit(step.message, lambda reply: None)
                else:
                    result = step.call()
            except BaseException as error:  # noqa: BLE001  (the flow raises it again)
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def _drive_async(calls: "AsyncCalls", flow: Flow) -> NcclIds:
    step = next(flow)
    while True:
        try:
            if isinstance(step, Ask):
                result: object = await calls.ask(step.message, step.kind, step.timeout_s)
            elif isinstance(step, Tell):
                result = calls.engine.submit(step.message, lambda reply: None)
            else:
                result = await asyncio.to_thread(step.call)
        except BaseException as error:  # noqa: BLE001  (the flow raises it again)
            step = flow.throw(error)
            continue
        try:
            step = flow.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def _on_loop(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    def run(call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # a loop that was closed has nobody waiting
            loop.call_soon_threadsafe(call)

    return run
