"""Requests that wait inside a run: who may ask, how they are parked, and how they all come to an end.

A waiting request is an entry in a table and an id in its session's `parked`. It ends by what it waits
for, by its deadline, by the end of its generation (S11), or with its session; whichever comes first.
"""

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import AnyRequest, Error, Fence
from rdzv_server.core.durable.saving import OF_GENERATION, keys_of_space
from rdzv_server.core.model import Generation, Phase, Role, Run, Session
from rdzv_server.core.refusal import Refused
from rdzv_server.core.tables import Tables


def usable(run: Run, fence: Fence) -> Generation:
    """The run's generation if the fence names it and it still answers.

    Raises:
        Refused: STALE_GENERATION, with how that generation ended.
    """
    generation = run.generation
    if generation is None or generation.fence != fence or not generation.usable:
        raise Refused(ErrorCode.STALE_GENERATION, stale_text(run, fence))
    return generation


def generation_of(tables: Tables, session: Session, fence: Fence) -> tuple[Run, Generation]:
    """The generation that a request of this session names.

    Raises:
        Refused: STALE_GENERATION, NOT_A_MEMBER.
    """
    run = tables.runs.get(session.run_id)
    if run is None:
        raise Refused(ErrorCode.STALE_GENERATION, f"run {session.run_id!r} is over")
    generation = run.generation
    if generation is None or generation.ended is not None or generation.fence != fence:
        generation = usable(run, fence)
    if session.id not in generation.rank_of and not (
        session.role is Role.WORKER and session.fence == fence
    ):
        raise Refused(
            ErrorCode.NOT_A_MEMBER,
            f"node {session.node_id!r} is not in generation {fence} of run {run.id!r}",
        )
    return run, generation


def park(session: Session, request_id: int, kind: type[AnyRequest]) -> None:
    """Let a request wait that does not wait yet: one that does ends in `asked_again`.

    Raises:
        Refused: LIMIT_EXCEEDED.
    """
    if len(session.parked) >= limits.PARKED_PER_SESSION_MAX:
        raise Refused(
            ErrorCode.LIMIT_EXCEEDED,
            f"{limits.PARKED_PER_SESSION_MAX} requests of this session wait already",
        )
    session.parked[request_id] = kind


def asked_again(session: Session, request_id: int, message: AnyRequest) -> Error | None:
    """A retry of a request that waits: nothing is to be done. Another request under its id would end that wait
    for the session and not for what it waits for.

    Returns:
        None for a retry, otherwise the refusal; it must not be taken for the end of the wait.
    """
    kind = session.parked[request_id]
    if type(message) is kind:
        return None
    text = f"request id {request_id} is that of a {kind.op} that still waits"
    return Refused(ErrorCode.MALFORMED, text).reply()


def generation_over(tables: Tables, run: Run, generation: Generation) -> None:
    """Everybody who waits for something of a generation learns that it is over, and its keys are gone
    (S11, L3)."""
    refusal = Refused(ErrorCode.STALE_GENERATION, stale_text(run, generation.fence)).reply()
    for session_id, request_id in generation.kv.waiters():
        generation.kv.drop((session_id, request_id))
        session = tables.sessions.get(session_id)
        if session is not None:
            tables.answer(session, request_id, refusal, keep=False)
    for barrier in generation.barriers.waiting():
        tables.close_round(barrier)
        waiting = [(a.session, a.request_id) for a in barrier.take()]
        tables.release(waiting, refusal, keep=True)
    tables.save_all(keys_of_space(run.id, OF_GENERATION, generation.kv, generation.barriers))
    generation.kv.clear()


def session_over(tables: Tables, session: Session, answer: Error) -> None:
    """End all keys waits and joins of one session with an error. Barriers and ids, which others share,
    are told by their own modules before."""
    run = tables.runs.get(session.run_id)
    for request_id in list(session.parked):
        if run is not None:
            run.kv.drop((session.id, request_id))
            if run.generation is not None:
                run.generation.kv.drop((session.id, request_id))
                run.generation.ids.drop((session.id, request_id))
        tables.answer(session, request_id, answer, keep=False)


def stale_text(run: Run, fence: Fence) -> str:
    """How a generation ended, for those who still name it."""
    generation = run.generation
    if generation is None or (run.phase is Phase.ENDED and not run.members):
        return f"generation {fence} of run {run.id!r} is over"
    if generation.fence == fence and generation.ended is not None:
        return f"generation {fence} of run {run.id!r} ended: {generation.ended.reason}"
    return f"generation {fence} of run {run.id!r} is over; the last one is {generation.fence}"
