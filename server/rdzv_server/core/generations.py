"""A generation begins, ends once with one reason, and members leave it.

Everything that can end a generation comes through `end`: loss, leave, replacement, a rejoin, a
scale-up, the end of the run. The first reason is the only one (S9).
"""

import hashlib
import ipaddress
from collections.abc import Sequence

import msgspec

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Address, Ended, Error, Fence, Joined
from rdzv_server.core import (
    barriers,
    roster,
    waits,
    words,
)
from rdzv_server.core.durable.saving import keys_of_generation
from rdzv_server.core.kv import Namespace
from rdzv_server.core.model import Generation, Member, Participant, Run, Session
from rdzv_server.core.nccl import ends as nccl_ends
from rdzv_server.core.phases import Cause, move
from rdzv_server.core.quorum import seats
from rdzv_server.core.ranks import Candidate, Seat
from rdzv_server.core.refusal import Refused
from rdzv_server.core.tables import Tables, hash_of
from rdzv_server.core.tcpstore import stores
from rdzv_server.core.views import push_view

SCALE_UP_MEMORY_S = 600.0
"""Scale-ups within this time lengthen the delay before the next one."""

WORKER_TOKENS_KEPT = 4
"""Of one node: a generation may have two (one from before a restart of the server), and workers of an older one
learn that it is over."""

_GONE = {"lost": ErrorCode.SESSION_LOST, "replaced": ErrorCode.FENCED}
"""By the kind of an end: what a member's waiting requests are told, unless it left of its own accord."""

_digest_of = msgspec.msgpack.Encoder().encode


def form(tables: Tables, run: Run, chosen: Sequence[Candidate], reason: str) -> None:
    """Make the next generation of these nodes, in this order, and tell each its rank."""
    old = run.generation
    if old is not None:
        waits.generation_over(tables, run, old)
        tables.save_all(keys_of_generation(run, old))
    run.number += 1
    fence = Fence(tables.identity.epoch, run.number)
    members = [run.members[c.node_id] for c in chosen]
    participants = tuple(_participant(m) for m in members)
    master, master_reason = _master(members)
    generation = Generation(
        fence=fence,
        participants=participants,
        rank_of={p.session_id: rank for rank, p in enumerate(participants)},
        digest=_digest(fence, participants),
        reason=reason,
        master=master,
        master_reason=master_reason,
        formed_at=tables.t,
        kv=Namespace(run.quota),
        seats=tuple(Seat(p.node_id, p.name) for p in participants),
        store=stores.adopt(tables, run, fence),
    )
    generation.served = generation.store is not None
    move(tables, run, Cause.FORMED)
    run.generation = generation
    run.formed += 1
    tables.totals.generations_formed += 1
    run.min_met_at = run.newcomer_at = None
    run.announced = 0
    run.departed.clear()
    tables.save_all(keys_of_generation(run, generation))
    for member in run.members.values():
        member.seat = generation.rank_of.get(member.session.id)
        tables.save("session", member.session.id)
    tables.report(
        "generation_formed", run=run.id, fence=fence, world_size=len(participants),
        rank0=participants[0].node_id, reason=reason,
        after_s=round(tables.t - run.forming_at, 3),
    )  # fmt: skip
    for member in members:
        join, member.join = member.join, None
        assert join is not None, "a participant without a join"
        del run.joins[member.node_id]
        tables.answer(
            member.session, join.request_id, joined(tables, run, member.session), keep=True
        )
    for member in run.members.values():
        roster.recount(run, member)


def joined(tables: Tables, run: Run, session: Session) -> Joined:
    """The assignment of one participant of the run's generation."""
    generation = run.generation
    assert generation is not None, "no generation to assign"
    token = tables.worker_token(run.id, session.node_id, generation.fence)
    mine = (generation.fence.generation, hash_of(token))
    if mine not in session.worker_hashes:
        session.worker_hashes = (*session.worker_hashes[1 - WORKER_TOKENS_KEPT :], mine)
    tables.save("session", session.id)
    return Joined(
        fence=generation.fence,
        group_rank=generation.rank_of[session.id],
        world_size=len(generation.participants),
        digest=generation.digest,
        reason=generation.reason,
        master=generation.master,
        master_reason=generation.master_reason,
        worker_token=token,
        store_port=0 if generation.store is None else generation.store.port,
    )


