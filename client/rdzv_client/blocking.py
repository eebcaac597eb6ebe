"""The client for ordinary code: calls that block, heartbeats on a thread of their own.

    with Client("host:29500", run="llama", min_nodes=2, max_nodes=4) as client:
        g = client.join(timeout=600)
        g.kv.set("epoch", b"3")
        while not g.ended:
            ...

Leaving the `with` block says *finished*, or *failed* if an exception leaves it.
"""

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeVar

from rdzv_client import endpoint, operations
from rdzv_client.engine import Engine
from rdzv_client.errors import ConnectionLost, RdzvError, RequestTimeout, from_reply
from rdzv_client.generation import Member, fields_of, participants
from rdzv_client.nccl import NcclGeneration
from rdzv_client.operations import Data, LeaveKind, expect
from rdzv_client.options import NodeOptions
from rdzv_client.worker import WorkerEnvironment
from rdzv_proto.messages import (
    Address,
    AnyReply,
    AnyRequest,
    Done,
    Fence,
    Finished,
    Joined,
    KvNumber,
    KvValue,
    KvValues,
    MemberPage,
    Members,
    Message,
    View,
)

R = TypeVar("R", bound=Message)


class _Waiter:
    """Holds one thread until its reply is there.

    A bare lock: waking through an Event costs a second lock and often a second switch of threads.
    Waiting can be interrupted by signals.
    """

    __slots__ = ("_gate", "reply")

    def __init__(self) -> None:
        self.reply: AnyReply | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def take(self, reply: AnyReply) -> None:
        self.reply = reply
        self._gate.release()

    def wait(self, timeout_s: float | None) -> bool:
        return self._gate.acquire(timeout=-1 if timeout_s is None else timeout_s)


