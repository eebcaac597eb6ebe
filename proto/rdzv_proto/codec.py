"""Messages to frames and back, typed and bounded.

A body is the msgpack array `[version, request_id, op, payload]`. It is decoded in two steps: the
envelope first, with the payload left as bytes, then the payload with the type that `op` names. So a
bad payload still has an addressee for its error. Good requests take a shorter way to the same result. Whatever the bytes are, decoding gives a message
or `MalformedError`, and nothing else.
"""

from typing import Any, Literal, TypeVar

import msgspec

from rdzv_proto import PROTOCOL_VERSION
from rdzv_proto.framing import LENGTH_BYTES
from rdzv_proto.messages import (
    PUSHES,
    REPLIES,
    REQUESTS,
    AnyPush,
    AnyReply,
    AnyRequest,
    Message,
)

M = TypeVar("M", bound=Message)

# RecursionError: deep nesting inside a skipped field. MemoryError: a length that lies.
_BAD_INPUT = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, MemoryError)


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A frame body whose payload has not been looked at."""

    version: int
    request_id: int
    op: str
    payload: msgspec.Raw


class MalformedError(Exception):
    """The bytes are no message.

    Attributes:
        request_id: whose answer the error is; 0 where the envelope itself is broken.
        op_known: False if the only fault is an operation this side does not know.
    """

    def __init__(self, message: str, request_id: int = 0, *, op_known: bool = True) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.op_known = op_known


_encode = msgspec.msgpack.Encoder().encode
_HEAD = b"\x94" + _encode(PROTOCOL_VERSION)  # an array of four, and the first of them
_OPS: dict[type[Message], bytes] = {
    t: _encode(op) for op, t in (REQUESTS | REPLIES | PUSHES).items()
}
_envelopes = msgspec.msgpack.Decoder(Envelope)
_Decoders = dict[str, msgspec.msgpack.Decoder[M]]
_requests: _Decoders[AnyRequest] = {op: msgspec.msgpack.Decoder(t) for op, t in REQUESTS.items()}
_whole: dict[bytes, msgspec.msgpack.Decoder[Any]] = {
    op.encode(): msgspec.msgpack.Decoder(
        msgspec.defstruct(
            f"Whole{t.__name__}",
            [("version", int), ("request_id", int), ("op", Literal[op]), ("payload", t)],
            frozen=True,
            array_like=True,
        )
    )
    for op, t in REQUESTS.items()
}
"""Envelope and payload in one step, for each operation."""

_NUMBER_BYTES = bytes((*[1] * 128, *[0] * 76, 2, 3, 5, 9, *[0] * 48))
"""By its first byte, how long a number from 0 is in msgpack; 0: it is no such number."""

_answers: _Decoders[AnyReply | AnyPush] = {
    op: msgspec.msgpack.Decoder(t) for op, t in (REPLIES | PUSHES).items()
}


def encode(request_id: int, message: Message) -> bytes:
    """A whole frame, length prefix included. Pushes have request id 0."""
    rest = _HEAD + _encode(request_id) + _OPS[type(message)] + _encode(message)
    return len(rest).to_bytes(LENGTH_BYTES, "big") + rest


def encode_tail(message: Message) -> bytes:
    """What follows the request id in a frame: for one reply to many requests, encoded once."""
    return _OPS[type(message)] + _encode(message)


def decode_tail(tail: bytes) -> AnyReply | AnyPush:
    """The message of `encode_tail` back.

    Raises:
        MalformedError: it is none.
    """
    return _decode(_HEAD + _encode(1) + tail, _answers)[1]


def frame(request_id: int, tail: bytes) -> bytes:
    """The frame that `encode` makes of this request id and the message of `encode_tail`."""
    return head(request_id, tail) + tail


def head(request_id: int, tail: bytes) -> bytes:
    """What goes before the tail in that frame."""
    begin = _HEAD + _encode(request_id)
    return (len(begin) + len(tail)).to_bytes(LENGTH_BYTES, "big") + begin


def decode_request(body: bytes) -> tuple[int, AnyRequest]:
    """Decode a frame body on the server's side.

    Returns:
        Request id (above 0) and message.

    Raises:
        MalformedError: for any bytes that are not a request of a known operation.
    """
    try:
        # As good frames are: four elements, a small version, a short operation. The decoder looks at
        # all of it, the operation included; whatever it does not like is decoded in two steps.
        op_at = 2 + _NUMBER_BYTES[body[2]]
        whole = _whole[body[op_at + 1 : op_at + body[op_at] - 0x9F]].decode(body)
    except (LookupError, *_BAD_INPUT):
        request_id, message = _decode(body, _requests)
    else:
        request_id, message = whole.request_id, whole.payload
    if request_id <= 0:
        raise MalformedError(f"request id {request_id} is not above 0")
    return request_id, message


def decode_answer(body: bytes) -> tuple[int, AnyReply | AnyPush]:
    """Decode a frame body on the client's side: request id (0 for a push) and message.

    Raises:
        MalformedError: for any bytes that are not a reply or push of a known operation.
    """
    return _decode(body, _answers)


def _decode(body: bytes, decoders: "_Decoders[M]") -> tuple[int, M]:
    try:
        envelope = _envelopes.decode(body)
    except _BAD_INPUT as error:
        raise MalformedError(f"not a frame of this protocol: {error}") from None
    request_id = envelope.request_id
    decoder = decoders.get(envelope.op)
    if decoder is None:
        raise MalformedError(
            f"unknown operation {envelope.op[:32]!r} (protocol version {PROTOCOL_VERSION})",
            request_id,
            op_known=False,
        )
    try:
        return request_id, decoder.decode(envelope.payload)
    except _BAD_INPUT as error:
        raise MalformedError(f"bad {envelope.op}: {error}", request_id) from None