def end(tables: Tables, run: Run, ended: Ended) -> None:
    """End the live generation, once, and tell everyone in it why."""
    generation = run.live
    if generation is None:
        return
    generation.ended = run.last_ended = ended
    tables.save("end", run.id)
    tables.totals.generations_ended[ended.kind] += 1
    tables.report(
        "generation_ended", run=run.id, node=ended.node_id or "-", fence=generation.fence,
        level="info" if ended.kind == "finished" else "warning",
        kind=ended.kind, reason=ended.reason, lived_s=round(tables.t - generation.formed_at, 3),
    )  # fmt: skip
    stores.retire(tables, generation)
    if ended.kind == "scale_up":
        run.scale_ups.append(tables.t)
    nccl_ends.generation_over(tables, run, generation, waits.stale_text(run, generation.fence))
    run.announced = 0
    run.newcomer_at = run.min_met_at = None
    run.forming_at = run.renewed_at = tables.t
    run.renewals = 0
    if ended.kind == "finished":
        move(tables, run, Cause.COMPLETED)
        run.reason = ended.reason
        refuse_joins(tables, run, ErrorCode.RUN_FINISHED, f"run {run.id!r}: {ended.reason}")
    else:
        waits.generation_over(tables, run, generation)
        move(tables, run, Cause.GENERATION_ENDED)
        for member in run.joins.values():  # standbys had no deadline while the generation lived
            if member.join is not None:
                member.join.since = tables.t
        _note_finished(run, generation)
    push_view(tables, run)
    tables.touch(run)


def finish(tables: Tables, run: Run, member: Member) -> None:
    """The node's work is done: its departure is no loss, and it is no candidate any more."""
    generation = run.generation
    if member.finished or generation is None:
        return
    member.finished = True
    generation.finished.add(member.session.id)
    tables.save("end", run.id)
    tables.save_hints(run, member)
    roster.release_hint(run, member)
    roster.recount(run, member)
    rank = generation.rank_of.get(member.session.id)
    tables.report("node_finished", run=run.id, node=member.node_id, fence=generation.fence)
    barriers.node_finished(tables, generation)
    if generation.live:
        if len(generation.finished) == len(generation.participants):
            count = len(generation.participants)
            text = "its only node finished" if count == 1 else f"all {count} nodes finished"
            end(tables, run, Ended(kind="finished", reason=text))
    else:
        _depart(run, f"{words.node(member, rank)} finished")
    tables.touch(run)


def depart(tables: Tables, run: Run, member: Member, ended: Ended) -> None:
    """A member is gone. If it was an unfinished participant, its generation ends with `ended`."""
    session = member.session
    generation = run.live
    in_world = generation is not None and session.id in generation.rank_of
    failed = ended.kind == "failed" and member.seat is not None
    if ended.kind == "failed" and run.policy is not None and run.policy.below_min == "wait":
        failed = False
    nccl_ends.session_gone(tables, run, session, ended.reason)
    join, member.join = member.join, None
    tables.save_hints(run, member)
    roster.leave(run, member)
    session.member = None
    gone = _why_gone(run, session, ended)
    if join is not None and ended.kind == "lost":  # its client asks again in a new session
        tables.settle(session, join.request_id, gone, keep=False)
    elif join is not None:
        tables.answer(session, join.request_id, gone, keep=True)
    if in_world and not member.finished:
        if failed:
            _depart(run, ended.reason)
            ended = msgspec.structs.replace(ended, reason=_with_shortfall(run, ended.reason))
        end(tables, run, ended)
    elif failed and not member.finished:
        _depart(run, ended.reason)
    barriers.session_over(tables, run, session, ended.reason)
    waits.session_over(tables, session, gone)
    tables.touch(run)


def _why_gone(run: Run, session: Session, ended: Ended) -> Error:
    """What requests that still wait are told when their node is no member any more."""
    code = _GONE.get(ended.kind, ErrorCode.NOT_A_MEMBER)
    text = ended.reason
    if code is ErrorCode.NOT_A_MEMBER:
        text = f"{words.node(session)} left run {run.id!r}"
    return Refused(code, text).reply()


def session_over(tables: Tables, session: Session) -> None:
    """A session expired: its connection did not come back, or it was silent for its lease."""
    run, member = tables.runs.get(session.run_id), session.member
    silent_s, why = tables.t - session.heard_at, _why_lost(tables, session)
    if run is None or member is None:
        end_waits(tables, run, session, why)
        return
    rank = _rank(run, session)
    if not member.finished:
        tables.report(
            "node_lost", level="warning", run=run.id, node=session.node_id, fence=run.fence,
            name=session.name, last_heard_s_ago=round(silent_s, 3), reason=why,
        )  # fmt: skip
    text = f"{words.node(session, rank)} was lost: {why}; last heard {words.seconds(silent_s)} ago"
    depart(tables, run, member, Ended(kind="lost", reason=text, node_id=session.node_id))


