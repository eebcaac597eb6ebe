"""What clients meet at a server that stands by: who leads, or a wait until somebody does.

While the leader renews its lease, clients are told at once who it is. When it does not, they have mostly been with
it and found it gone: they wait here until there is a new one, and learn of that in the moment it is known. So a
thousand clients neither hammer the servers in between nor come late afterwards. A server that does not know who leads
keeps nobody, and sends them on to the others.
"""

import asyncio
import random
import secrets
from typing import cast

from rdzv_proto import agreement, codec, limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.framing import (
    MAGIC,
    PREAMBLE_BYTES,
    FrameBuffer,
    FrameTooLargeError,
    Opening,
    sniff,
)
from rdzv_proto.messages import Goodbye
from rdzv_server.shell.admission import Admission
from rdzv_server.shell.peer import CLOSE_S, End

HELLO_S = 5.0
"""For a hello, as at a server that leads."""

HOLD_S = 2.0, 4.0
"""How long a client waits for a new leader: below its patience with a hello (5 s), and above the time in which it
follows one name only once; different for each, so that they do not come back as one wave."""

RETRY_AFTER_MS = 200
"""Where nobody leads, before the next attempt."""


class Standby:
    """All connections of a server that stands by.

    Args:
        address: own, as HOST:PORT.
        admission: the books of all connections.
    """

    def __init__(self, address: str, admission: Admission) -> None:
        self._address, self._admission = address, admission
        self._rng = random.Random(secrets.token_bytes(8))  # nosec B311 (jitter only)
        self._loop = asyncio.get_running_loop()
        self._ends: set[Waiting] = set()
        self._waiting: set[Waiting] = set()
        self.leader = ""
        """Who leads, as HOST:PORT; empty if nobody does."""
        self._alive = False
        """It has renewed its lease lately."""
        self._blind = True
        """It cannot say who leads: also before it has asked, which takes long where etcd is out of reach. A leader that
        lost it has just become a standby then, and all its clients come here first."""

    def protocol(self) -> "Waiting":
        """A new connection's end."""
        return Waiting(self)

    def blind(self) -> None:
        """Nothing is known of leaders: whoever is here may know more at another server."""
        self._blind = True
        self.leader, self._alive = "", False
        self._send_all_on("")

    def told(self, leader: str, alive: bool) -> None:
        """Who leads now, and whether it has renewed its lease lately. Our own address is that of a start before
        this one, whose lease still runs."""
        self._blind = False
        self.leader = "" if leader == self._address else leader
        self._alive = alive and bool(self.leader)
        if self._alive:
            self._send_all_on(self.leader)

    def lead(self) -> None:
        """This server leads from now on: all who wait come to it again, and this time it is the other one
        who answers."""
        self._send_all_on(self._address)

    def close(self) -> None:
        """Cut whoever is left."""
        for end in list(self._ends):
            end.abort()

    # --- from connections ---------------------------------------------------------------------

    def opened(self, end: "Waiting") -> None:
        """A connection stands."""
        self._ends.add(end)

    def gone(self, end: "Waiting") -> None:
        """It is closed."""
        self._admission.closed(end)
        self._ends.discard(end)
        self._waiting.discard(end)

    def greeted(self, end: "Waiting") -> None:
        """Its hello came."""
        self._admission.greeted(end)
        if self._alive or self._blind:
            end.send_on(self.leader)
            return
        self._waiting.add(end)
        self._loop.call_later(self._rng.uniform(*HOLD_S), self._held, end)

    def _held(self, end: "Waiting") -> None:
        if end in self._waiting:
            self._waiting.discard(end)
            end.send_on(self.leader)

    def _send_all_on(self, leader: str) -> None:
        waiting, self._waiting = self._waiting, set()
        for end in waiting:
            end.send_on(leader)


class Waiting(End):
    """One connection: reads a hello, and answers with goodbye.

    Args:
        standby: what it belongs to.
    """

    def __init__(self, standby: Standby) -> None:
        self._standby = standby
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._opening = b""
        self._frames: FrameBuffer | None = None
        """None before the preamble."""
        self._deaf = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._standby.opened(self)
        self._timer = self._loop.call_later(HELLO_S, self.abort)

    def data_received(self, data: bytes) -> None:
        """Bytes came; nothing behind the hello is looked at."""
        if self._deaf:
            return
        if self._frames is None:
            self._opening += data
            opening = sniff(self._opening)
            if opening is Opening.INCOMPLETE:
                return
            if opening is not Opening.RDZV:
                self.abort()
                return
            if not agreement.SPOKEN.may_agree(self._opening[len(MAGIC)]):
                self.send_on(self._standby.leader)  # whoever leads says which versions it speaks
                return
            self._frames = FrameBuffer(limits.FRAME_BYTES_MAX_HELLO)
            data = self._opening[PREAMBLE_BYTES:]
        self._frames.feed(data)
        try:
            if (body := self._frames.pop()) is not None:
                self._hello(body)
        except (FrameTooLargeError, codec.MalformedError):
            self.abort()

    def _hello(self, body: bytes) -> None:
        agreement.SPOKEN.oldest.decode_request(body)  # no hello of ours: who sends that is not kept
        self._deaf = True
        self._patient()
        self._standby.greeted(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self._transport = None
        self._patient()
        self._standby.gone(self)

    def send_on(self, leader: str) -> None:
        """Say who leads, and close."""
        self._deaf = True
        transport = self._transport
        if transport is None:
            return
        text = f"{leader} leads" if leader else "no server leads now"
        goodbye = Goodbye(
            code=ErrorCode.NOT_LEADER,
            message=f"this server stands by: {text}",
            retry_after_ms=0 if leader else RETRY_AFTER_MS,
            leader=leader,
        )
        transport.write(agreement.SPOKEN.oldest.encode(0, goodbye))
        transport.close()
        self._loop.call_later(CLOSE_S, self.abort)

    def abort(self) -> None:
        """Cut it."""
        self._deaf = True
        if self._transport is not None:
            self._transport.abort()

    def _patient(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
