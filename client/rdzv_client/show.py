"""What `rdzv status` prints: tables for people, one JSON document for programs."""

from collections.abc import Sequence

import msgspec

from rdzv_proto.agreement import versions
from rdzv_proto.messages import GenerationStatus, MemberStatus, RunStatus, ServerStatus
from rdzv_proto.text import visible

_NONE = "–"

NAMES_SHOWN_MAX = 8
"""Nodes that one line names."""


def duration(ms: float) -> str:
    """`850 ms`, `41 s`, `12 min`, `3.5 h`, `2.1 d`."""
    for unit, size_ms, below, digits in (
        ("ms", 1, 1_000, 0),
        ("s", 1_000, 120_000, 0),
        ("min", 60_000, 7_200_000, 0),
        ("h", 3_600_000, 172_800_000, 1),
    ):
        if ms < below:
            return f"{ms / size_ms:.{digits}f} {unit}"
    return f"{ms / 86_400_000:.1f} d"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be; what others wrote is escaped, cell by cell."""
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    )


def server_lines(
    where: str, status: ServerStatus, round_trip_s: float, spoken: int | None = None
) -> str:
    """Two lines about the server itself, and one more if it cannot store anything.

    Args:
        where: its address.
        status: what it said.
        round_trip_s: how long that took.
        spoken: protocol version in which it was asked; None: its own.
    """
    trouble = f"\nREAD-ONLY: {status.read_only}" if status.read_only else ""
    refused = f" · {status.denied} refused for their credentials" if status.denied else ""
    leads = f" · leads as {status.leader}" if status.leader else ""
    oldest = status.protocol_min or status.protocol
    protocol = versions(oldest, status.protocol).partition(" ")[2]
    if spoken not in (None, status.protocol):
        protocol += f" ({spoken} with this client)"
    return (
        f"server {where} · {status.server} · protocol {protocol} · instance "
        f"{status.instance} · epoch {status.epoch} · state {status.state}{leads} · up "
        f"{duration(status.uptime_ms)}\n"
        f"{_count(status.runs, 'run')} · {_count(status.sessions, 'session')} · "
        f"{_count(status.connections, 'connection')} · stalled {_count(status.stalls, 'time')} "
        f"({duration(status.stalled_ms)}) · round trip {round_trip_s * 1000:.1f} ms{refused}{trouble}"
    )


def runs_table(runs: Sequence[RunStatus]) -> str:
    """One row per run."""
    rows = [
        (
            run.run,
            run.phase,
            _NONE if run.fence is None else str(run.fence.generation),
            nodes(run),
            duration(run.phase_age_ms),
            why(run),
        )
        for run in runs
    ]
    return table(("RUN", "STATE", "GEN", "NODES", "SINCE", "WHY"), rows)


def nodes(run: RunStatus) -> str:
    """`3 of 2:4, 1 standby`."""
    policy = run.policy
    limits = "" if policy is None else f" of {_range(policy.min_nodes, policy.max_nodes)}"
    count = run.participants if run.phase == "live" else run.members - run.finished
    text = f"{count}{limits}"
    if run.standbys:
        text += f", {run.standbys} standby"
    if run.finished:
        text += f", {run.finished} finished"
    return text


def why(run: RunStatus) -> str:
    """The decision's reason, and who is missing."""
    text = run.reason
    if run.waiting_for:
        text += f" · waiting for {', '.join(run.waiting_for)}"
    return text or _NONE


def run_lines(run: RunStatus, members: Sequence[MemberStatus], newest: int = 0) -> str:
    """Everything about one run.

    Args:
        run: what it is.
        members: all of them.
        newest: protocol version of the server; 0: not known.
    """
    fence = _NONE if run.fence is None else str(run.fence)
    lines = [
        f"run {run.run} · {run.phase} for {duration(run.phase_age_ms)} · fence {fence}",
        f"nodes: {nodes(run)}",
        f"why: {why(run)}",
    ]
    if run.ended is not None:
        lines.append(f"last end ({run.ended.kind}): {run.ended.reason}")
    if text := skew(members, newest):
        lines.append(f"clients: {text}")
    rows = [
        (
            _NONE if member.group_rank is None else str(member.group_rank),
            member.name,
            member.node_id,
            member.state,
            duration(member.incarnation_age_ms),
            f"{duration(member.heard_ms_ago)} ago",
            _address(member),
        )
        for member in members
    ]
    head = ("RANK", "NODE", "ID", "STATE", "AGE", "HEARD", "ADDRESS")
    return "\n".join([*lines, "", table(head, rows)] if rows else [*lines, "no members"])


def skew(members: Sequence[MemberStatus], newest: int) -> str:
    """Which nodes run which software, if they differ among themselves or are behind the server; otherwise empty.

    Args:
        members: of a run. Those that have not come back since the server's start say no version.
        newest: protocol version of the server; 0: not known.
    """
    found: dict[tuple[int, str], list[str]] = {}
    for member in members:
        if member.protocol:
            found.setdefault((member.protocol, member.client), []).append(member.name)
    if len(found) < 2 and (not newest or all(protocol == newest for protocol, _ in found)):
        return ""
    parts = []
    for (protocol, client), names in sorted(found.items()):
        shown = ", ".join(names[:NAMES_SHOWN_MAX]) + (", …" if len(names) > NAMES_SHOWN_MAX else "")
        parts.append(f"{len(names)} × {client or 'unnamed'}, protocol {protocol} ({shown})")
    return " · ".join(parts)


def document(
    where: str,
    status: ServerStatus,
    round_trip_s: float,
    spoken: int,
    runs: Sequence[tuple[RunStatus, Sequence[MemberStatus], GenerationStatus | None]],
) -> str:
    """The whole status as JSON. Its keys are API: they only ever grow."""
    server = _fields(status)
    server["protocol_min"] = status.protocol_min or status.protocol
    server |= {"address": where, "round_trip_ms": round(round_trip_s * 1000, 3)}
    server["protocol_spoken"] = spoken
    return msgspec.json.format(
        msgspec.json.encode({"server": server, "runs": [_run(*row) for row in runs]}),
        indent=2,
    ).decode()


def _run(
    run: RunStatus, members: Sequence[MemberStatus], inside: GenerationStatus | None
) -> dict[str, object]:
    data = _fields(run)
    data["inside"] = None if inside is None else _inside(inside)
    data["member_count"] = data["members"]
    data["members"] = [_fields(member) for member in members]
    return data


def _inside(status: GenerationStatus) -> dict[str, object]:
    data = _fields(status)
    data["store"] = None if status.store is None else _fields(status.store)
    for name in ("barriers", "communicators", "probes"):
        data[name] = [_fields(row) for row in getattr(status, name)]
    return data


def _fields(of: msgspec.Struct) -> dict[str, object]:
    """Every field, whether it has its default or not: programs must not guess at absent keys."""
    return {name: msgspec.to_builtins(getattr(of, name)) for name in of.__struct_fields__}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}:{high}"


def _address(member: MemberStatus) -> str:
    address = member.address
    if not address.host:
        return member.peer or _NONE
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}" if address.port else host
