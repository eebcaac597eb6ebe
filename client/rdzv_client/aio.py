"""The client for asyncio code. Same engine, same thread for heartbeats: a blocked event loop does not
cost the node its lease.

    async with AsyncClient("host:29500", run="llama", min_nodes=2) as client:
        g = await client.join()
        await g.kv.set("epoch", b"3")
        await g.wait_ended()
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar

from rdzv_client import operations
from rdzv_client.credentials import Credentials
from rdzv_client.engine import Engine
from rdzv_client.errors import ConnectionLost, RdzvError, RequestTimeout
from rdzv_client.generation import Member, fields_of, participants
from rdzv_client.kv import AsyncKv
from rdzv_client.nccl import AsyncNcclGeneration
from rdzv_client.operations import Data, LeaveKind, Meeting, expect
from rdzv_client.options import NodeOptions
from rdzv_proto.messages import (
    Address,
    AnyReply,
    AnyRequest,
    Done,
    Finished,
    Joined,
    MemberPage,
    Members,
    Message,
    Released,
    View,
)

R = TypeVar("R", bound=Message)


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: Any) -> None:
    """From the engine's thread; a loop that was closed meanwhile has nobody waiting."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *args)


class AsyncCalls:
    """Sends requests through an engine and awaits their replies."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def ask(self, message: AnyRequest, kind: type[R], timeout_s: float | None) -> R:
        """One request and its reply; cancelling it is safe.

        Raises:
            RdzvError: the server refused, or no answer came in time.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[AnyReply] = loop.create_future()

        def resolve(reply: AnyReply) -> None:
            if not future.done():
                future.set_result(reply)

        def take(reply: AnyReply) -> None:
            _call_soon(loop, resolve, reply)

        request_id = self.engine.submit(message, take)
        try:
            reply = await asyncio.wait_for(future, timeout_s)
        except asyncio.TimeoutError:
            self.engine.forget(request_id)
            raise operations.unanswered(message, self.engine.session, timeout_s) from None
        except asyncio.CancelledError:
            self.engine.forget(request_id)
            raise
        return expect(reply, kind)


class AsyncGeneration(AsyncNcclGeneration):
    """One agreed membership, with its keys and barriers."""

    kv: AsyncKv
    _calls: AsyncCalls

    async def barrier(
        self,
        name: str,
        *,
        members: Iterable[int] | None = None,
        payload: Data | None = None,
        vote: bool | None = None,
        timeout: float = operations.BARRIER_S,
        round: int | None = None,
    ) -> Meeting:
        """Wait until all members of this generation have called this; see `Generation.barrier`.

        Cancelling it does not take the arrival back: this member counts as there.
        """
        ask = operations.barrier(
            self.fence, name, "nodes", members=members, payload=payload, vote=vote, count=0,
            round=round, timeout_s=timeout,
        )  # fmt: skip
        patience_s = timeout + operations.OPERATION_S
        return operations.meeting(await self._calls.ask(ask, Released, patience_s))

    async def members(self) -> list[Member]:
        """The participants by group rank; asked from the server, page by page."""
        rows: list[Member] = []
        offset, total = 0, 1
        while offset < total:
            ask = Members(run=self.run, offset=offset)
            page = await self._calls.ask(ask, MemberPage, operations.OPERATION_S)
            rows += participants(page.members)
            offset, total = offset + max(1, len(page.members)), page.total
        return rows

    async def wait_ended(self) -> str:
        """Wait until the generation has ended; returns the reason."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def wake() -> None:
            _call_soon(loop, over.set)

        self.ended.when_set(wake)
        await over.wait()
        return self.ended.reason


class AsyncClient:
    """A node of a run; see `rdzv_client.blocking.Client` for arguments and errors."""

    def __init__(self, server: str | None = None, *, run: str, **options: Any) -> None:
        self.credentials = Credentials.take(options)
        self.options = NodeOptions(run=run, **options)
        self.generation: AsyncGeneration | None = None
        self._engine = Engine.of_node(self.options, server, self.credentials, self._see)
        self._calls = AsyncCalls(self._engine)

    async def join(
        self,
        timeout: float | None = None,
        *,
        address: Address | None = None,
    ) -> AsyncGeneration:
        """Wait for a generation with this node in it. Cancelling it withdraws the node."""
        ask = self.options.join(self._engine.view.fence, address or Address(), timeout)
        try:
            joined = await self._calls.ask(ask, Joined, None)
        except asyncio.CancelledError:
            withdrawal = operations.leave("drained", "cancelled", None)
            self._engine.submit(withdrawal, lambda reply: None)
            raise
        except RdzvError as error:
            raise operations.located(error, self._engine.session) from None
        finally:
            self._engine.progress_over()
        fields: dict[str, Any] = fields_of(self.options.run, joined)
        generation = AsyncGeneration(**fields)
        generation.kv = AsyncKv(self._calls, generation.fence)
        generation._calls = self._calls
        self.generation = generation
        self._engine.tell_view()
        return generation

    @property
    def kv(self) -> AsyncKv:
        """The keys of the run; no join is needed."""
        return AsyncKv(self._calls, None)

    async def barrier(
        self,
        name: str,
        count: int,
        *,
        payload: Data | None = None,
        vote: bool | None = None,
        timeout: float = operations.BARRIER_S,
    ) -> Meeting:
        """Wait until `count` clients of the run have called this; see `Client.barrier`."""
        ask = operations.barrier(
            None, name, "count", members=None, payload=payload, vote=vote, count=count, round=None,
            timeout_s=timeout,
        )  # fmt: skip
        patience_s = timeout + operations.OPERATION_S
        return operations.meeting(await self._calls.ask(ask, Released, patience_s))

    async def finished(self) -> None:
        """Say that this node's work in its generation is done."""
        if self.generation is not None:
            ask = Finished(fence=self.generation.fence)
            await self._calls.ask(ask, Done, operations.OPERATION_S)

    async def leave(
        self,
        kind: LeaveKind = "finished",
        detail: str = "",
        *,
        exit_code: int | None = None,
        timeout: float = operations.OPERATION_S,
    ) -> None:
        """Leave the run in an orderly way."""
        await self._calls.ask(operations.leave(kind, detail, exit_code), Done, timeout)

    async def close_run(self, detail: str = "") -> None:
        """End the run for everybody."""
        ask = operations.close_run(self.options.run, detail)
        await self._calls.ask(ask, Done, operations.OPERATION_S)

    async def close(self) -> None:
        """Close the connection. Without a `leave` before, the server sees this as a loss."""
        await asyncio.to_thread(self._engine.stop)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self.leave("finished")
            elif isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                await self.leave("drained", type(error).__name__, timeout=operations.SLACK_S)
            else:
                detail = f"{type(error).__name__}: {error}"
                await self.leave("failed", detail, timeout=operations.SLACK_S)
        except (ConnectionLost, RequestTimeout):
            if error is None:
                raise
        finally:
            await self.close()

    def _see(self, view: View) -> None:
        if self.generation is not None:
            self.generation.see(view)
