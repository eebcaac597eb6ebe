"""The cached view of this node's generation: what `num_nodes_waiting()` and `g.ended` read.

Kept current by pushes, never asked for. Views of older generations are dropped (S10), and an end,
once known, stays.
"""

from rdzv_proto import limits
from rdzv_proto.messages import Ended, Fence, View


class Watch:
    """Holds the newest view.

    Attributes:
        view: replaced as a whole, so that any thread may read it at any time.
    """

    def __init__(self) -> None:
        self.view = View()
        self._anew = False
        """The server has begun a new epoch: the next generation counts, in whatever epoch it is. Epochs come from
        a wall clock, which may have been set back, or be another machine's."""

    def take(self, view: View) -> bool:
        """Take a view the server sent; True if it changed anything."""
        mine = self.view
        if mine.fence is not None and (view.fence is None or self._older(view.fence, mine.fence)):
            return False
        if view.fence == mine.fence and mine.ended is not None and view.ended is None:
            return False
        changed = view != mine
        self.view = view
        self._anew = self._anew and view.fence == mine.fence
        return changed

    def joined(self, fence: Fence) -> bool:
        """An assignment arrived. It says nothing about a generation whose view is known already:
        a replayed assignment may come after a push (found by the simulator, seed 673)."""
        mine = self.view.fence
        if mine is not None and (mine == fence or self._older(fence, mine)):
            return False
        return self.take(View(fence=fence))

    def catch_up(self, view: View) -> bool:
        """Take the view of a welcome: pushes may have been lost while away."""
        mine = self.view.fence
        if mine is None or (view.fence is not None and not self._older(view.fence, mine)):
            return self.take(view)
        return self.end("superseded", f"generation {mine} ended while this node was away")

    def new_epoch(self) -> None:
        """The session is in another epoch than before."""
        self._anew = self.view.fence is not None

    def _older(self, fence: Fence, mine: Fence) -> bool:
        if self._anew and fence.epoch != mine.epoch:
            return False
        return fence < mine

    def end(self, kind: str, reason: str) -> bool:
        """This side learned that the generation is over; True if that is new."""
        fence = self.view.fence
        if fence is None or self.view.ended is not None:
            return False
        ended = Ended(kind=kind, reason=reason[: limits.TEXT_CHARS_MAX])
        self.view = View(fence=fence, waiting=1, ended=ended)
        return True
