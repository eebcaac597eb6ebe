"""Which module answers what members ask inside a run or a generation: keys, barriers, unique ids, reports."""

from collections.abc import Callable
from typing import Any

from rdzv_proto.messages import AnyReply, AnyRequest, Barrier
from rdzv_server.core import barriers, keys, probes
from rdzv_server.core.kv import Reading
from rdzv_server.core.model import Session
from rdzv_server.core.nccl import ends as nccl_ends
from rdzv_server.core.nccl import requests as nccl_requests
from rdzv_server.core.tables import Tables

Handler = Callable[[Tables, Session, int, Any], AnyReply | None]
"""Gives the answer, or None if the request waits; raises `Refused`."""


def _every(kinds: Any, handler: Handler) -> dict[type[AnyRequest], Handler]:
    return dict.fromkeys(kinds.__args__, handler)


HANDLERS: dict[type[AnyRequest], Handler] = {
    Barrier: barriers.arrive,
    **_every(Reading, keys.read),
    **_every(keys.Writing, keys.write),
    **_every(keys.Looking, keys.look),
    **_every(nccl_requests.Requests, nccl_requests.handle),
    **_every(
        probes.Reports,
        lambda tables, session, _, message: probes.take(tables, session, message),
    ),
}
"""A table, since most of what a server does comes through here."""

OF_NODES = frozenset(HANDLERS)
OF_WORKERS = OF_NODES - set(probes.Reports.__args__)


def wait_over(tables: Tables, session: Session, request_id: int) -> None:
    """The time of a request that waits for ids or keys is up."""
    if not nccl_ends.wait_over(tables, session, request_id):
        keys.wait_over(tables, session, request_id)
