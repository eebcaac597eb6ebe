"""Which module answers what members ask inside a run or a generation: keys, barriers, unique ids, reports."""

from rdzv_proto.messages import (
    AnyReply,
    Barrier,
    KvAdd,
    KvAppend,
    KvCas,
    KvCheck,
    KvCount,
    KvDelete,
    KvGet,
    KvList,
    KvMultiGet,
    KvMultiSet,
    KvSet,
    KvWait,
    MasterProbe,
    NcclFail,
    NcclGet,
    NcclPut,
    NcclReady,
    WorkersStarted,
)
from rdzv_server.core import barriers, keys, probes
from rdzv_server.core.model import Session
from rdzv_server.core.nccl import ends as nccl_ends
from rdzv_server.core.nccl import requests as nccl_requests
from rdzv_server.core.tables import Tables

Inside = (
    KvSet | KvGet | KvWait | KvAdd | KvMultiGet | KvMultiSet | KvCheck | KvCas | KvAppend
    | KvDelete | KvCount | KvList | Barrier | NcclGet | NcclPut | NcclReady | NcclFail
    | MasterProbe | WorkersStarted
)  # fmt: skip
"""All of it."""

OF_NODES = Inside.__args__
OF_WORKERS = tuple(kind for kind in OF_NODES if kind not in (MasterProbe, WorkersStarted))


def reply(tables: Tables, session: Session, request_id: int, message: Inside) -> AnyReply | None:
    """The answer, or None if the request waits.

    Raises:
        Refused: as the module that answers says.
    """
    match message:
        case KvGet() | KvWait() | KvMultiGet():
            return keys.read(tables, session, request_id, message)
        case KvSet() | KvAdd() | KvMultiSet() | KvCas() | KvAppend() | KvDelete():
            return keys.write(tables, session, message)
        case KvCheck() | KvCount() | KvList():
            return keys.look(tables, session, message)
        case Barrier():
            return barriers.arrive(tables, session, request_id, message)
        case NcclGet() | NcclPut() | NcclReady() | NcclFail():
            return nccl_requests.handle(tables, session, request_id, message)
        case MasterProbe() | WorkersStarted():
            return probes.take(tables, session, message)


def wait_over(tables: Tables, session: Session, request_id: int) -> None:
    """The time of a request that waits for ids or keys is up."""
    if not nccl_ends.wait_over(tables, session, request_id):
        keys.wait_over(tables, session, request_id)
