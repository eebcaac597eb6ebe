"""One TCP connection: bytes to requests, messages to bytes.

All frames of one read go to the core before anything is written, and each connection is written to
once per turn of the loop. Rubbish is answered here, and a hello waits here for its proof, so that the core only
ever sees typed messages of those who may come in.
"""

import asyncio
import socket
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rdzv_proto import agreement, codec, limits
from rdzv_proto.auth import EVERYTHING
from rdzv_proto.errors import ERRORS, ErrorCode
from rdzv_proto.framing import (
    MAGIC,
    PREAMBLE_BYTES,
    FrameTooLargeError,
    Opening,
    sniff,
)
from rdzv_proto.messages import (
    AnyRequest,
    Authenticate,
    Error,
    Goodbye,
    HelloAdmin,
    HelloNode,
    HelloWorker,
    Welcome,
)
from rdzv_server.core.events import Agreed
from rdzv_server.core.tcpstore.model import SHARED
from rdzv_server.shell import log, tls
from rdzv_server.shell.framed import Framed
from rdzv_server.shell.gate import Challenge
from rdzv_server.shell.turns import Budget

if TYPE_CHECKING:
    from rdzv_server.shell.server import Server

_NO_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This is the rdzv rendezvous port; it does not speak HTTP.\n"
)

UNACKNOWLEDGED_MS_MIN = 5_000
"""However short the lease: a few packets lost in a row are no cut link."""

_LINUX_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)


