"""Opening, resuming, suspecting and ending sessions.

A session outlives its connections. A connection that breaks makes it a suspect; it is lost after
`reconnect_grace`, or a whole lease after that when the connection broke together with most of the run's
(then it is the network, not the nodes). Silence on a living connection costs the lease. While nothing can
be stored nobody is lost, and everybody has a lease from when it can be again (S28). Every expiry is
two-phase (S33): a session whose time is up at one tick is given one more poll of the sockets and
expires at the next. Events are keyed by session, never by node, so that the late end of an old
process cannot hurt its successor (S6).
"""

import hmac

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Fence, HelloAdmin, HelloNode, HelloWorker, Resume, Welcome
from rdzv_server.core import generations, rights, waits, words
from rdzv_server.core.model import Connection, Role, Run, Session
from rdzv_server.core.refusal import Refused
from rdzv_server.core.roster import recount
from rdzv_server.core.tables import Tables, hash_of
from rdzv_server.core.views import view_of

RECOVERY_S_PER_NODE = 0.002
"""A TLS handshake for each, and room: ten thousand come back through one core (SEMANTICS D5, L7)."""

LOST_TOLD_MAX = 16
"""Connections of one moment that the log names one by one; thousands would take longer to write than to lose."""

READ_ONLY_S = 1.0
"""While nothing can be stored, expiries are looked at again this often: as often as storing is tried."""

SOCKET_POLL_S = 0.001
"""Between the two phases of an expiry: long enough for one more poll of all ready sockets."""


def hello_node(tables: Tables, connection: Connection, hello: HelloNode) -> Welcome:
    """Open or resume a node's session.

    Raises:
        Refused: FENCED, UNKNOWN_EPOCH, UNAUTHENTICATED, NOT_PERMITTED, SESSION_LOST, SUPERSEDED,
            LIMIT_EXCEEDED.
    """
    rights.check_hello(connection, hello)
    key = (hello.run, hello.node_id)
    if (*key, hello.incarnation) in tables.superseded:
        raise Refused(
            ErrorCode.FENCED,
            f"run {hello.run!r}: a newer process has taken over node id {hello.node_id!r}; this "
            "one may not act for it any more",
        )
    session = tables.nodes.get(key)
    if hello.resume is not None:
        session = _proven(tables, hello.resume, "node")
        if _bound_to(session) != (Role.NODE, *key, hello.incarnation, None):
            raise Refused(ErrorCode.UNAUTHENTICATED, "the session belongs to another process")
    elif session is not None and session.incarnation != hello.incarnation:
        supersede(tables, session)
        session = None
    resumed = session is not None
    if session is None:
        tables.has_come(*key, hello.incarnation)
        session = _open(tables, Role.NODE, hello.run, hello.node_id, hello)
        session.name = hello.name
        tables.nodes[key] = session
    _attach(tables, session, connection, hello.attempt)
    return _welcome(tables, session, hello.resume, resumed)


def hello_worker(tables: Tables, connection: Connection, hello: HelloWorker) -> Welcome:
    """Attach a training process to its agent's node and generation.

    Raises:
        Refused: UNAUTHENTICATED, NOT_PERMITTED, STALE_GENERATION, UNKNOWN_RUN, and those of a resume.
    """
    rights.check_hello(connection, hello)
    if hello.fence.epoch != tables.identity.epoch:
        raise _unknown_epoch(tables, hello.fence.epoch)
    run = tables.runs.get(hello.run)
    if run is None:
        raise Refused(ErrorCode.UNKNOWN_RUN, f"there is no run {hello.run!r}")
    # Before the token: after a restart the server knows the tokens of the nodes that are still there, and a worker
    # that outlived its node must hear that its generation is over, and not that its token is wrong.
    waits.usable(run, hello.fence)
    rights.check_worker_token(tables, hello)
    key = (hello.run, hello.node_id, hello.incarnation)
    session = tables.workers.get(key)
    if hello.resume is not None:
        session = _proven(tables, hello.resume, "training process")
        if _bound_to(session) != (Role.WORKER, *key, hello.fence):
            raise Refused(ErrorCode.UNAUTHENTICATED, "the session belongs to another process")
    resumed = session is not None
    if session is None:
        session = _open(tables, Role.WORKER, hello.run, hello.node_id, hello)
        session.name = hello.node_id
        session.fence, session.rank = hello.fence, hello.rank
        tables.workers[key] = session
        run.workers[session.id] = session
    _attach(tables, session, connection, hello.attempt)
    return _welcome(tables, session, hello.resume, resumed)


def _bound_to(session: Session) -> tuple[Role, str, str, bytes, Fence | None]:
    """What a session is for, and for nothing else (T5): one process, in its part."""
    return session.role, session.run_id, session.node_id, session.incarnation, session.fence


