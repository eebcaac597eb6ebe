"""The replies that a session has on record: a repeated request gets the same one, and is not done twice."""

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import AnyReply, Joined
from rdzv_server.core.model import Session
from rdzv_server.core.refusal import RefusedUnread
from rdzv_server.core.tables import Tables


def not_kept(session: Session, request_id: int) -> RefusedUnread:
    """Why a request is not done whose reply could not be kept: MALFORMED (it was acknowledged), or LIMIT_EXCEEDED."""
    if request_id <= session.acknowledged:
        return RefusedUnread(
            ErrorCode.MALFORMED, f"the reply to request {request_id} was acknowledged before"
        )
    return RefusedUnread(
        ErrorCode.LIMIT_EXCEEDED,
        f"{limits.REPLIES_RECORDED_MAX} replies of this session are not acknowledged",
    )


def acknowledge(tables: Tables, session: Session, up_to: int) -> None:
    """The client has all replies up to this request: forget them."""
    if up_to > session.acknowledged:
        session.acknowledged = up_to
        done = list(session.replies)
        if max(done, default=0) <= up_to:  # mostly, and there may be a thousand
            session.replies.clear()
            session.transient.clear()
        else:
            done = [request_id for request_id in done if request_id <= up_to]
            for request_id in done:
                del session.replies[request_id]
            session.transient.difference_update(done)
        tables.save_later(("reply", session.id, request_id) for request_id in done)
        tables.save_later([("session", session.id)])


def outdated(tables: Tables, session: Session, recorded: AnyReply) -> bool:
    """A recorded "you are in" is only repeated while it is true (S8); else the join waits anew."""
    run = tables.runs.get(session.run_id)
    live = None if run is None else run.live
    if not isinstance(recorded, Joined) or (live is not None and live.fence == recorded.fence):
        return False
    for request_id in [k for k, v in session.replies.items() if v is recorded]:
        session.transient.discard(request_id)
        del session.replies[request_id]
    return True
