"""How the core names nodes, times and counts in sentences that people read."""

from collections.abc import Sequence

from rdzv_proto.messages import Fence
from rdzv_server.core.model import Member, Participant, Session
from rdzv_server.core.ranks import Seat

NAMES_SHOWN_MAX = 8
"""A sentence with more names is not read; the count of the rest follows."""


def node(of: Session | Member | Participant | Seat, rank: int | None = None) -> str:
    """`node-7-312-a8`, or `trainer-3 on node-7` where the id does not tell the name; with the group
    rank if given."""
    text = of.node_id if of.node_id.startswith(of.name) else f"{of.node_id} on {of.name}"
    return text if rank is None else f"{text} (group rank {rank})"


def short(of: Member | Seat) -> str:
    """`node-7` where the id was made up from it, else the id that somebody chose."""
    return of.name if of.node_id.startswith(of.name) else of.node_id


def seconds(duration_s: float) -> str:
    """`0.3 s`, `12 s`."""
    return f"{duration_s:.1f} s" if duration_s < 10 else f"{duration_s:.0f} s"


def heard(session: Session, now: float) -> str:
    """`last heard 0.4 s ago`."""
    return f"last heard {seconds(now - session.heard_at)} ago"


def place(run_id: str, fence: Fence | None) -> str:
    """`run 'llama' generation 7.3`; without the generation where the run is meant."""
    return f"run {run_id!r}" + ("" if fence is None else f" generation {fence}")


def names(items: Sequence[str]) -> str:
    """`a, b and c`, cut after some."""
    shown, more = list(items[:NAMES_SHOWN_MAX]), len(items) - NAMES_SHOWN_MAX
    if more > 0:
        return ", ".join(shown) + f" and {more} more"
    if len(shown) > 1:
        return ", ".join(shown[:-1]) + f" and {shown[-1]}"
    return shown[0] if shown else "nobody"


def nodes(count: int) -> str:
    """`1 node`, `3 nodes`."""
    return f"{count} node" if count == 1 else f"{count} nodes"
