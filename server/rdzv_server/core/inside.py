"""What goes on inside a run's generation, for tools: barriers, keys and what else its members share."""

from rdzv_proto.auth import Grant
from rdzv_proto.messages import BarrierStatus, GenerationStatus, ShowGeneration
from rdzv_server.core import barrier_words, probes, rights
from rdzv_server.core.model import Generation, Run
from rdzv_server.core.nccl import ends as nccl_ends
from rdzv_server.core.rounds import Barrier
from rdzv_server.core.tables import Tables
from rdzv_server.core.tcpstore import status as store_status

BARRIERS_SHOWN_MAX = 64
"""Open rounds in one answer, those that have waited longest first."""


def show(tables: Tables, grant: Grant, ask: ShowGeneration) -> GenerationStatus:
    """What goes on inside the run's generation (the live one, or the last one).

    Raises:
        Refused: UNKNOWN_RUN.
    """
    run = rights.run_seen(tables, grant, ask.run)
    generation = run.generation
    reply = GenerationStatus(
        barriers=_barriers(tables, run),
        run_keys=len(run.kv),
        value_bytes=run.quota.bytes_used,
    )
    if generation is None:
        return reply
    return GenerationStatus(
        fence=generation.fence,
        master=generation.master,
        master_reason=generation.master_reason,
        barriers=reply.barriers,
        store=store_status.show(tables, run),
        store_lost=generation.served and generation.store is None and generation is run.live,
        communicators=nccl_ends.show(tables, run) + store_status.communicators(tables, run),
        probes=probes.show(generation),
        keys=len(generation.kv),
        run_keys=reply.run_keys,
        value_bytes=reply.value_bytes,
    )


def _barriers(tables: Tables, run: Run) -> list[BarrierStatus]:
    generation = run.generation
    rows: list[tuple[Barrier, Generation | None]] = [(b, None) for b in run.barriers.waiting()]
    if generation is not None:
        rows += [(barrier, generation) for barrier in generation.barriers.waiting()]
    rows.sort(key=lambda row: row[0].began_at)
    return [_barrier(tables, run, of, barrier) for barrier, of in rows[:BARRIERS_SHOWN_MAX]]


def _barrier(
    tables: Tables, run: Run, generation: Generation | None, barrier: Barrier
) -> BarrierStatus:
    terms = barrier.terms
    assert terms is not None, "a barrier that somebody waits at has terms"
    waited_s = tables.t - barrier.began_at
    return BarrierStatus(
        name=barrier.name,
        of=terms.of,
        round=barrier.round,
        arrived=len(barrier.arrivals),
        needed=terms.needed,
        missing=barrier_words.missing_names(tables, run, generation, barrier),
        age_ms=max(0, round(waited_s * 1000)),
        left_ms=max(0, round((barrier.timeout_s - waited_s) * 1000)),
    )
