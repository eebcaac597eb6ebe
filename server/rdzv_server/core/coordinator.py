"""The way into the core: one event or tick in, a list of effects out.

Called from one place, never re-entered, never waiting. Who may send what is a table: an operation
that is not in it for a role is refused. The rules themselves are in `sessions`, `membership`,
`forming`, `generations` and `keys`.
"""

from collections.abc import Mapping

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Alive,
    AnyReply,
    AnyRequest,
    CloseRun,
    Goodbye,
    Heartbeat,
    HelloAdmin,
    HelloNode,
    HelloWorker,
    ListRuns,
    Members,
    ShowGeneration,
    Status,
    Welcome,
)
from rdzv_server.core import (
    dispatch,
    due,
    forming,
    inside,
    membership,
    outside,
    replies,
    rights,
    sessions,
    status,
    waits,
)
from rdzv_server.core.durable import restoring
from rdzv_server.core.events import (
    Agreed,
    Behind,
    Broadcast,
    Denied,
    Effect,
    Event,
    Identified,
    Lost,
    Opened,
    Persist,
    Received,
    Send,
    StorageTrouble,
)
from rdzv_server.core.events import Alive as TakesAnswers
from rdzv_server.core.model import Connection, Role, Session
from rdzv_server.core.nccl import ends as nccl_ends
from rdzv_server.core.refusal import Refused, RefusedUnread
from rdzv_server.core.settings import Identity, Settings
from rdzv_server.core.tables import Tables

_HELLOS = (HelloNode, HelloWorker, HelloAdmin)
_LOOKING = (Status, ListRuns, Members, ShowGeneration)

WITHOUT_SESSION: Mapping[Role | None, frozenset[type[AnyRequest]]] = {
    None: frozenset(_HELLOS),
    Role.ADMIN: frozenset((Heartbeat, CloseRun, *_LOOKING)),
}
"""Operations before a hello (None) and of tools; those of sessions are in `dispatch`. Everything else is refused."""


