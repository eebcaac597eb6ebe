"""One TCP connection: bytes to requests, messages to bytes.

All frames of one read go to the core before anything is written, and each connection is written to
once per batch. Rubbish is answered here, so that the core only ever sees typed messages.
"""

import asyncio
import socket
from typing import TYPE_CHECKING, cast

from rdzv_proto import PROTOCOL_VERSION, codec, limits
from rdzv_proto.errors import ERRORS, ErrorCode
from rdzv_proto.framing import (
    MAGIC,
    PREAMBLE_BYTES,
    FrameBuffer,
    FrameTooLargeError,
    Opening,
    sniff,
)
from rdzv_proto.messages import Error, Goodbye
from rdzv_server.core.tcpstore.model import SHARED
from rdzv_server.shell.addresses import host_of, shown

if TYPE_CHECKING:
    from rdzv_server.shell.server import Server

WRITE_BYTES_MAX = limits.FRAME_BYTES_MAX_CLIENT + (1 << 20)
"""Unsent bytes of one connection: the largest frame it may be sent, and room for pushes beside it. A
reader that falls behind further is cut, so that it cannot hold memory."""

CLOSE_S = 1.0
"""Time for a goodbye to drain; then the connection is cut. `close()` alone waits for ever on a peer
that has vanished."""

_NO_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This is the rdzv rendezvous port; it does not speak HTTP.\n"
)


