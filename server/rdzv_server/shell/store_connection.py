"""One TCPStore client's connection. The core reads the bytes; this only moves them."""

import asyncio
from typing import TYPE_CHECKING

from rdzv_proto import limits
from rdzv_server.shell.peer import Peer

if TYPE_CHECKING:
    from rdzv_server.shell.server import Server


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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        super().connection_made(transport)
        self._server.stores.opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if not self._closing:
            self._server.stores.received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End of stream, reset, or cut by us."""
        self._gone()
        self._server.stores.lost(self)
