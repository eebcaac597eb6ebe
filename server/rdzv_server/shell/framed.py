"""A connection that brings frames: whole ones are handed on, as many as this turn of the loop allows."""

import sys
from typing import TYPE_CHECKING

from rdzv_proto import limits
from rdzv_proto.framing import FrameBuffer, FrameTooLargeError
from rdzv_server.shell.peer import Peer
from rdzv_server.shell.turns import (
    NO_RUN,
    OUT_BYTES_MAX,
    PER_CONNECTION_S,
    STEP,
    UNREAD_BYTES_MAX,
    Budget,
    Share,
)

if TYPE_CHECKING:
    from rdzv_server.shell.server import Server


class Framed(Peer):
    """Frames of one connection.

    Args:
        server: what it belongs to.
        conn: its number, never reused.
    """

    def __init__(self, server: "Server", conn: int) -> None:
        super().__init__(server, conn)
        self._deaf = False
        """What still comes is not looked at."""
        self._held = False
        """It waits for its next turn, and is not read meanwhile."""
        self._held_until_read = False
        self._frames = FrameBuffer(limits.FRAME_BYTES_MAX_HELLO)
        self.share: Share = server.turns.share(NO_RUN)
        """Of its run, from its hello on."""
        self._budget: Budget | None = None

    def take(self, body: bytes) -> None:
        """One whole frame came."""
        raise NotImplementedError

    def too_large(self, error: FrameTooLargeError) -> None:
        """A length that exceeds the limit came; nothing behind it can be read."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Its next turn has come, its rate allows more, or its peer has read."""
        self._held = False
        if not self._deaf:
            self.work(b"")
            if not self._held and self._transport is not None:
                self._transport.resume_reading()

    def resume_writing(self) -> None:
        """The peer has read everything."""
        super().resume_writing()
        if self._held_until_read:
            self._held_until_read = False
            self._server.next_turn(self)

    def finish(self, last_words: bytes = b"") -> None:
        """Send what is queued, then close."""
        self._deaf = True
        super().finish(last_words)

    def abort(self) -> None:
        """Cut the connection now."""
        self._deaf = True
        super().abort()

    def work(self, data: bytes) -> None:
        """Take bytes, and hand on the requests that are complete, as many as this turn allows."""
        if self._held:  # read before it was held
            self._frames.feed(data)
            return
        server, share = self._server, self.share
        began = server.begin()
        if self._deaf:
            return  # another server leads, and everybody was dropped
        left_s = server.turns.left_s(share)
        done, more, wait_s = 0, False, 0.0
        self._reading = True
        try:
            if left_s <= 0 or (self._full and self.unsent_bytes > UNREAD_BYTES_MAX):
                self._frames.feed(data)
                more = True
            elif (one := self._frames.single(data)) is not None:
                done = 1
                self.take(one)
            else:
                done, more = self._take_many(data, began + min(PER_CONNECTION_S, left_s))
        except FrameTooLargeError as error:
            self.too_large(error)
        self._reading = False
        now = server.now()
        share.left_s -= now - began
        if more and share.left_s <= 0:
            server.turns.exhausted(share)
        server.requests += done
        if (budget := self._budget) is not None:
            budget.left -= done
            if budget.left < 0:
                wait_s = budget.refill(now)
        if self._out:
            server.outbox.answered.append(self)
        if now >= server.flush_at:
            server.flush()
        if not self._deaf and (more or wait_s):
            self._hold(wait_s)

    def _take_many(self, data: bytes, until: float) -> tuple[int, bool]:
        """Returns how many requests were done, and whether this turn allowed no more."""
        done, more = 0, False
        now, take = self._server.now, self.take
        allowed = sys.maxsize
        if self._budget is not None:
            self._budget.fill(now())
            allowed = max(STEP, int(self._budget.left))
        bodies = self._frames.split(data)
        try:
            for body in bodies:
                done += 1
                take(body)
                if self._deaf:
                    break
                if done >= allowed or now() >= until or self._out_bytes > OUT_BYTES_MAX:
                    more = True
                    break
        finally:
            bodies.close()
        left = len(self._frames) > 0
        if left and not more and not self._deaf:
            self._server.laggards.half_frame(self, anew=done > 0)
        else:
            self._server.laggards.whole(self)
        return done, more and left

    def _hold(self, wait_s: float) -> None:
        """Read no further until its peer has read, its rate allows more, or its next turn has come."""
        self._held = True
        self._server.laggards.whole(self)
        if self._transport is not None:
            self._transport.pause_reading()
        if self.unsent_bytes > UNREAD_BYTES_MAX:
            self._held_until_read = True
        elif wait_s:
            self._server.later(wait_s, self.go_on)
        else:
            self._server.next_turn(self)
