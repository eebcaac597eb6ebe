"""The server's end of any connection: whose it is, what is sent on it, and how it ends.

Sending is queued and leaves with one write per turn of the loop. A peer that does not read is cut.
"""

import asyncio
import socket
from typing import TYPE_CHECKING, ClassVar, cast

from rdzv_server.shell.addresses import host_of, shown

if TYPE_CHECKING:
    from rdzv_server.shell.server import Server

JOINED_BYTES_MAX = 64 * 1024
"""Up to here one copy is cheaper than a second system call; large values, which many connections share, are not
copied."""

CLOSE_S = 1.0
"""Time for last words to drain; then the connection is cut. `close()` alone waits for ever on a peer
that has vanished."""


class End(asyncio.Protocol):
    """The server's end of any accepted connection."""

    def abort(self) -> None:
        """Cut the connection now."""
        raise NotImplementedError


class Peer(End):
    """One connection.

    Args:
        server: what it belongs to.
        conn: its number, never reused.
    """

    write_bytes_max: ClassVar[int]
    """Unsent bytes. A reader that falls behind further is cut, so that it cannot hold memory."""

    def __init__(self, server: "Server", conn: int) -> None:
        self._server = server
        self.conn = conn
        self.peer = self.peer_host = self.local_host = ""
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._out: list[bytes] = []
        self._out_bytes = self._written_bytes = 0
        self._full = False
        """The socket did not take everything."""
        self._reading = False
        """What is sent now is an answer: whoever reads puts it among the answers when the input is through."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer connected."""
        self._transport = transport = cast(
            "asyncio.Transport", transport
        )  # uvloop's is no subclass
        # Told of every byte that the socket does not take at once: see `Laggards`.
        transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer_host = host_of(transport.get_extra_info("peername"))
        self.local_host = host_of(transport.get_extra_info("sockname"))
        self.peer = shown(transport.get_extra_info("peername"))

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        self._full = True
        self._server.laggards.unread(self)

    def resume_writing(self) -> None:
        """It took everything."""
        self._full = False
        self._server.laggards.drained(self)

    @property
    def unsent_bytes(self) -> int:
        """Written, and not taken by the operating system yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def sent_bytes(self) -> int:
        """Taken by the operating system so far."""
        return self._written_bytes - self.unsent_bytes

    def send(self, data: bytes) -> None:
        """Queue something; it leaves with `flush`."""
        if not self._closing:
            if not self._out and not self._reading:
                self._server.outbox.told.append(self)
            self._out.append(data)
            self._out_bytes += len(data)

    def flush(self) -> int:
        """Write what was queued, in one call; returns how many bytes that was."""
        transport, out, size = self._transport, self._out, self._out_bytes
        self._out, self._out_bytes = [], 0
        if transport is None or not out:
            return 0
        self._written_bytes += size
        if len(out) == 1:
            transport.write(out[0])
        elif size < JOINED_BYTES_MAX:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)
        if self._full and transport.get_write_buffer_size() > self.write_bytes_max:
            self.cut("slow_reader", f"more than {self.write_bytes_max} bytes are not read")
        return size

    def finish(self, last_words: bytes = b"") -> None:
        """Send what is queued, then close; cut if that takes too long."""
        transport = self._transport
        if last_words:
            self._out.append(last_words)
            self._out_bytes += len(last_words)
        self.flush()
        self._closing = True
        if transport is not None:
            transport.close()
            self._server.later(CLOSE_S, self.abort)

    def reads(self) -> None:
        """It has taken something of what waits for it."""

    def cut(self, event: str, text: str) -> None:
        """Log why, and abort."""
        self._server.refused(self, event, text)
        self.abort()

    def abort(self) -> None:
        """Cut the connection now."""
        self._closing = True
        self._out, self._out_bytes = [], 0
        if self._transport is not None:
            self._transport.abort()

    def _gone(self) -> None:
        """The socket is closed."""
        self._closing = True
        self._transport = None
        self._server.laggards.gone(self)