class Calls:
    """Sends requests through an engine and blocks for their replies."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def ask(self, message: AnyRequest, kind: type[R], timeout_s: float | None) -> R:
        """One request and its reply.

        Args:
            message: the request.
            kind: the reply it must get.
            timeout_s: patience; None waits as long as the server lets it wait.

        Raises:
            RdzvError: the server refused, or no answer came in time.
        """
        waiter = _Waiter()
        request_id = self.engine.submit(message, waiter.take)
        try:
            answered = waiter.wait(timeout_s)
        except BaseException:
            self.engine.forget(request_id)
            raise
        if not answered or waiter.reply is None:
            self.engine.forget(request_id)
            raise RequestTimeout(
                f"{message.op}: no answer from {self.engine.session.where} for {timeout_s:g} s"
            )
        return expect(waiter.reply, kind)


class Kv:
    """The keys of one generation. They are gone when it ends."""

    def __init__(self, calls: Calls, fence: Fence) -> None:
        self._calls, self._fence = calls, fence

    def set(self, key: str, value: Data) -> None:
        """Set a key.

        Raises:
            GenerationEnded, LimitExceeded, RequestTimeout.
        """
        self._done(operations.kv_set(self._fence, key, value))

    def get(self, key: str, timeout: float = operations.GET_S) -> bytes:
        """The value of a key; waits up to `timeout` seconds for it (0: does not wait).

        Raises:
            WaitTimeout: nobody set it in time.
            GenerationEnded: the generation ended first.
        """
        ask = operations.kv_get(self._fence, key, timeout)
        return self._calls.ask(ask, KvValue, timeout + operations.SLACK_S).value

    def wait(self, keys: Iterable[str], timeout: float = operations.GET_S) -> None:
        """Wait until all keys are there.

        Raises:
            WaitTimeout: naming the keys that are missing.
            GenerationEnded: the generation ended first.
        """
        ask = operations.kv_wait(self._fence, keys, timeout)
        self._calls.ask(ask, Done, timeout + operations.SLACK_S)

    def add(self, key: str, delta: int = 1) -> int:
        """Add to a counter (a missing key counts as 0) and return the sum. A retry counts once.

        Raises:
            NotANumber: the key holds something else.
            GenerationEnded, RequestTimeout.
        """
        ask = operations.kv_add(self._fence, key, delta)
        return self._calls.ask(ask, KvNumber, operations.OPERATION_S).value

    def multi_get(self, keys: Iterable[str], timeout: float = operations.GET_S) -> list[bytes]:
        """The values of several keys, in their order; waits for all of them.

        Raises:
            WaitTimeout, GenerationEnded, LimitExceeded.
        """
        ask = operations.kv_multi_get(self._fence, keys, timeout)
        return self._calls.ask(ask, KvValues, timeout + operations.SLACK_S).values

    def multi_set(self, keys: Iterable[str], values: Iterable[Data]) -> None:
        """Set several keys in one step.

        Raises:
            GenerationEnded, LimitExceeded, RequestTimeout.
        """
        self._done(operations.kv_multi_set(self._fence, keys, values))

    def _done(self, message: AnyRequest) -> None:
        self._calls.ask(message, Done, operations.OPERATION_S)


class Generation(NcclGeneration):
    """One agreed membership, with its keys."""

    kv: Kv
    _calls: Calls

    @property
    def members(self) -> list[Member]:
        """The participants by group rank; asked from the server, page by page.

        Raises:
            RdzvError: the server cannot be asked.
        """
        rows: list[Member] = []
        offset, total = 0, 1
        while offset < total:
            ask = Members(run=self.run, offset=offset)
            page = self._calls.ask(ask, MemberPage, operations.OPERATION_S)
            rows += participants(page.members)
            offset, total = offset + max(1, len(page.members)), page.total
        return rows


def _generation(calls: Calls, **fields: Any) -> Generation:
    generation = Generation(**fields)
    generation.kv = Kv(calls, generation.fence)
    generation._calls = calls
    return generation


class Client:
    """A node of a run.

    Args:
        server: `host:port`, `host`, `[v6]:port`, or several separated by commas; None takes
            `RDZV_ENDPOINT`, else 127.0.0.1:29500.
        run: run id.
        options: see `NodeOptions`.

    Raises:
        ValueError: an argument is wrong; it is named.
    """

    def __init__(self, server: str | None = None, *, run: str, **options: Any) -> None:
        self.options = NodeOptions(run=run, **options)
        self.generation: Generation | None = None
        self._engine = Engine(
            self.options.hello(),
            endpoint.find(server),
            connect_timeout_s=self.options.connect_timeout_s,
            reconnect_timeout_s=self.options.reconnect_timeout_s,
            on_view=self._see,
        )
        self._calls = Calls(self._engine)

    @staticmethod
    def from_env() -> "Worker":
        """In a training process that torchrun started: attach to the agent's generation.

        Raises:
            ValueError: the environment is not that of a worker under rdzv.
            RdzvError: the generation has ended, or the server cannot be reached.
        """
        return Worker(WorkerEnvironment.read())

    @property
    def engine(self) -> Engine:
        """The connection, for the torch plug-in."""
        return self._engine

    def connect(self) -> None:
        """Wait until the server has welcomed this node. `join` does so by itself.

        Raises:
            ConnectionLost: not within `connect_timeout_s`.
            RdzvError: the server refused.
        """
        self._engine.wait_connected(None)
        failure = self._engine.session.failure
        if failure is not None:
            raise from_reply(failure)

    def join(self, timeout: float | None = None, *, address: Address | None = None) -> Generation:
        """Wait for a generation with this node in it.

        Args:
            timeout: seconds to wait for enough nodes; None takes `join_timeout_s`. A standby above
                the maximum waits without limit.
            address: what the others are told when this node gets group rank 0.

        Raises:
            JoinTimeout: too few nodes came; who is missing is in the text.
            RunClosed, RunFinished, RunFailed: the run is over.
            PolicyMismatch, DuplicateRank, Fenced, ConnectionLost.
        """
        ask = self.options.join(self._engine.view.fence, address or Address(), timeout)
        try:
            joined = self._calls.ask(ask, Joined, None)
        except KeyboardInterrupt:
            self._withdraw()
            raise
        except RdzvError as error:
            raise operations.located(error, self._engine.session) from None
        finally:
            self._engine.progress_over()
        self.generation = _generation(self._calls, **fields_of(self.options.run, joined))
        self._see(self._engine.view)
        return self.generation

    def finished(self) -> None:
        """Say that this node's work in its generation is done: its departure will be no loss."""
        if self.generation is not None:
            ask = Finished(fence=self.generation.fence)
            self._calls.ask(ask, Done, operations.OPERATION_S)

    def leave(
        self,
        kind: LeaveKind = "finished",
        detail: str = "",
        *,
        exit_code: int | None = None,
        timeout: float = operations.OPERATION_S,
    ) -> None:
        """Leave the run in an orderly way.

        Args:
            kind: `finished`, `failed` (may stop the others, see `below_min`) or `drained`.
            detail: shown to the others.
            exit_code: of the worker that failed.
            timeout: patience for the server's confirmation.
        """
        self._calls.ask(operations.leave(kind, detail, exit_code), Done, timeout)

    def close_run(self, detail: str = "") -> None:
        """End the run for everybody."""
        ask = operations.close_run(self.options.run, detail)
        self._calls.ask(ask, Done, operations.OPERATION_S)

    def close(self) -> None:
        """Close the connection. Without a `leave` before, the server sees this as a loss."""
        self._engine.stop()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.leave("finished")
            elif isinstance(error, KeyboardInterrupt | SystemExit):
                self.leave("drained", type(error).__name__, timeout=operations.SLACK_S)
            else:
                self.leave("failed", f"{type(error).__name__}: {error}", timeout=operations.SLACK_S)
        except (ConnectionLost, RequestTimeout):
            if error is None:
                raise
        finally:
            self.close()

    def _withdraw(self) -> None:
        """The caller gives up waiting: the server must not count this node."""
        self._engine.submit(operations.leave("drained", "interrupted", None), lambda reply: None)

    def _see(self, view: View) -> None:
        if self.generation is not None:
            self.generation.see(view)


class Worker:
    """A training process attached to its agent's generation. It never joins; its end changes
    nothing for the run."""

    def __init__(self, environment: WorkerEnvironment) -> None:
        self._engine = Engine(
            environment.hello(),
            environment.endpoints,
            connect_timeout_s=operations.OPERATION_S,
            reconnect_timeout_s=operations.GET_S,
            on_view=self._see,
        )
        calls = Calls(self._engine)
        self.generation = _generation(
            calls,
            run=environment.run,
            rank=environment.rank,
            world_size=environment.world_size,
            fence=environment.fence,
        )
        self._engine.wait_connected(None)
        failure = self._engine.session.failure
        if failure is not None:
            self._engine.stop()
            raise from_reply(failure)
        self._see(self._engine.view)

    def close(self) -> None:
        """Close the connection."""
        self._engine.stop()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _see(self, view: View) -> None:
        self.generation.see(view)
