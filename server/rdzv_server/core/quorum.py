"""The one decision of the server: may the run's next generation form now, with whom, and why.

`decide` is pure. The server, `rdzv status`, the simulator and the tests all call this function, and
its reason is the sentence that users read. The answers have three forms: form now, wait until a
time, wait for an event.

Rules (DESIGN 6.2, 6.3): everybody there → at once. Enough there → a last call: the first world waits
`last_call_timeout` for anybody, later worlds only for nodes known to be alive that have not rejoined
(survivors for at least `REJOIN_S`). Places of survivors are kept for them during that time. A world's size is a multiple of `node_unit`,
and the minimum is tested on the rounded size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rdzv_proto.messages import Policy
from rdzv_server.core.ranks import Candidate, Seat, arrange, choose

REJOIN_S = 35.0
"""Survivors are waited for at least this long, however short the last call. torch gives workers 30 s
to stop (`--shutdown-timeout`) before their agent rejoins; a world that forms without such an agent
is torn down again as soon as it comes, and with a last call below the stopping time that never ends
(found by the simulator, seed 9)."""


class Tally(NamedTuple):
    """How many living, unfinished nodes there are of each kind.

    `ready` nodes hold a join on a live connection; `awaited` ones are alive but do not (not rejoined
    yet, or their connection is under suspicion). `prior` nodes had a rank in the last generation.
    """

    ready_prior: int = 0
    ready_new: int = 0
    awaited_prior: int = 0
    awaited_new: int = 0

    @property
    def ready(self) -> int:
        """Nodes that can be in a world formed now."""
        return self.ready_prior + self.ready_new

    @property
    def awaited(self) -> int:
        """Nodes that may still come."""
        return self.awaited_prior + self.awaited_new

    @property
    def possible(self) -> int:
        """Nodes that could be in the next world at best, if no further one appears."""
        return self.ready + self.awaited


@dataclass(frozen=True, slots=True)
class Roster:
    """The nodes of a forming run, as `decide` sees them.

    Counting is O(1) and asked for with every join; the candidates themselves are only asked for when
    the world forms, so that N joins cost O(N), not O(N²).
    """

    tally: Tally
    candidates: Callable[[], Sequence[Candidate]]
    """All ready nodes."""
    first: bool
    """No generation of this run's life has formed yet."""
    min_met_at: float | None
    """Since when, without a break, there are enough nodes."""
    joins_end_at: float
    """When the earliest join's patience ends; the last call never stretches beyond it."""
    expected_missing: int | None = None
    """Of the names in `expected_nodes`; None if there are none."""
    last: Sequence[Seat] = ()
    """Places of the last generation."""


class Decision(NamedTuple):
    """The answer. Exactly one of `participants` and waiting holds."""

    participants: tuple[Candidate, ...] | None
    """In the order of their group ranks, or None: wait."""
    reason: str
    retry_at: float | None = None
    """Decide again then, if nothing happens before; None: only an event can change the answer."""


def seats(policy: Policy, nodes: int) -> int:
    """The size of the world that `nodes` nodes can form; 0 if they are too few.

    The same function serves the test and the assignment: rounding to `node_unit` comes first, and
    the minimum is tested on the result.
    """
    size = min(nodes, policy.max_nodes)
    size -= size % policy.node_unit
    return size if size >= policy.min_nodes else 0


def decide(now: float, roster: Roster, policy: Policy) -> Decision:
    """May the next generation form?

    Args:
        now: running seconds.
        roster: who is there.
        policy: what the run's nodes agreed on.

    Returns:
        The participants in rank order, or the reason to wait and until when.
    """
    tally = roster.tally
    size = seats(policy, tally.ready)
    if size == 0:
        return Decision(None, _too_few(tally, policy))
    why = _complete(tally, roster, policy, size)
    if why is None:
        began = now if roster.min_met_at is None else roster.min_met_at
        patience_s = policy.last_call_timeout_ms / 1000
        if tally.awaited_prior and not roster.first:
            patience_s = max(patience_s, REJOIN_S)
        ends = min(began + patience_s, roster.joins_end_at)
        if now < ends:
            return Decision(None, _last_call(tally, roster, policy), ends)
        why = f"the last call is over with {tally.ready} of max {policy.max_nodes} nodes"
    chosen = choose(roster.candidates(), size)
    return Decision(tuple(arrange(chosen, roster.last)), why)


def _complete(tally: Tally, roster: Roster, policy: Policy, size: int) -> str | None:
    """Why nobody else needs to be waited for, or None."""
    full = size == seats(policy, policy.max_nodes)
    if roster.first:
        if full:
            return f"{tally.ready} of max {policy.max_nodes} nodes joined"
        if roster.expected_missing == 0:
            return f"all expected nodes joined ({tally.ready} of max {policy.max_nodes})"
        return None
    if full and (tally.awaited_prior == 0 or tally.ready_prior >= size):
        return f"{tally.ready} of max {policy.max_nodes} nodes joined"
    if tally.awaited == 0:
        return (
            "the only living node joined" if size == 1 else f"all {tally.ready} living nodes joined"
        )
    return None


def _too_few(tally: Tally, policy: Policy) -> str:
    text = f"{tally.ready} of min {policy.min_nodes} nodes joined"
    if policy.node_unit > 1:
        text += f" (worlds are multiples of {policy.node_unit})"
    if tally.awaited:
        text += f", {tally.awaited} more alive"
    return text


def _last_call(tally: Tally, roster: Roster, policy: Policy) -> str:
    if roster.first:
        missing = roster.expected_missing
        who = f"{missing} expected nodes" if missing else f"up to {policy.max_nodes}"
        return f"{tally.ready} nodes joined, min {policy.min_nodes} is met: last call for {who}"
    return (
        f"{tally.ready} of {tally.possible} living nodes joined, min {policy.min_nodes} is met: "
        f"last call for the other {tally.awaited}"
    )