def hello_admin(tables: Tables, connection: Connection, hello: HelloAdmin) -> Welcome:
    """Let a tool look at the server."""
    connection.role = Role.ADMIN
    tables.deadlines.cancel(("hello", connection.id, 0))
    admin_heard(tables, connection)
    return Welcome(
        server=tables.identity.version,
        instance=tables.identity.instance,
        epoch=tables.identity.epoch,
        lease_ms=round(tables.settings.admin_idle_s * 1000),
        observed_host=connection.peer_host,
    )


def admin_heard(tables: Tables, connection: Connection) -> None:
    """An admin connection without requests is closed after a while."""
    tables.deadlines.set(("idle", connection.id, 0), tables.t + tables.settings.admin_idle_s)


def heard(tables: Tables, session: Session) -> None:
    """A frame of this session arrived: its lease starts anew."""
    session.heard_at = tables.t
    session.expiring_since = None
    _arm(tables, session)


def connection_lost(tables: Tables, connection: Connection, reason: str) -> None:
    """End of stream. Changes nothing unless this is the session's present connection (S6)."""
    session = connection.session
    current = session is not None and session.connection is connection
    tables.forget_connection(connection)
    if session is None or not current or tables.shutting_down:
        return
    session.dropped_at = tables.t
    run = tables.runs.get(session.run_id)
    member = session.member
    if session.role is Role.WORKER or run is None or member is None or member.finished:
        _arm(tables, session)
        return
    recount(run, member)
    tables.touch(run)
    _judge_together(tables, run, session)
    tables.report(
        "connection_lost", level="info" if len(run.burst) <= LOST_TOLD_MAX else "debug",
        run=run.id, node=session.node_id, fence=run.fence, reason=reason,
        grace_s=tables.settings.reconnect_grace_s,
    )  # fmt: skip
    _arm(tables, session)


def expire(tables: Tables, session: Session) -> None:
    """Its time is up: at the first tick it is only marked, at the next one it is over.

    It may have been heard since its deadline was set: requests do not move it, there are too many of
    them. A mark from before a stall does not count (simulator, seed 20236): what came during the stall may
    be unread when the first tick after it fires.
    """
    if _over_at(tables, session) > tables.t:
        session.expiring_since = None
        _arm(tables, session)
        return
    if session.expiring_since is None or session.expiring_since < tables.stall_ended_at:
        session.expiring_since = tables.t
        tables.deadlines.set(("session", session.id, 0), tables.t + SOCKET_POLL_S)
        return
    if session.role is Role.NODE:  # one that had left, too: its process may live on
        tables.remember_lost(session)
    generations.session_over(tables, session)
    remove(tables, session)


def fell_behind(tables: Tables, behind: bool) -> None:
    """Nodes whose connection closed may wait where the server does not see them: as long as it does not
    come to accept everybody, and the usual grace after that, only silence counts as death."""
    tables.behind = behind
    if not behind:
        tables.caught_up_at = tables.t
        for session in tables.sessions.values():
            if session.suspect and session.expiring_since is None:
                _arm(tables, session)


def supersede(tables: Tables, session: Session) -> None:
    """A new process with this node id came: the old one is fenced for ever (S5)."""
    tables.report(
        "node_superseded", level="warning", run=session.run_id, node=session.node_id,
        age_s=round(tables.t - session.opened_at, 3),
    )  # fmt: skip
    tables.remember_fenced(session)
    generations.session_replaced(tables, session)
    if session.connection is not None:
        tables.close(
            session.connection,
            ErrorCode.FENCED,
            f"a new process has taken over node id {session.node_id!r} in run {session.run_id!r}",
        )
    remove(tables, session)


def remove(tables: Tables, session: Session) -> None:
    """Forget a session. Its run has been told before."""
    tables.sessions.pop(session.id, None)
    tables.save("session", session.id)
    tables.save_all(("reply", session.id, request_id) for request_id in session.replies)
    tables.deadlines.cancel(("session", session.id, 0))
    run = tables.runs.get(session.run_id)
    if run is not None:
        run.burst.back(session.id)
    if session.role is Role.NODE:
        key = (session.run_id, session.node_id)
        if tables.nodes.get(key) is session:
            del tables.nodes[key]
    else:
        tables.workers.pop((session.run_id, session.node_id, session.incarnation), None)
        if run is not None:
            run.workers.pop(session.id, None)
    if session.connection is not None:
        tables.close(
            session.connection,
            ErrorCode.SESSION_LOST,
            f"node {session.node_id!r} was silent for its lease of "
            f"{words.seconds(session.lease_s)}",
        )


def _open(
    tables: Tables, role: Role, run_id: str, node_id: str, hello: HelloNode | HelloWorker
) -> Session:
    settings = tables.settings
    session = Session(
        id=tables.next_session(),
        role=role,
        run_id=run_id,
        node_id=node_id,
        name=node_id,
        incarnation=hello.incarnation,
        lease_s=min(max(hello.lease_ms / 1000, settings.lease_s_min), settings.lease_s_max),
        opened_at=tables.t,
        client=hello.client,
    )
    tables.sessions[session.id] = session
    tables.save("session", session.id)
    return session


