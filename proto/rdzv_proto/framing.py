"""Bytes to frames: the preamble of a connection and the 4-byte length before each body.

A connection starts with eight bytes from the client: `RDZV`, the oldest protocol version that it speaks, three
zeros.
Frames follow in both directions: u32 big-endian length, then that many bytes of body. The length is
checked before anything is buffered, and input may come in pieces of any size.
"""

import enum
import struct
from collections.abc import Generator

from rdzv_proto import PROTOCOL_VERSION

MAGIC = b"RDZV"


def preamble(version: int) -> bytes:
    """The first bytes of a connection.

    Args:
        version: of the hello that follows, which is the oldest that the client speaks.
    """
    return MAGIC + bytes((version, 0, 0, 0))


PREAMBLE = preamble(PROTOCOL_VERSION)
PREAMBLE_BYTES = len(PREAMBLE)
_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size
_length_at = _LENGTH.unpack_from


class Opening(enum.Enum):
    """What the first bytes of a connection turn out to be."""

    INCOMPLETE = "incomplete"
    RDZV = "rdzv"
    HTTP = "an HTTP request"
    TLS = "a TLS handshake"
    TCPSTORE = "a torch TCPStore client"
    SSH = "an SSH client"
    UNKNOWN = "an unknown protocol"


_FOREIGN = (
    (b"GET ", Opening.HTTP),
    (b"HEAD", Opening.HTTP),
    (b"POST", Opening.HTTP),
    (b"\x16\x03", Opening.TLS),
    (b"\x00\xce\xf7\x85\x3c", Opening.TCPSTORE),
    (b"SSH-", Opening.SSH),
)


def sniff(data: bytes) -> Opening:
    """Say what a connection's first bytes are, as early as they can be told apart.

    Args:
        data: everything received so far.

    Returns:
        `INCOMPLETE` while the bytes may still become a preamble; `RDZV` when all eight are there.
    """
    if data[: len(MAGIC)] == MAGIC[: len(data)]:
        return Opening.RDZV if len(data) >= PREAMBLE_BYTES else Opening.INCOMPLETE
    for start, kind in _FOREIGN:
        if data[: len(start)] == start:
            return kind
        if start[: len(data)] == data:
            return Opening.INCOMPLETE
    return Opening.UNKNOWN


class FrameTooLargeError(Exception):
    """A length prefix exceeds the limit; the stream cannot be read on.

    Attributes:
        frame_bytes: what the prefix claims.
        frame_bytes_max: what was allowed.
    """

    def __init__(self, frame_bytes: int, frame_bytes_max: int) -> None:
        super().__init__(
            f"a frame of {frame_bytes} bytes exceeds the limit of {frame_bytes_max} bytes"
        )
        self.frame_bytes = frame_bytes
        self.frame_bytes_max = frame_bytes_max


class FrameBuffer:
    """Collects bytes and hands out frame bodies.

    Args:
        frame_bytes_max: longest body accepted. May be changed between frames (a connection gets
            more after its hello).
    """

    __slots__ = ("_buffer", "_start", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        self._buffer = bytearray()
        self._start = 0
        self.frame_bytes_max = frame_bytes_max

    def __len__(self) -> int:
        """Bytes received and not handed out yet."""
        return len(self._buffer) - self._start

    def feed(self, data: bytes) -> None:
        """Add received bytes. Costs amortised O(len(data)), also one byte at a time."""
        self._buffer += data

    def single(self, data: bytes) -> bytes | None:
        """The body, if exactly one frame came and nothing is left over from before: most of the time.
        None: ask `split`."""
        body_bytes = len(data) - LENGTH_BYTES
        if self._buffer or not 0 <= body_bytes <= self.frame_bytes_max:
            return None
        return data[LENGTH_BYTES:] if _length_at(data)[0] == body_bytes else None

    def split(self, data: bytes) -> Generator[bytes, None, None]:
        """Add received bytes and hand out all bodies that are complete: `feed` and `pop`, without a
        copy where whole frames came. What was not taken when it is closed is kept, once the
        first was asked for.

        Raises:
            FrameTooLargeError: as `pop`.
        """
        if self._buffer:
            self.feed(data)
            while (body := self.pop()) is not None:
                yield body
            return
        start, end = 0, len(data)
        try:
            while end - start >= LENGTH_BYTES:
                at = start + LENGTH_BYTES
                (frame_bytes,) = _length_at(data, start)
                if frame_bytes > self.frame_bytes_max:
                    start = end  # it is not kept
                    raise FrameTooLargeError(frame_bytes, self.frame_bytes_max)
                if at + frame_bytes > end:
                    break
                start = at + frame_bytes
                yield data[at:start]
        finally:
            if start < end:
                self.feed(data[start:])

    def pop(self) -> bytes | None:
        """The next complete body, or None until more bytes come.

        Raises:
            FrameTooLargeError: as soon as a length prefix exceeds the limit.
        """
        start = self._start
        body = start + LENGTH_BYTES
        available = len(self._buffer)
        if available < body:
            self._compact()
            return None
        (frame_bytes,) = _length_at(self._buffer, start)
        if frame_bytes > self.frame_bytes_max:
            raise FrameTooLargeError(frame_bytes, self.frame_bytes_max)
        end = body + frame_bytes
        if available < end:
            self._compact()
            return None
        self._start = end
        return bytes(memoryview(self._buffer)[body:end])

    def _compact(self) -> None:
        """Drop what was handed out; runs once per batch of input, not once per frame."""
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
