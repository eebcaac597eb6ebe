"""Who holds a descriptor, and who of them has not said yet what it wants: counts, limits, who goes first.

Only those who said a good hello may hold most of the descriptors, so nobody who merely connects can take
them all. There is no quota for an address whose hellos come in time: a whole cluster may connect from
one, and its surplus waits in the listen backlog (SEMANTICS T11, B24).
"""

from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Protocol

RESERVE = 64
"""Descriptors that connections never get: logs, listeners, the loop's own, databases, and one for each
connection that is turned away with a reason (T12)."""

UNLIMITED = 1 << 20
"""What `unlimited` open files stands for: the most that Linux gives a process as it comes."""

OPENINGS_MAX = 256
"""Connections without a good hello (T11). A hello takes one round trip, so this many at a time let
thousands a second in, and bound what strangers cost in memory and handshakes."""

OPENINGS_PER_HOST = 32
"""An address with more than this has its own evicted first (T11)."""

EVICT_AFTER_S = 2.0
"""An opening younger than this is never evicted: an honest client on a slow network is done by then. Where
there is no pressure it has the whole time for a hello."""


class Entry(Protocol):
    """A connection, from when it was accepted."""

    def abort(self) -> None:
        """Cut it now."""


def capacity(nofile: int) -> int:
    """Connections that may be open at a time.

    Args:
        nofile: soft limit of open files; negative if there is none.
    """
    return max(1, (UNLIMITED if nofile < 0 else nofile) - RESERVE)


@dataclass(frozen=True)
class _Opening:
    host: str
    since: float
    abort: Callable[[], None]


class Admission:
    """The books of all connections of this process.

    Args:
        connections_max: at a time; see `capacity`.
        openings_max: of these, without a good hello. By default what `OPENINGS_MAX` allows, and no more
            than a quarter of all.

    Attributes:
        evicted: openings that had to go, since the start.
        turned_away: connections that were told that the server is full, since the start.
    """

    def __init__(self, connections_max: int, openings_max: int | None = None) -> None:
        self.connections_max = connections_max
        quarter = max(1, min(OPENINGS_MAX, connections_max // 4))
        self.openings_max = quarter if openings_max is None else openings_max
        self.evicted = self.turned_away = 0
        self._connections: set[object] = set()
        self._openings: dict[object, _Opening] = {}
        """Oldest first."""
        self._by_host: Counter[str] = Counter()
        self._greedy: set[str] = set()
        """Addresses with more than `OPENINGS_PER_HOST`."""
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def connections(self) -> int:
        """Open now, openings among them."""
        return len(self._connections)

    @property
    def openings(self) -> int:
        """Without a good hello so far."""
        return len(self._openings)

    @property
    def full(self) -> bool:
        """No descriptor is left for another one."""
        return len(self._connections) >= self.connections_max

    @property
    def crowded(self) -> bool:
        """As many openings as there may be."""
        return len(self._openings) >= self.openings_max

    def opened(
        self, entry: Entry, host: str, now: float, abort: Callable[[], None] | None = None
    ) -> None:
        """A connection was accepted.

        Args:
            entry: what it goes by from now on.
            host: address of the peer.
            now: monotonic seconds.
            abort: how to cut it as long as it is an opening, where `entry.abort` is not all of it.
        """
        self._connections.add(entry)
        self._openings[entry] = _Opening(host, now, entry.abort if abort is None else abort)
        self._by_host[host] += 1
        if self._by_host[host] > OPENINGS_PER_HOST:
            self._greedy.add(host)

    def hold(self, holder: object) -> None:
        """Something else takes a descriptor, until `closed`: the port of a store."""
        self._connections.add(holder)

    def greeted(self, entry: object) -> None:
        """A good hello came. Unknown entries are fine, those that were evicted among them."""
        if self._drop_opening(entry):
            self._tell()

    def handed_over(self, old: object, new: object) -> None:
        """The connection goes by another entry from now on, and its peer has said what it wants."""
        if old in self._connections:
            self._connections.remove(old)
            self._connections.add(new)
            self.greeted(old)

    def closed(self, entry: object) -> None:
        """The connection is gone. Unknown entries are fine."""
        if entry in self._connections:
            self._connections.remove(entry)
            self._drop_opening(entry)
            self._tell()

    def evict(self, now: float, among: Container[object] | None = None) -> bool:
        """Cut the oldest opening that had its time, of an address with too many before all others.

        It stops to be an opening at once, and to be a connection when it is closed.

        Args:
            now: monotonic seconds.
            among: only these; None stands for all.

        Returns:
            Whether there was one.
        """
        chosen = None
        for entry, opening in self._openings.items():
            if now - opening.since <= EVICT_AFTER_S:
                break
            if among is not None and entry not in among:
                continue
            greedy = opening.host in self._greedy
            if chosen is None or greedy:
                chosen = entry
            if greedy or not self._greedy:
                break
        if chosen is None:
            return False
        abort = self._openings[chosen].abort
        self._drop_opening(chosen)
        self.evicted += 1
        abort()
        self._tell()
        return True

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back once, when there is room for another opening. It must only take note of that."""
        self._waiting[callback] = None

    def forget(self, callback: Callable[[], None]) -> None:
        """It does not wait any more."""
        self._waiting.pop(callback, None)

    def _drop_opening(self, entry: object) -> bool:
        opening = self._openings.pop(entry, None)
        if opening is None:
            return False
        self._by_host[opening.host] -= 1
        if self._by_host[opening.host] <= OPENINGS_PER_HOST:
            self._greedy.discard(opening.host)
        if not self._by_host[opening.host]:
            del self._by_host[opening.host]
        return True

    def _tell(self) -> None:
        if self._waiting and not self.full and not self.crowded:
            waiting, self._waiting = self._waiting, {}
            for callback in waiting:
                callback()