class Connection(asyncio.Protocol):
    """The server's end of one connection.

    Args:
        server: whom requests go to.
        conn: its number, never reused.
    """

    def __init__(self, server: "Server", conn: int) -> None:
        self._server = server
        self.conn = conn
        self.peer = self.peer_host = self.local_host = ""
        self._transport: asyncio.Transport | None = None
        self._opening = b""
        self._open = False
        self._closing = False
        self._frames = FrameBuffer(limits.FRAME_BYTES_MAX_HELLO)
        self._out: list[bytes] = []
        self._reading = False
        """What is sent now leaves when the present input is through."""

    # --- from the loop ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer connected; nothing is told to the core before its preamble is good."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer_host = host_of(transport.get_extra_info("peername"))
        self.local_host = host_of(transport.get_extra_info("sockname"))
        self.peer = shown(transport.get_extra_info("peername"))
        self._server.connected(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._closing:
            return
        if not self._open:
            data = self._greet(data)
            if not self._open:
                return
        self._server.begin()
        self._reading = True
        try:
            if (one := self._frames.single(data)) is not None:
                self._take(one)
            else:
                bodies = self._frames.split(data)
                while not self._closing and (body := next(bodies, None)) is not None:
                    self._take(body)
        except FrameTooLargeError as error:
            self._server.refused(self, "frame_too_large", str(error))
            self.goodbye(Goodbye(code=ErrorCode.FRAME_TOO_LARGE, message=str(error)))
            self._server.lost(self, str(error))
        self._reading = False
        if self._out:
            self.flush()
        self._server.flush_others()

    def connection_lost(self, exc: Exception | None) -> None:
        """End of stream, reset, or cut by us."""
        self._closing = True
        self._transport = None
        self._server.disconnected(self, "connection closed" if exc is None else str(exc))

    def expect_preamble(self) -> None:
        """The time for the preamble is over."""
        if not self._open and not self._closing:
            if self._opening:
                self._server.refused(self, "foreign_protocol", "an incomplete preamble")
            self.abort()

    # --- from the server ----------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Queue a frame; it leaves with `flush`."""
        if not self._closing:
            if not self._out and not self._reading:
                self._server.to_flush(self)
            self._out.append(frame)

    def welcome(self) -> None:
        """The hello was accepted: larger frames are fine from now on."""
        self._frames.frame_bytes_max = limits.FRAME_BYTES_MAX

    def flush(self) -> None:
        """Write what was queued, in one call."""
        transport = self._transport
        if transport is None or not self._out:
            self._out.clear()
            return
        transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        self._out.clear()
        if transport.get_write_buffer_size() > WRITE_BYTES_MAX:
            self._server.refused(
                self, "slow_reader", f"more than {WRITE_BYTES_MAX} bytes are not read"
            )
            self.abort()

    def goodbye(self, goodbye: Goodbye | None) -> None:
        """Say why, if there is a why, and close."""
        if goodbye is None:
            self.abort()
            return
        self.send(codec.encode(0, goodbye))
        self.finish()

    def finish(self, last_words: bytes = b"") -> None:
        """Send what is queued, then close; cut if that takes too long."""
        transport = self._transport
        if last_words:
            self._out.append(last_words)
        self.flush()
        self._closing = True
        if transport is not None:
            transport.close()
            self._server.later(CLOSE_S, self.abort)

    def abort(self) -> None:
        """Cut the connection now."""
        self._closing = True
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()

    # --- inside -------------------------------------------------------------------------------

    def _greet(self, data: bytes) -> bytes:
        """Take bytes until the preamble is complete; returns what follows it."""
        self._opening += data
        opening = sniff(self._opening)
        if opening is Opening.INCOMPLETE:
            return b""
        if opening is not Opening.RDZV:
            self._foreign(opening)
            return b""
        version = self._opening[len(MAGIC)]
        rest, self._opening = self._opening[PREAMBLE_BYTES:], b""
        if version != PROTOCOL_VERSION:
            text = (
                f"the client speaks protocol version {version}, this server version "
                f"{PROTOCOL_VERSION} ({self._server.version})"
            )
            self._server.refused(self, "version_refused", text)
            self.goodbye(Goodbye(code=ErrorCode.UNSUPPORTED, message=text))
            return b""
        self._open = True
        self._server.opened(self)
        return rest

    def _foreign(self, opening: Opening) -> None:
        """Something that is not rdzv: an answer for browsers, a line in the log, and out."""
        hint = ""
        if opening is Opening.TCPSTORE:
            if self._server.tcpstore:
                self._hand_over()
                return
            hint = (
                "; torchrun needs --rdzv-backend=rdzv here, not c10d, or rdzv-server needs "
                "--tcpstore"
            )
        self._server.refused(self, "foreign_protocol", f"{opening.value} on the rdzv port{hint}")
        self.finish(_NO_HTTP if opening is Opening.HTTP else b"")

    def _hand_over(self) -> None:
        """From here on the socket is a TCPStore client's."""
        transport, data = self._transport, self._opening
        if transport is None:
            return
        self._closing, self._transport, self._opening = True, None, b""
        self._server.handed_over(self)
        store = self._server.store_protocol(SHARED)
        transport.set_protocol(store)
        store.connection_made(transport)
        store.data_received(data)

    def _take(self, body: bytes) -> None:
        """Decode one frame and hand it on; answer it here if it is none."""
        try:
            request_id, message = codec.decode_request(body)
        except codec.MalformedError as error:
            self._malformed(error)
            return
        if len(body) > limits.FRAME_BYTES_MAX_CONTROL and not message.carries_values:
            self._refuse(
                request_id,
                ErrorCode.FRAME_TOO_LARGE,
                f"{message.op}: {len(body)} bytes exceed the limit of "
                f"{limits.FRAME_BYTES_MAX_CONTROL} bytes for requests without values",
            )
            return
        self._server.received(self, request_id, message)

    def _malformed(self, error: codec.MalformedError) -> None:
        self._server.refused(self, "malformed_request", str(error))
        code = ErrorCode.MALFORMED if error.op_known else ErrorCode.UNSUPPORTED
        if error.request_id > 0:
            self._refuse(error.request_id, code, str(error))
        else:
            self.goodbye(Goodbye(code=code, message=str(error)))
            self._server.lost(self, str(error))

    def _refuse(self, request_id: int, code: ErrorCode, text: str) -> None:
        text = text[: limits.TEXT_CHARS_MAX]
        self.send(
            codec.encode(request_id, Error(code=code, message=text, action=ERRORS[code].action))
        )
