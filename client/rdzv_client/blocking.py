"""The client for ordinary code: calls that block, heartbeats on a thread of their own.

    with Client("host:29500", run="llama", min_nodes=2, max_nodes=4) as client:
        g = client.join(timeout=600)
        g.kv.set("epoch", b"3")
        while not g.ended:
            ...

Leaving the `with` block says *finished*, or *failed* if an exception leaves it.
"""

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from rdzv_client import operations
from rdzv_client.access import Access
from rdzv_client.calls import Calls
from rdzv_client.credentials import Credentials
from rdzv_client.engine import Engine
from rdzv_client.errors import ConnectionLost, RdzvError, RequestTimeout, from_reply
from rdzv_client.generation import Member, fields_of, participants
from rdzv_client.kv import Kv
from rdzv_client.nccl import NcclGeneration
from rdzv_client.operations import Data, LeaveKind, Meeting
from rdzv_client.options import NodeOptions
from rdzv_client.worker import WorkerEnvironment
from rdzv_proto.auth import Grant, Scope
from rdzv_proto.messages import (
    Address,
    Done,
    Finished,
    Joined,
    MemberPage,
    Members,
    Released,
    View,
)


class Generation(NcclGeneration):
    """One agreed membership, with its keys and barriers."""

    kv: Kv
    _calls: Calls

    def barrier(
        self,
        name: str,
        *,
        members: Iterable[int] | None = None,
        payload: Data | None = None,
        vote: bool | None = None,
        timeout: float = operations.BARRIER_S,
        round: int | None = None,
    ) -> Meeting:
        """Wait until all members of this generation (or those named) have called this.

        Nodes meet nodes, by group rank; training processes (`Client.from_env()`) meet training
        processes, by rank. Rounds are numbered by the server: call it as often as you like.

        Args:
            name: which barrier; members with different names do not meet.
            members: the ranks that take part; None: all. The same everywhere.
            payload: given to every member with the release.
            vote: the round commits if every member votes yes.
            timeout: seconds, from the arrival of the first member; the first member's counts.
            round: the round that is meant; None: this member's next one.

        Raises:
            BarrierTimeout: naming who did not come, with node, rank and when it was last heard.
            BarrierBroken: a member was lost, or has finished and will not come.
            BarrierMismatch: members disagree on who takes part.
            GenerationEnded: with the reason.
            NotAMember: this one does not take part in that round.
        """
        ask = operations.barrier(
            self.fence, name, self.barrier_kind, members=members, payload=payload, vote=vote,
            count=self.world_size if self.barrier_kind == "workers" else 0, round=round,
            timeout_s=timeout,
        )  # fmt: skip
        patience_s = timeout + operations.OPERATION_S
        return operations.meeting(self._calls.ask(ask, Released, patience_s))

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
    """A node of a run. It connects when it is first asked for something, and keeps the connection.

    Args:
        server: `host:port`, `host`, `[v6]:port`, or several separated by commas; None takes
            `RDZV_ENDPOINT`, else 127.0.0.1:29500.
        run: run id.
        options: see `NodeOptions`; and `token_file`, `tls_ca`, `tls_cert`, `tls_key`,
            `tls_server_name`, see `Credentials`. What is not given is taken from the environment.

    Raises:
        ValueError: an argument is wrong, or a file that it names; it is named.
    """

    def __init__(self, server: str | None = None, *, run: str, **options: Any) -> None:
        self.credentials = Credentials.take(options)
        self.options = NodeOptions(run=run, **options)
        self.generation: Generation | None = None
        self._engine = Engine.of_node(self.options, server, self.credentials, self._see)
        self._calls = Calls(self._engine)

    @staticmethod
    def from_env() -> "Worker":
        """In a training process that torchrun started: attach to the agent's generation.

        Raises:
            ValueError: the environment is not that of a worker under rdzv, or it names a wrong file.
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
        self._engine.tell_view()
        return self.generation

    @property
    def kv(self) -> Kv:
        """The keys of the run: they outlive its generations, and end with the run. No join is needed."""
        return Kv(self._calls, None)

    def barrier(
        self,
        name: str,
        count: int,
        *,
        payload: Data | None = None,
        vote: bool | None = None,
        timeout: float = operations.BARRIER_S,
    ) -> Meeting:
        """Wait until `count` clients of the run have called this; no join is needed.

        One that is lost while it waits is not counted any more.

        Raises:
            BarrierTimeout: saying who is there.
            BarrierMismatch: clients disagree on the count.
        """
        ask = operations.barrier(
            None, name, "count", members=None, payload=payload, vote=vote, count=count, round=None,
            timeout_s=timeout,
        )  # fmt: skip
        patience_s = timeout + operations.OPERATION_S
        return operations.meeting(self._calls.ask(ask, Released, patience_s))

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
            Access(Credentials.find(), Grant(Scope.JOIN, environment.run)),
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
            barrier_kind="workers",
        )
        self.kv = Kv(calls, None)
        """The keys of the run."""
        self._engine.wait_connected(None)
        failure = self._engine.session.failure
        if failure is not None:
            self._engine.stop()
            raise from_reply(failure)
        self._engine.tell_view()

    def close(self) -> None:
        """Close the connection."""
        self._engine.stop()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _see(self, view: View) -> None:
        self.generation.see(view)
