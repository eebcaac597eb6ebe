"""What agents report of a generation: who reaches MASTER_ADDR:MASTER_PORT, and their workers.

Workers that cannot reach that address hang in `init_process_group` until their own timeout, and say
nothing that names the network. The agents' probes turn it into a sentence, here and in
`rdzv status`. The process ids of the workers let a store connection be told by its rank.
"""

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Address, Done, MasterProbe, ProbeStatus, WorkersStarted
from rdzv_server.core import waits, words
from rdzv_server.core.events import Level
from rdzv_server.core.model import Generation, Run, Session
from rdzv_server.core.refusal import Refused
from rdzv_server.core.tables import Tables

Reports = MasterProbe | WorkersStarted
"""What agents send; all of it is taken here."""

WARNINGS_MAX = 8
"""Of one generation. When a firewall cuts all nodes off, the log and the story need not have a line
for each; `rdzv status` does."""


def take(tables: Tables, session: Session, report: Reports) -> Done:
    """Note what a participant reports of its generation.

    Raises:
        Refused: STALE_GENERATION, NOT_A_MEMBER, MALFORMED.
    """
    run, generation = waits.generation_of(tables, session, report.fence)
    match report:
        case MasterProbe():
            _probed(tables, run, generation, session, report)
        case WorkersStarted():
            _started(generation, session, report)
    return Done()


def show(generation: Generation) -> list[ProbeStatus]:
    """What the nodes said last, by group rank; those that cannot reach it first."""
    rows = [
        (not probe.error, generation.rank_of[session_id], probe)
        for session_id, probe in generation.probes.items()
    ]
    rows.sort(key=lambda row: row[:2])
    return [
        ProbeStatus(
            node=words.short(generation.seats[rank]), error=probe.error, after_ms=probe.after_ms
        )
        for _, rank, probe in rows[: limits.MEMBERS_PER_PAGE_MAX]
    ]


def _probed(
    tables: Tables, run: Run, generation: Generation, session: Session, probe: MasterProbe
) -> None:
    before = generation.probes.get(session.id)
    generation.probes[session.id] = probe
    if before is not None and (before.error, before.master) == (probe.error, probe.master):
        return
    level, event, text = _in_words(session, probe)
    if level == "warning" and _unreachable(generation) > WARNINGS_MAX:
        return
    tables.report(
        event, level=level, run=run.id, node=session.node_id, fence=generation.fence,
        after_s=round(probe.after_ms / 1000, 1), text=text,
    )  # fmt: skip


def _in_words(session: Session, probe: MasterProbe) -> tuple[Level, str, str]:
    where = master_text(probe.master)
    if not probe.error:
        return "debug", "master_reached", f"{session.name} reached {where}"
    if probe.refused:
        return (
            "info", "master_not_listening", f"{session.name} reached {where}, but {probe.error}"
        )  # fmt: skip
    return "warning", "master_unreachable", f"{session.name} cannot reach {where} ({probe.error})"


def _unreachable(generation: Generation) -> int:
    return sum(bool(probe.error) and not probe.refused for probe in generation.probes.values())


def _started(generation: Generation, session: Session, report: WorkersStarted) -> None:
    if len(report.ranks) != len(report.pids):
        raise Refused(
            ErrorCode.MALFORMED, f"{len(report.ranks)} ranks and {len(report.pids)} process ids"
        )
    generation.worker_pids[session.id] = dict(zip(report.pids, report.ranks, strict=True))
    generation.worker_world = max(generation.worker_world, report.world_size)


def master_text(master: Address) -> str:
    """`10.0.0.1:43211`, `[fd00::1]:43211`."""
    host = f"[{master.host}]" if ":" in master.host else master.host
    return f"{host}:{master.port}"
