"""Connections of one run that broke together: then it is the network or a proxy, not the nodes.

Counting is O(1) for each, since they may be thousands, and what takes the server itself a while to notice
still belongs together.
"""

from dataclasses import dataclass, field

TOGETHER_S = 0.1
"""Connections that break within this time of the first one broke for one reason."""

NEXT_S = 0.03
"""So did those that the server notices within this time of the one before: thousands of ends that came in one
moment are read one by one, between the hellos of those who are back already."""

TOGETHER_MIN = 3
"""Two broken connections are still more likely two dead nodes."""


@dataclass(slots=True)
class Burst:
    """The last ones."""

    _began: float = float("-inf")
    _last: float = float("-inf")
    _away: dict[int, None] = field(default_factory=dict)
    _unjudged: dict[int, None] = field(default_factory=dict)
    told: bool = False
    """It was found to be the network, and that was reported."""

    def __len__(self) -> int:
        """Those who are away."""
        return len(self._away)

    @property
    def away(self) -> list[int]:
        """Session ids, those that are back left out."""
        return list(self._away)

    def broke(self, session_id: int, now: float) -> None:
        """A connection broke."""
        if now - self._began > TOGETHER_S and now - self._last > NEXT_S:
            self._began, self.told = now, False
            self._away.clear()
            self._unjudged.clear()
        self._last = now
        self._away[session_id] = self._unjudged[session_id] = None

    def back(self, session_id: int) -> None:
        """The session has a connection again, or is over."""
        self._away.pop(session_id, None)
        self._unjudged.pop(session_id, None)

    def judge(self) -> list[int]:
        """It is the network: session ids of those who are away and were not found to be so before. There may be
        some from a moment in between in which too few were away."""
        found = list(self._unjudged)
        self._unjudged.clear()
        return found

    def is_network(self, members: int) -> bool:
        """More than half of a run's members, and not just a few, are away since the same moment."""
        return len(self._away) >= TOGETHER_MIN and 2 * len(self._away) > members
