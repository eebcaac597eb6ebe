"""Which function answers what a session asks, and so what it may ask at all: a table for each role.

Tables, and no chain of cases: most of what a server does comes through here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Alive,
    AnyReply,
    AnyRequest,
    Barrier,
    CloseRun,
    Done,
    Finished,
    Heartbeat,
    Join,
    KvAdd,
    KvAppend,
    KvCas,
    KvDelete,
    KvGet,
    KvMultiSet,
    KvSet,
    Leave,
    MemberPage,
    Members,
)
from rdzv_server.core import barriers, key_writes, keys, membership, probes, replies, status
from rdzv_server.core.model import Role, Session
from rdzv_server.core.nccl import ends as nccl_ends
from rdzv_server.core.nccl import requests as nccl_requests
from rdzv_server.core.refusal import Refused
from rdzv_server.core.tables import Tables

Handler = Callable[[Tables, Session, int, Any], AnyReply | None]
"""Gives the answer, or None if the request waits; raises `Refused`."""


def wait_over(tables: Tables, session: Session, request_id: int) -> None:
    """The time of a request that waits for ids or keys is up."""
    if not nccl_ends.wait_over(tables, session, request_id):
        keys.wait_over(tables, session, request_id)


def _heartbeat(tables: Tables, session: Session, _request_id: int, ask: Heartbeat) -> Alive:
    replies.acknowledge(tables, session, ask.acknowledged)
    return Alive()


def _members(tables: Tables, session: Session, _request_id: int, ask: Members) -> MemberPage:
    _check_own_run(session, ask.run)
    return status.members(tables, session.grant, ask)


def _close_run(tables: Tables, session: Session, _request_id: int, ask: CloseRun) -> Done:
    _check_own_run(session, ask.run)
    who = f"node {session.node_id}"
    return membership.close_run(tables, session.grant, session.run_id, who, ask)


def _check_own_run(session: Session, run_id: str) -> None:
    if run_id != session.run_id:
        raise Refused(ErrorCode.UNKNOWN_RUN, f"this session is not of run {run_id!r}")


def _each(kinds: Any, handler: Handler) -> dict[type[AnyRequest], Handler]:
    return dict.fromkeys(kinds.__args__, handler)


def _at_once(answer: Callable[[Tables, Session, Any], AnyReply]) -> Handler:
    """Of a function that never lets a request wait, and so need not know its id."""
    return lambda tables, session, _, message: answer(tables, session, message)


_OF_BOTH: dict[type[AnyRequest], Handler] = {
    Heartbeat: _heartbeat,
    Members: _members,
    Barrier: barriers.arrive,
    KvGet: keys.get,
    **_each(keys.Several, keys.read),
    KvSet: key_writes.put,
    KvAdd: key_writes.add,
    KvMultiSet: key_writes.put_several,
    KvCas: key_writes.compare_and_set,
    KvAppend: key_writes.append,
    KvDelete: key_writes.delete,
    **_each(keys.Looking, keys.look),
    **_each(nccl_requests.Requests, nccl_requests.handle),
}

HANDLERS: Mapping[Role, Mapping[type[AnyRequest], Handler]] = {
    Role.NODE: {
        **_OF_BOTH,
        Join: membership.join,
        Finished: _at_once(membership.finished),
        Leave: _at_once(membership.leave),
        CloseRun: _close_run,
        **_each(probes.Reports, _at_once(probes.take)),
    },
    Role.WORKER: _OF_BOTH,
}
"""What is not in the table of its role is refused."""
