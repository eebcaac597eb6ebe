"""One TCPStore client's connection. The core reads the bytes; this only moves them."""

import asyncio
import socket
from typing import TYPE_CHECKING, cast

from rdzv_proto import limits
from rdzv_server.shell.addresses import host_of, shown

if TYPE_CHECKING:
    from rdzv_server.shell.server import Server

WRITE_BYTES_MAX = limits.STORE_ANSWER_BYTES_MAX + (1 << 20)
"""Unsent bytes: one batch of answers at its largest, and room for wakes beside it. A reader that
falls behind further is cut, so that it cannot hold memory."""

CLOSE_S = 1.0
"""Time for the last answers to drain; then the connection is cut."""


class StoreConnection(asyncio.Protocol):
    """The server's end of one connection of a TCPStore client.

    Args:
        server: whom bytes go to.
        conn: its number, never reused.
        listener: which store it wants; 0 is the one at the main port.
    """

    def __init__(self, server: "Server", conn: int, listener: int) -> None:
        self._server = server
        self.conn, self.listener = conn, listener
        self.peer = self.peer_host = ""
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._out: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer_host = host_of(transport.get_extra_info("peername"))
        self.peer = shown(transport.get_extra_info("peername"))
        self._server.store_opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if not self._closing:
            self._server.store_received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End of stream, reset, or cut by us."""
        self._closing = True
        self._transport = None
        self._server.store_lost(self)

    def send(self, data: bytes) -> None:
        """Queue an answer; it leaves with `flush`."""
        if not self._closing:
            if not self._out:
                self._server.to_flush(self)
            self._out.append(data)

    def flush(self) -> None:
        """Write what was queued, in one call."""
        out, self._out = self._out, []
        transport = self._transport
        if transport is None or not out:
            return
        transport.write(out[0] if len(out) == 1 else b"".join(out))
        if transport.get_write_buffer_size() > WRITE_BYTES_MAX:
            self._server.refused(
                self, "slow_reader", f"more than {WRITE_BYTES_MAX} bytes are not read"
            )
            self.abort()

    def finish(self) -> None:
        """Send what is queued, then close; cut if that takes too long."""
        self.flush()
        self._closing = True
        if self._transport is not None:
            self._transport.close()
            self._server.later(CLOSE_S, self.abort)

    def abort(self) -> None:
        """Cut the connection now."""
        self._closing = True
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()
