"""What a connection may do and see: by the scope and run of its token, and by its certificate.

What somebody may not see does not exist for him: the refusal is the same, word for word (T3).
"""

import hmac
import re

from rdzv_proto.auth import Grant, Scope
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import CloseRun, HelloNode, HelloWorker
from rdzv_server.core.model import Connection, Run
from rdzv_server.core.refusal import Refused
from rdzv_server.core.tables import Tables, hash_of

_MADE_UP = re.compile(r"-\d+-[0-9a-f]{6}")
"""What clients append to a host name where nobody chose a node id: process id and random digits."""


def check_hello(connection: Connection, hello: HelloNode | HelloWorker) -> None:
    """Whether this connection may speak for that node of that run.

    Raises:
        Refused: NOT_PERMITTED, UNAUTHENTICATED.
    """
    grant = connection.grant
    if not grant.scope.includes(Scope.JOIN):
        raise Refused(
            ErrorCode.NOT_PERMITTED,
            f"run {hello.run!r}: the token's scope is {grant.scope.value!r}, taking part needs "
            f"{Scope.JOIN.value!r}",
        )
    if not grant.covers(hello.run):
        raise Refused(
            ErrorCode.NOT_PERMITTED,
            f"the token is good for run {grant.run!r} only, not for {hello.run!r}",
            "Use the token of this run (`rdzv token new --run RUN` makes it).",
        )
    if connection.names is not None and not speaks_for(connection.names, hello.node_id):
        raise Refused(
            ErrorCode.UNAUTHENTICATED,
            f"the certificate is for {', '.join(connection.names[:8]) or 'nobody'}, not for node id "
            f"{hello.node_id!r}",
            "Set the node id to a name of the certificate (--rdzv-conf=node_id=NAME), or give the "
            "node a certificate for its host name.",
        )


def check_admin(connection: Connection, message: CloseRun) -> None:
    """Whether this connection may act on runs from outside.

    Raises:
        Refused: NOT_PERMITTED.
    """
    scope = connection.grant.scope
    if not scope.includes(Scope.ADMIN):
        raise Refused(
            ErrorCode.NOT_PERMITTED,
            f"{message.op}: the token's scope is {scope.value!r}, this needs {Scope.ADMIN.value!r}",
        )


def run_seen(tables: Tables, grant: Grant, run_id: str) -> Run:
    """The run of that name, for somebody who asks from outside.

    Raises:
        Refused: UNKNOWN_RUN: it is not there, or it is none of his business.
    """
    run = tables.runs.get(run_id)
    if run is None or not grant.covers(run_id):
        raise Refused(ErrorCode.UNKNOWN_RUN, f"there is no run {run_id!r} on this server")
    return run


def speaks_for(names: tuple[str, ...], node_id: str) -> bool:
    """Whether a certificate for these names may act as a node: its id is one of them, or was made up
    by the client library from one. Wildcards speak for nobody."""
    node_id = node_id.lower()
    for name in (name.lower() for name in names):
        if node_id.startswith(name):
            rest = node_id[len(name) :]
            if not rest or _MADE_UP.fullmatch(rest):
                return True
    return False


def check_worker_token(tables: Tables, hello: HelloWorker) -> None:
    """A training process has the token that its agent got for it: of this server process, or of one before.

    Raises:
        Refused: UNAUTHENTICATED; STALE_GENERATION, where nobody is left who could vouch for it.
    """
    expected = tables.worker_token(hello.run, hello.node_id, hello.fence)
    if hmac.compare_digest(expected, hello.worker_token):
        return
    agent = tables.nodes.get((hello.run, hello.node_id))
    if agent is None:
        raise Refused(
            ErrorCode.STALE_GENERATION,
            f"node {hello.node_id!r} is not in run {hello.run!r} any more, so no training process can attach to it",
        )
    mine = hash_of(hello.worker_token)
    known = [token for number, token in agent.worker_hashes if number == hello.fence.generation]
    if not any(hmac.compare_digest(mine, token) for token in known):
        raise Refused(ErrorCode.UNAUTHENTICATED, "the worker token is wrong")
