"""One TCPStore client's connection. The core reads the bytes; this only moves them."""

import asyncio
from typing import TYPE_CHECKING

from rdzv_proto import limits
from rdzv_server.shell.peer import Peer

if TYPE_CHECKING:
    from rdzv_server.shell.server import Server


SLICE_BYTES = 32 * 1024
"""Of input that are done in one turn of the loop: a thousand of the smallest requests, about 5 ms. One read may
bring eight times as much."""


class StoreConnection(Peer):
    """The server's end of one connection of a TCPStore client.

    Args:
        server: whom bytes go to.
        conn: its number, never reused.
        listener: which store it wants; 0 is the one at the main port.
    """

    # One batch of answers at its largest, and room for wakes beside it.
    write_bytes_max = limits.STORE_ANSWER_BYTES_MAX + (1 << 20)

    def __init__(self, server: "Server", conn: int, listener: int) -> None:
        super().__init__(server, conn)
        self.listener = listener
        self.greeted = False
        """Its hello was good."""
        self.share = server.turns.share(f"store {listener}")
        self._rest = bytearray()
        """Read, and waits for its turn."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        super().connection_made(transport)
        self._server.stores.opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._closing:
            return
        if self._rest:  # read before it was held
            self._rest += data
        elif len(data) <= SLICE_BYTES and self._server.turns.left_s(self.share) > 0:
            self._do(data)
        else:
            self._rest += data
            if self._transport is not None:
                self._transport.pause_reading()
            self._server.next_turn(self)

    def go_on(self) -> None:
        """Its next turn has come."""
        part = bytes(self._rest[:SLICE_BYTES])
        del self._rest[:SLICE_BYTES]
        if self._closing:
            self._rest.clear()
            return
        self._do(part)
        if self._rest:
            self._server.next_turn(self)
        elif self._transport is not None and not self._closing:
            self._transport.resume_reading()

    def _do(self, data: bytes) -> None:
        server = self._server
        began = server.begin()
        server.stores.received(self, data)
        now = server.now()
        self.share.left_s -= now - began
        if now >= server.flush_at:
            server.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """End of stream, reset, or cut by us."""
        self._gone()
        self._server.stores.lost(self)