class Connection(Framed):
    """The server's end of one connection.

    Args:
        server: whom requests go to.
        conn: its number, never reused.
    """

    # The largest frame it may be sent, and room for pushes beside it.
    write_bytes_max = limits.FRAME_BYTES_MAX_CLIENT + (1 << 20)

    def __init__(self, server: "Server", conn: int) -> None:
        super().__init__(server, conn)
        self.greeted = False
        """Its hello was accepted."""
        self.codec = agreement.SPOKEN.oldest
        """Of the version agreed on, from the hello on."""
        self._patience: asyncio.TimerHandle | None = None
        """The time for its preamble."""
        self._opening = b""
        self._open = False
        self._challenge: Challenge | None = None
        self._proof: bytes | None = None
        """The server's, for the welcome that comes next."""

    # --- from the loop ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer connected; nothing is told to the core before its preamble is good."""
        super().connection_made(transport)
        log.debug("connection_opened", peer=self.peer)
        self._patience = self._server.connected(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._deaf:
            return
        if not self._open:
            data = self._greet(data)
            if not self._open:
                return
        self.work(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End of stream, reset, or cut by us."""
        self._gone()
        self._patient()
        reason = "connection closed" if exc is None else str(exc)
        log.debug("connection_closed", peer=self.peer, reason=reason)
        self._server.disconnected(self, reason)

    def _patient(self) -> None:
        """Nobody waits for a preamble any more."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def expect_preamble(self) -> None:
        """The time for the preamble is over."""
        if not self._open and not self._closing:
            if self._opening:
                self._server.refused(self, "foreign_protocol", "an incomplete preamble")
            self.abort()

    # --- from the server ----------------------------------------------------------------------

    def welcome(self, welcome: Welcome, run: str) -> Welcome:
        """The hello was accepted: larger frames are fine from now on.

        Args:
            welcome: from the core.
            run: whose share of the server's time its requests use; empty for an admin.

        Returns:
            What to send.
        """
        self.greeted = True
        log.debug(
            "connection_welcomed", peer=self.peer, run=run or "-", session=welcome.session,
            resumed=welcome.resumed, protocol=self.codec.version,
        )  # fmt: skip
        self._frames.frame_bytes_max = limits.FRAME_BYTES_MAX
        self._budget = Budget(self._server.now())
        self.share = self._server.turns.share(run)
        self._end_unacknowledged(welcome.lease_ms)
        if self._proof is None:
            return welcome
        proof, self._proof = self._proof, None
        return replace(welcome, proof=proof)

    def deny(self, request_id: int, error: Error) -> None:
        """Somebody may not come in. He learns it after a while, and until then nothing is read."""
        self._server.refused(self, "auth_failed", error.message)
        self._deaf = True
        self._server.laggards.whole(self)
        if self._transport is not None:
            self._transport.pause_reading()

        def say() -> None:
            self.send(self.codec.encode(request_id, error))
            self.finish()

        self._server.later(self._server.delay_of_refusal_s(self), say)

    def reads(self) -> None:
        """A peer that takes its answers is alive, though nothing of it may be read until it has them."""
        if self.greeted:
            self._server.alive(self)

    def goodbye(self, goodbye: Goodbye | None) -> None:
        """Say why, if there is a why, and close."""
        if goodbye is None:
            self.abort()
            return
        self.send(self.codec.encode(0, goodbye))
        self.finish()

    # --- inside -------------------------------------------------------------------------------

    def _end_unacknowledged(self, lease_ms: int) -> None:
        """What is sent and not acknowledged for the lease ends the connection: a link that only
        works the other way would keep it for a quarter of an hour."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is not None and _LINUX_USER_TIMEOUT is not None:
            limit_ms = max(lease_ms, UNACKNOWLEDGED_MS_MIN)
            sock.setsockopt(socket.IPPROTO_TCP, _LINUX_USER_TIMEOUT, limit_ms)

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
        if not agreement.SPOKEN.may_agree(version):
            self._no_version(f"version {version}")
            return b""
        self._open = True
        self._patient()
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
        self._patient()
        self._closing = self._deaf = True
        self._transport, self._opening = None, b""
        store = self._server.stores.protocol(SHARED)
        self._server.handed_over(self, store)
        transport.set_protocol(store)
        store.connection_made(transport)
        store.data_received(data)

    def too_large(self, error: FrameTooLargeError) -> None:
        """A length that exceeds the limit: nothing behind it can be read."""
        self._server.refused(self, "frame_too_large", str(error))
        self.goodbye(Goodbye(code=ErrorCode.FRAME_TOO_LARGE, message=str(error)))
        self._server.lost(self, str(error))

    def take(self, body: bytes) -> None:
        """Decode one frame and hand it on; answer it here if it is none."""
        try:
            request_id, message = self.codec.decode_request(body, agreed=self.greeted)
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
        if self.greeted:
            self._server.received(self, request_id, message)
        else:
            self._before_welcome(request_id, message, body)

    def _before_welcome(self, request_id: int, message: AnyRequest, body: bytes) -> None:
        """A hello goes on to the core when its sender has proved who he is, if he has to."""
        gate = self._server.gate
        ssl_object = (
            None if self._transport is None else self._transport.get_extra_info("ssl_object")
        )
        if isinstance(message, HelloNode | HelloWorker | HelloAdmin):
            if not self._agree(message, body):
                return
            if gate is not None:
                self._challenge = gate.challenge(message, body)
                challenge = Welcome(
                    server="rdzv", instance="", epoch=0, challenge=self._challenge.nonce
                )
                self.send(self.codec.encode(request_id, challenge))
                return
            if (names := tls.peer_names(ssl_object)) is not None:
                self._server.identified(self, EVERYTHING, names)
        elif isinstance(message, Authenticate) and gate is not None and self._challenge is not None:
            asked, self._challenge = self._challenge, None
            passed = gate.check(asked, message, tls.own_digest(ssl_object))
            if passed is None:
                self._server.denied()
                self.deny(request_id, _wrong_proof(message))
                return
            self._proof = passed.proof
            self._server.identified(self, passed.grant, tls.peer_names(ssl_object))
            message = passed.hello
        self._server.received(self, request_id, message)

    def _agree(self, hello: HelloNode | HelloWorker | HelloAdmin, body: bytes) -> bool:
        """Settle the version that is spoken from here on; False if there is none."""
        oldest, newest = agreement.announced(hello, body)
        found = agreement.SPOKEN.agree(oldest, newest)
        if found is None:
            client = f" ({hello.client})" if hello.client else ""
            self._no_version(agreement.versions(oldest, newest) + client)
            self._server.lost(self, "no protocol version in common")
            return False
        self.codec = found
        self._server.handle(Agreed(self.conn, found.version))
        return True

    def _no_version(self, theirs: str) -> None:
        text = (
            f"the client speaks protocol {theirs}, this server {agreement.SPOKEN} "
            f"({self._server.version})"
        )
        self._server.refused(self, "version_refused", text)
        self.goodbye(Goodbye(code=ErrorCode.UNSUPPORTED, message=text))

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
            self.codec.encode(
                request_id, Error(code=code, message=text, action=ERRORS[code].action)
            )
        )


def _wrong_proof(answer: Authenticate) -> Error:
    """The same for a token that is not known and a wrong secret (T19)."""
    run = f"run {answer.run!r}" if answer.run else "all runs"
    return Error(
        code=ErrorCode.UNAUTHENTICATED,
        message=(
            f"the token with key id {answer.key.hex()} (scope {answer.scope!r}, {run}) is not in force "
            "on this server"
        ),
        action=ERRORS[ErrorCode.UNAUTHENTICATED].action,
    )
