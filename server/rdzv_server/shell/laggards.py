"""Peers that keep the server waiting: half frames, and answers that are not read.

Time is counted in sweeps of a second. Sweeps do not run while the server does not run, so what it has not
read itself meanwhile is charged to nobody.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

SWEEP_S = 1.0
"""Between two looks at those who are late."""

FRAME_SWEEPS = 10
"""For a frame that has begun: the largest one needs 100 KiB/s. Who sends a byte now and then holds a
buffer for no longer."""

UNREAD_SWEEPS = 5
"""Without one byte taken from a full socket: a peer that does not read, or a cut link."""


class Peer(Protocol):
    """A connection's end."""

    @property
    def sent_bytes(self) -> int:
        """Taken by the operating system so far."""

    def reads(self) -> None:
        """It has taken something since the last look."""

    def cut(self, event: str, text: str) -> None:
        """Log why, and abort."""


@dataclass
class _Unread:
    sent_bytes: int
    sweeps: int = 0


class Laggards:
    """Those who are late now.

    Args:
        later: runs an action after so many seconds.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._later = later
        self._half: dict[Peer, int] = {}
        self._unread: dict[Peer, _Unread] = {}
        self._armed = False

    def half_frame(self, peer: Peer, *, anew: bool) -> None:
        """A frame has begun and is not complete.

        Args:
            peer: who sends it.
            anew: it began just now; otherwise more of one came that had begun before.
        """
        if anew or peer not in self._half:
            self._half[peer] = 0
            self._arm()

    def unread(self, peer: Peer) -> None:
        """Something waits because the socket takes no more."""
        self._unread.setdefault(peer, _Unread(peer.sent_bytes))
        self._arm()

    def whole(self, peer: Peer) -> None:
        """No frame is incomplete any more."""
        self._half.pop(peer, None)

    def drained(self, peer: Peer) -> None:
        """Nothing waits any more."""
        self._unread.pop(peer, None)

    def gone(self, peer: Peer) -> None:
        """It is closed."""
        self.whole(peer)
        self.drained(peer)

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._armed = False
        for peer, sweeps in list(self._half.items()):
            self._half[peer] = sweeps + 1
            if sweeps >= FRAME_SWEEPS:
                peer.cut("half_frame", f"a frame was not complete for {FRAME_SWEEPS} s")
        for peer, entry in list(self._unread.items()):
            sent_bytes = peer.sent_bytes
            if sent_bytes == entry.sent_bytes:
                entry.sweeps += 1
            else:
                entry.sweeps, entry.sent_bytes = 0, sent_bytes
                peer.reads()
            if entry.sweeps >= UNREAD_SWEEPS:
                peer.cut("slow_reader", f"it has read nothing for {UNREAD_SWEEPS} s")
        if self._half or self._unread:
            self._arm()
