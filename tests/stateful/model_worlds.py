"""Of the model: when a world may form, who is in it, and in which order (DESIGN 6.2 to 6.5). Plain functions."""

from dataclasses import dataclass, field

from rdzv_proto.messages import Policy

REJOIN_S = 35.0
"""Survivors are waited for at least so long: torch gives workers 30 s to stop before an agent joins again."""


@dataclass
class Member:
    """A node that joined and has not left."""

    node: str
    session: int
    order: int
    """How many had joined the run before."""
    join: int | None = None
    """The request that waits."""
    since: float = 0.0
    seat: int | None = None
    """Its rank in the last world of this life of the run."""
    finished: bool = False
    hint: int | None = None
    rival: "Member | None" = None
    """A node without a connection that holds the same hint."""
    connected: bool = True

    @property
    def counted(self) -> bool:
        """It may be in the next world."""
        return not self.finished and self.rival is None

    @property
    def ready(self) -> bool:
        """It could be in one that forms now."""
        return self.counted and self.join is not None and self.connected


@dataclass
class Wait:
    """What the decision depends on, but for the members."""

    first: bool
    """No world formed in this life of the run."""
    enough_since: float | None
    patience_ends: float
    """Of the join that waits longest."""
    last: list[str] = field(default_factory=list)
    """Nodes of the last world by rank."""


def size_of(policy: Policy, nodes: int) -> int:
    """How large a world of so many nodes is; 0: too few."""
    allowed = [
        n
        for n in range(policy.min_nodes, policy.max_nodes + 1)
        if n % policy.node_unit == 0 and n <= nodes
    ]
    return max(allowed, default=0)


def may_form(now: float, members: list[Member], policy: Policy, wait: Wait) -> bool:
    """True if the next world forms now."""
    ready = [m for m in members if m.ready]
    away = [m for m in members if m.counted and not m.ready]
    size = size_of(policy, len(ready))
    if size == 0:
        return False
    full = size == size_of(policy, policy.max_nodes)
    survivors_away = [m for m in away if m.seat is not None]
    survivors_here = [m for m in ready if m.seat is not None]
    if wait.first:
        if full:
            return True
    elif not away or (full and (not survivors_away or len(survivors_here) >= size)):
        return True
    last_call = policy.last_call_timeout_ms / 1000
    if survivors_away and not wait.first:
        last_call = max(last_call, REJOIN_S)
    began = now if wait.enough_since is None else wait.enough_since
    return now >= min(began + last_call, wait.patience_ends)


def arranged(members: list[Member], policy: Policy, last: list[str]) -> list[Member]:
    """The nodes of the world that forms now, by rank."""
    ready = [m for m in members if m.ready]
    survivors = sorted((m for m in ready if m.seat is not None), key=lambda m: m.seat or 0)
    others = sorted((m for m in ready if m.seat is None), key=lambda m: m.order)
    chosen = (survivors + others)[: size_of(policy, len(ready))]
    survivors = [m for m in chosen if m.seat is not None]
    others = [m for m in chosen if m.seat is None]
    if not survivors or all(m.hint is not None for m in chosen):
        hinted = sorted((m for m in chosen if m.hint is not None), key=lambda m: m.hint or 0)
        return hinted + sorted((m for m in chosen if m.hint is None), key=lambda m: number(m.node))
    # Survivors keep their places, but rank 0 never goes to a newcomer.
    places: list[Member | None] = [None] * len(last)
    for m in survivors:
        places[m.seat or 0] = m
    places[survivors[0].seat or 0] = None
    places[0] = survivors[0]
    for place, node in enumerate(last):  # who sat there before
        back = [m for m in others if m.node == node]
        if places[place] is None and back:
            places[place] = back[0]
            others.remove(back[0])
    for place in range(len(last)):  # then whoever came first
        if places[place] is None and others:
            places[place] = others.pop(0)
    return [m for m in places if m is not None] + others


def number(node: str) -> int:
    """Nodes of these tests are called n1, n2, n10: their natural order."""
    return int(node[1:])