def _why_lost(tables: Tables, session: Session) -> str:
    if session.suspect:
        away_s = tables.t - (session.dropped_at or 0.0)
        return f"its connection closed {words.seconds(away_s)} ago and did not come back"
    return f"silent for longer than its lease of {words.seconds(session.lease_s)}"


def session_replaced(tables: Tables, session: Session) -> None:
    """A new process took the session's node id."""
    run, member = tables.runs.get(session.run_id), session.member
    if run is None or member is None:
        end_waits(tables, run, session, "a new process has taken over its node id")
        return
    who = words.node(session, _rank(run, session))
    text = f"{who} was replaced by a new process with the same node id"
    depart(tables, run, member, Ended(kind="replaced", reason=text, node_id=session.node_id))


def end_waits(tables: Tables, run: Run | None, session: Session, why: str) -> None:
    """A session without a part in the membership is over: a worker, or a visitor of the run."""
    if run is not None:
        nccl_ends.session_gone(tables, run, session, why)
        barriers.session_over(tables, run, session, why)
    lost = Refused(ErrorCode.SESSION_LOST, f"{words.node(session)} is gone: {why}")
    waits.session_over(tables, session, lost.reply())


def refuse_joins(
    tables: Tables, run: Run, code: ErrorCode, text: str, *, up_to: int | None = None
) -> None:
    """Answer waiting joins with an error: all, or those of members that arrived up to an order."""
    refusal = Refused(code, text).reply()
    for member in list(run.joins.values()):
        if member.join is not None and (up_to is None or member.order <= up_to):
            refuse_join(tables, run, member, refusal)


def refuse_join(tables: Tables, run: Run, member: Member, refusal: Error) -> None:
    """Answer one waiting join with an error."""
    join, member.join = member.join, None
    run.joins.pop(member.node_id, None)
    tables.save_hints(run, member)
    roster.release_hint(run, member)
    roster.recount(run, member)
    if join is not None:
        tables.answer(member.session, join.request_id, refusal, keep=True)


def possible_world(run: Run) -> int:
    """Size of the world that the living, unfinished nodes can form; 0 if they are too few."""
    return 0 if run.policy is None else seats(run.policy, run.counts.possible)


def _depart(run: Run, text: str) -> None:
    run.departed.append(text)
    run.departed_order = run.arrivals


def _note_finished(run: Run, generation: Generation) -> None:
    """Nodes that finished in a generation that others must repeat cannot take part in that."""
    for rank, participant in enumerate(generation.participants):
        if participant.session_id in generation.finished:
            _depart(run, f"{words.node(participant, rank)} finished")


def _with_shortfall(run: Run, reason: str) -> str:
    if run.policy is None or possible_world(run):
        return reason
    return f"{reason}; {run.counts.possible} of min {run.policy.min_nodes} are left"


def _rank(run: Run, session: Session) -> int | None:
    return None if run.generation is None else run.generation.rank_of.get(session.id)


def _participant(member: Member) -> Participant:
    join, session = member.join, member.session
    assert join is not None, "only joined members take part"
    return Participant(session.node_id, session.name, session.id, session.incarnation, join.address)


def _digest(fence: Fence, participants: Sequence[Participant]) -> bytes:
    table = [
        (p.node_id, p.name, p.session_id, p.address.host, p.address.port) for p in participants
    ]
    return hashlib.sha256(_digest_of((fence, table))).digest()[:16]


def _master(members: Sequence[Member]) -> tuple[Address, str]:
    """MASTER_ADDR and MASTER_PORT of a generation, and why (DESIGN 11)."""
    first, others = members[0], members[1:]
    address = Address() if first.join is None else first.join.address
    if address.explicit:
        return address, "given with --local-addr on the rank 0 node"
    # A published container port also shows as loopback to the node, but not to the server.
    beside = bool(address.host) and _loopback(address.host) and _loopback(first.session.peer_host)
    remote = next((m.session for m in others if not _loopback(m.session.peer_host)), None)
    if beside and remote is not None:
        return (
            Address(host=remote.local_host, port=address.port),
            f"rank 0 sits beside the server; {words.node(remote)} reached it at this address",
        )
    return address, "local address of the rank 0 node's connection to the server"


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host in ("", "localhost")  # an unknown peer tells nothing