class Coordinator:
    """One server's state machine.

    Args:
        settings: what the operator set.
        identity: what makes this start of the server unlike any other.
        durable: what must survive a restart is told (`Persist`).
    """

    def __init__(self, settings: Settings, identity: Identity, *, durable: bool = False) -> None:
        self.due_per_step = due.PER_STEP
        self.tables = Tables(settings, identity)
        if durable:
            self.tables.keep_saves()

    def resume(self, now: float, records: Mapping[bytes, bytes]) -> list[Effect]:
        """Begin with the state of an earlier server process, of the epoch in this one's identity.

        Args:
            now: monotonic seconds.
            records: everything that process said to keep.

        Raises:
            UnreadableError: the records are none that this server understands.
        """
        self._enter(now)
        restoring.restore(self.tables, records)
        sessions = len(self.tables.sessions)
        self.tables.report("resumed", runs=len(self.tables.runs), sessions=sessions)
        return self._leave()

    def handle(self, now: float, event: Event) -> list[Effect]:
        """Take one event.

        Args:
            now: monotonic seconds.

        Returns:
            Effects, to be executed in this order.
        """
        self._enter(now)
        match event:
            case Opened():
                self._opened(event)
            case Received(conn, request_id, message):
                reply = self.request(conn, request_id, message)
                if reply is not None:
                    self.tables.effects.append(Send(conn, request_id, reply))
            case Lost():
                connection = self.tables.connections.get(event.conn)
                if connection is not None:
                    sessions.connection_lost(self.tables, connection, event.reason)
            case Agreed() | Identified() | Denied() | TakesAnswers() | StorageTrouble() | Behind():
                outside.of_shell(self.tables, event)
            case _:
                outside.of_stores(self.tables, event)
        return self._leave()

    def begin(self, now: float) -> None:
        """Read the clock, once for all requests that came in one piece."""
        self._enter(now)

    def request(self, conn: int, request_id: int, message: AnyRequest) -> AnyReply | None:
        """Take one request, at the time of `begin`. What else comes of it is in `outcome`.

        Returns:
            The reply, if nothing else comes of the request and it goes where the request came from:
            most of the time. Otherwise None.
        """
        tables = self.tables
        connection = tables.connections.get(conn)
        if connection is None:
            return None  # cut in this very batch of input; its session is no longer listening
        session = connection.session
        if session is None:
            if connection.role is Role.ADMIN:
                sessions.admin_heard(tables, connection)
        else:
            if session.expiring_since is None and session.dropped_at is None:
                session.heard_at = tables.t  # its deadline is early now: `expire` looks once more
            else:
                sessions.heard(tables, session)
            if request_id in session.parked:
                return waits.asked_again(session, request_id, message)
        keep = message.recorded
        try:
            if session is None:
                reply: AnyReply | None = self._without_session(connection, message)
            else:
                reply = self._of_session(session, request_id, message)
        except Refused as refused:
            reply = refused.reply()
            keep = keep and refused.recorded
            tables.denied += refused.code is ErrorCode.UNAUTHENTICATED
        if reply is None:
            return None
        saves = tables.saves
        storing = saves is not None and (keep or saves.marked)  # comes before it is told
        if (storing or tables.effects or tables.dirty or type(reply) is Welcome) and not self.looks(
            conn, message
        ):
            self._reply_among_others(connection, request_id, reply, keep=keep)
            return None
        if keep and session is not None:
            session.replies[request_id] = reply  # as `record`, where nothing is stored
        return reply

    def outcome(self) -> list[Effect]:
        """What came of the requests since the last call, their runs brought to rest."""
        tables = self.tables
        saves = tables.saves
        more = tables.effects or tables.dirty or (saves is not None and saves.marked)
        return self._leave() if more else []

    def looks(self, conn: int, message: AnyRequest) -> bool:
        """A tool's look at a server that can store nothing now: it is answered at once, for it asks why."""
        connection = self.tables.connections.get(conn)
        admin = connection is not None and connection.role is Role.ADMIN
        return admin and bool(self.tables.read_only) and type(message) is not CloseRun

    def run_of(self, conn: int) -> str:
        """Which run a connection belongs to; empty for an admin."""
        connection = self.tables.connections.get(conn)
        session = None if connection is None else connection.session
        return "" if session is None else session.run_id

    def store_greeted(self, conn: int) -> bool:
        """A TCPStore client has said its hello."""
        client = self.tables.store_clients.get(conn)
        return client is not None and client.parser.greeted

    def quiet_until(self, at: float) -> bool:
        """True if `next_deadline` is certainly not before a time, in monotonic seconds."""
        tables = self.tables
        return tables.deadlines.none_before(at - tables.clock.stalled_s)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due, up to a step's part. Called at least once per `TICK_S`, and at `next_deadline`."""
        self._enter(now)
        for kind, name, number in self.tables.deadlines.pop_due(self.tables.t, self.due_per_step):
            due.do(self.tables, kind, name, number)
        return self._leave()

    def next_deadline(self) -> float | None:
        """When `tick` should be called next, in monotonic seconds; None if nothing is pending."""
        due = self.tables.deadlines.next()
        if due is None:
            return None
        return self.tables.clock.monotonic(max(due, self.tables.t + sessions.SOCKET_POLL_S))

    def shut_down(self, now: float, retry_after_ms: int) -> list[Effect]:
        """Tell everyone that the server is going away. Who comes after that is refused; what a session still
        asks gets no answer: it is asked again of the next server, and not failed."""
        self._enter(now)
        tables = self.tables
        tables.shutting_down = True
        goodbye = Goodbye(
            code=ErrorCode.SHUTTING_DOWN,
            message=f"the server is shutting down (instance {tables.identity.instance})",
            retry_after_ms=retry_after_ms,
        )
        tables.report("shutting_down", connections=len(tables.connections))
        tables.effects.append(Broadcast(tuple(tables.connections), goodbye))
        return self._leave()

    # --- one step ---------------------------------------------------------------------------

    def _enter(self, now: float) -> None:
        tables = self.tables
        tables.t, stall_s = tables.clock.advance(now)
        if tables.started_at is None:
            tables.started_at = tables.t
        if stall_s:
            tables.stall_ended_at = tables.t
            tables.report(
                "server_stalled", level="warning", stalled_s=round(stall_s, 3),
                text="the server did not run for this long; all deadlines were moved by as much",
            )  # fmt: skip

    def _leave(self) -> list[Effect]:
        tables = self.tables
        while tables.dirty:
            run_id, _ = tables.dirty.popitem()
            run = tables.runs.get(run_id)
            if run is not None:
                forming.settle(tables, run)
        effects, tables.effects = tables.effects, []
        if tables.saves is not None and (changes := tables.saves.changes(tables)):
            effects.insert(0, Persist(changes))
        return effects

    def _opened(self, event: Opened) -> None:
        tables = self.tables
        tables.connections[event.conn] = Connection(event.conn, event.peer_host, event.local_host)
        tables.deadlines.set(("hello", event.conn, 0), tables.t + tables.settings.hello_timeout_s)

    def _reply_among_others(
        self, connection: Connection, request_id: int, reply: AnyReply, *, keep: bool
    ) -> None:
        tables, session = self.tables, connection.session
        if session is None or isinstance(reply, Welcome):  # which ends no request of the session
            tables.effects.append(Send(connection.id, request_id, reply))
        else:
            tables.answer(session, request_id, reply, keep=keep)
        if session is not None and isinstance(reply, Welcome) and reply.resumed:
            nccl_ends.resumed(tables, session)

    def _of_session(
        self, session: Session, request_id: int, message: AnyRequest
    ) -> AnyReply | None:
        """The answer to a node or a training process; None if it waits, or will be had from the next server."""
        tables = self.tables
        handler = dispatch.HANDLERS[session.role].get(type(message))
        if handler is None:
            raise _not_allowed(session.role, message)
        if tables.shutting_down and type(message) is not Heartbeat:
            return None
        if message.recorded:
            recorded = session.replies.get(request_id)
            if recorded is not None and not replies.outdated(tables, session, recorded):
                return recorded
            if (
                request_id <= session.acknowledged
                or len(session.replies) >= limits.REPLIES_RECORDED_MAX
            ):
                raise replies.not_kept(session, request_id)
        return handler(tables, session, request_id, message)

    def _without_session(self, connection: Connection, message: AnyRequest) -> AnyReply:
        """The answer to somebody who says hello, or to a tool."""
        tables = self.tables
        if type(message) not in WITHOUT_SESSION[connection.role]:
            raise _not_allowed(connection.role, message)
        if tables.shutting_down and type(message) is not Heartbeat:
            raise Refused(ErrorCode.SHUTTING_DOWN, "the server is shutting down")
        match message:
            case HelloNode():
                return sessions.hello_node(tables, connection, message)
            case HelloWorker():
                return sessions.hello_worker(tables, connection, message)
            case HelloAdmin():
                return sessions.hello_admin(tables, connection, message)
            case Heartbeat():
                return Alive()
            case Status():
                return status.server_status(tables, connection.grant)
            case ListRuns():
                return status.list_runs(tables, connection.grant, message)
            case ShowGeneration():
                return inside.show(tables, connection.grant, message)
            case Members():
                return status.members(tables, connection.grant, message)
            case CloseRun():
                rights.check_admin(connection, message)
                who = f"an operator at {connection.peer_host}"
                return membership.close_run(tables, connection.grant, message.run, who, message)
            case _:
                raise AssertionError(f"{message.op} of somebody who has no session")


def _not_allowed(role: Role | None, message: AnyRequest) -> Refused:
    if role is None:
        return Refused(ErrorCode.NOT_A_MEMBER, f"{message.op} before a hello", "Say hello first.")
    if type(message) in _HELLOS:
        return Refused(ErrorCode.MALFORMED, "a second hello on one connection")
    return RefusedUnread(
        ErrorCode.UNSUPPORTED,
        f"{message.op} is not for {role.value} connections",
        "Use the right kind of client.",
    )
