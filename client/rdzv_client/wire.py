"""The client's end of the wire: bytes to messages and back, in the version that both sides agreed on."""

from msgspec.structs import replace

from rdzv_proto import agreement, codec, limits
from rdzv_proto.agreement import Spoken
from rdzv_proto.codec import MalformedError
from rdzv_proto.errors import ErrorCode, info
from rdzv_proto.framing import FrameBuffer, preamble
from rdzv_proto.messages import (
    AnyPush,
    AnyReply,
    AnyRequest,
    Error,
    HelloAdmin,
    HelloNode,
    HelloWorker,
    Welcome,
)

Hello = HelloNode | HelloWorker | HelloAdmin

TLS_ALERT = b"\x15\x03"
"""How a server that speaks TLS turns away a client that does not; no frame begins like this."""


class Wire:
    """One connection after the other.

    Args:
        spoken: versions that this client may speak; None: all that there are.
    """

    def __init__(self, spoken: Spoken | None = None) -> None:
        self._spoken = spoken or agreement.SPOKEN
        self._codec = self._spoken.oldest
        self._settled = False
        """The server has chosen a version."""
        self._frames = FrameBuffer(limits.FRAME_BYTES_MAX_CLIENT)
        self._first = b""
        """Bytes of this connection."""

    @property
    def version(self) -> int:
        """What is spoken on this connection, or was on the last one."""
        return self._codec.version

    def opened(self) -> bytes:
        """A connection stands; returns its first bytes."""
        self._codec, self._settled = self._spoken.oldest, False
        self._frames, self._first = FrameBuffer(limits.FRAME_BYTES_MAX_CLIENT), b""
        return preamble(self._codec.version)

    def hello(self, request_id: int, hello: Hello) -> bytes:
        """The frame of a hello: it says which versions are spoken."""
        hello = replace(hello, protocol_max=self._spoken.protocol_max)
        return self._spoken.oldest.encode(request_id, hello)

    def encode(self, request_id: int, message: AnyRequest) -> bytes:
        """A frame in the version of this connection; in the newest if this one is `lacking` the message."""
        codec = self._codec if self._codec.has(type(message)) else self._spoken.newest
        return codec.encode(request_id, message)

    def lacking(self, message: AnyRequest, where: str) -> Error | None:
        """Why a request cannot be made; None if it can.

        Args:
            message: the request.
            where: the server, for texts.
        """
        if self._codec.has(type(message)):
            return None
        code = ErrorCode.UNSUPPORTED
        text = (
            f"{message.op} is not in protocol version {self.version}, which is spoken with {where}; this "
            f"client speaks {self._spoken}"
        )
        return Error(code=code, message=text, action=info(code).action)

    def feed(self, data: bytes) -> None:
        """Bytes came."""
        self._first = self._first or data[: len(TLS_ALERT)]
        self._frames.feed(data)

    def pop(self) -> tuple[int, int, AnyReply | AnyPush] | None:
        """How many bytes the next message has, whose answer it is, and the message; None until more bytes come. Pushes
        that are newer than this client are passed over. A welcome settles the version.

        Raises:
            MalformedError: that is no message.
            FrameTooLargeError: it is longer than any.
        """
        while (body := self._frames.pop()) is not None:
            try:
                request_id, message = self._codec.decode_answer(body, agreed=self._settled)
            except MalformedError as error:
                if error.op_known or error.request_id:
                    raise
                continue
            if not self._settled and isinstance(message, Welcome):
                self._settle(codec.version_of(body))
            return len(body), request_id, message
        return None

    def strange(self, where: str, error: Exception) -> str:
        """What to say of a server that is none.

        Args:
            where: the server, for texts.
            error: why its bytes cannot be read.
        """
        if self._first.startswith(TLS_ALERT):
            return f"{where} speaks TLS; this client was not told to (tls_ca)"
        return f"{where} does not speak the rdzv protocol ({error})"

    def _settle(self, version: int) -> None:
        found = self._spoken.get(version)
        if found is None:
            raise MalformedError(
                f"it chose protocol version {version}; this client speaks {self._spoken}"
            )
        self._codec, self._settled = found, True