def _attach(tables: Tables, session: Session, connection: Connection, attempt: int) -> None:
    """Make this the session's connection; the older one is cut, a still newer one wins."""
    if attempt < session.attempt:
        raise Refused(
            ErrorCode.SUPERSEDED,
            f"connection attempt {attempt} of node {session.node_id!r} came after attempt "
            f"{session.attempt}",
        )
    session.attempt = attempt
    old = session.connection
    if old is not None and old is not connection:
        old.session = None
        tables.close(old)
    session.connection = connection
    connection.session, connection.role = session, session.role
    session.peer_host, session.local_host = connection.peer_host, connection.local_host
    session.grant, session.protocol = connection.grant, connection.protocol
    tables.deadlines.cancel(("hello", connection.id, 0))
    was_suspect_since, session.dropped_at = session.dropped_at, None
    heard(tables, session)
    run = tables.runs.get(session.run_id)
    if run is not None:
        run.burst.back(session.id)
    if was_suspect_since is not None and run is not None and session.member is not None:
        recount(run, session.member)
        tables.touch(run)
        tables.report(
            "node_resumed", level="debug" if run.burst.told else "info",
            run=run.id, node=session.node_id, fence=run.fence,
            away_s=round(tables.t - was_suspect_since, 3),
        )  # fmt: skip


def _welcome(tables: Tables, session: Session, resume: Resume | None, resumed: bool) -> Welcome:
    run = tables.runs.get(session.run_id)
    # Whoever proved the session keeps its secret: the one that would be made now is another one after a restart.
    token = (
        resume.token
        if resume is not None
        else tables.session_token(session.id, session.run_id, session.node_id)
    )
    if session.token_hash != hash_of(token):
        session.token_hash = hash_of(token)
        tables.save("session", session.id)
    return Welcome(
        server=tables.identity.version,
        instance=tables.identity.instance,
        epoch=tables.identity.epoch,
        session=session.id,
        token=token,
        resumed=resumed,
        lease_ms=round(session.lease_s * 1000),
        observed_host=session.peer_host,
        view=None if run is None else view_of(run, session),
    )


def _proven(tables: Tables, resume: Resume, what: str) -> Session:
    """The session that a resume proves to own; `what` it belongs to, for the text of a refusal."""
    if resume.epoch != tables.identity.epoch:
        raise _unknown_epoch(tables, resume.epoch)
    session = tables.sessions.get(resume.session)
    fenced = tables.fenced.get(resume.session)
    known = session.token_hash if session is not None else fenced.token_hash if fenced else None
    if known is None:
        raise Refused(
            ErrorCode.SESSION_LOST,
            f"session {resume.session} is over: this {what} was lost while it was away",
        )
    if not hmac.compare_digest(known, hash_of(resume.token)):
        raise Refused(ErrorCode.UNAUTHENTICATED, "the session token is wrong")
    if session is None:
        raise Refused(ErrorCode.FENCED, "a newer process has taken over this node id")
    return session


def _unknown_epoch(tables: Tables, epoch: int) -> Refused:
    return Refused(
        ErrorCode.UNKNOWN_EPOCH,
        f"the server restarted without its memory (epoch {epoch} is over, now "
        f"{tables.identity.epoch}, instance {tables.identity.instance})",
    )


def _judge_together(tables: Tables, run: Run, session: Session) -> None:
    """Most of the run's connections at once: the network or a proxy, not the nodes."""
    burst = run.burst
    burst.broke(session.id, tables.t)
    if not burst.is_network(len(run.members)):
        return
    for one in burst.judge():
        other = tables.sessions[one]
        recovery_s = max(other.lease_s, len(run.members) * RECOVERY_S_PER_NODE)
        other.recover_until = (other.dropped_at or tables.t) + recovery_s
        _arm(tables, other)
    if not burst.told:
        burst.told = True
        tables.report(
            "connections_lost_together", level="warning", run=run.id, fence=run.fence,
            lost=len(burst.away), members=len(run.members),
            text="so many at once is the network or a proxy: the lease decides",
        )  # fmt: skip


def _arm(tables: Tables, session: Session) -> None:
    """Set the time at which this session is over if nothing is heard."""
    tables.deadlines.set(("session", session.id, 0), _over_at(tables, session))


def _over_at(tables: Tables, session: Session) -> float:
    lease_end = session.heard_at + session.lease_s
    due = lease_end
    if session.dropped_at is not None:
        since = max(session.dropped_at, tables.caught_up_at)
        due = max(since + tables.settings.reconnect_grace_s, session.recover_until)
        if tables.behind:
            due = max(due, lease_end)
    if tables.read_only:  # nobody could be told; and who comes back is not answered, so cannot beat
        return max(due, tables.t + READ_ONLY_S)
    return max(due, tables.stored_again_at + session.lease_s)
