"""Messages to frames and back, typed and bounded, in one version of the protocol.

A body is the msgpack array `[version, request_id, op, payload]`. It is decoded in two steps: the
envelope first, with the payload left as bytes, then the payload with the type that `op` names. So a
bad payload still has an addressee for its error. Good requests take a shorter way to the same result. Whatever the bytes are, decoding gives a message
or `MalformedError`, and nothing else.

The functions of this module are the codec of the newest version.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from rdzv_proto.framing import LENGTH_BYTES
from rdzv_proto.messages import AnyPush, AnyReply, AnyRequest, Message
from rdzv_proto.versions import NEWEST, Version

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
_envelopes = msgspec.msgpack.Decoder(Envelope)

_NUMBER_BYTES = bytes((*[1] * 128, *[0] * 76, 2, 3, 5, 9, *[0] * 48))
"""By its first byte, how long a number from 0 is in msgpack; 0: it is no such number."""

_SHORT = 256
_LENGTHS = tuple(size.to_bytes(LENGTH_BYTES, "big") for size in range(_SHORT))
"""What goes before short bodies, which most are."""

_Decoders = dict[str, msgspec.msgpack.Decoder[Any]]


class Codec:
    """Messages to frames and back, as one version has them.

    Args:
        version: its table.
    """

    def __init__(self, version: Version) -> None:
        self.version = version.number
        self._head = b"\x94" + _encode(version.number)  # an array of four, and the first of them
        self._names = dict(zip(version.messages.values(), version.messages, strict=True))
        self._ops = {kind: _encode(op) for op, kind in version.messages.items()}
        self._down = {kind: form.down for kind, form in version.forms.items()}
        self._up: dict[str, Callable[[Any], Message]] = {
            kind.op: form.up for kind, form in version.forms.items()
        }
        self._requests: _Decoders = {
            op: msgspec.msgpack.Decoder(version.wire(t)) for op, t in version.requests.items()
        }
        self._answers: _Decoders = {
            op: msgspec.msgpack.Decoder(version.wire(t))
            for op, t in (*version.replies.items(), *version.pushes.items())
        }
        self._whole = {
            op.encode(): _whole(op, version.wire(t)) for op, t in version.requests.items()
        }
        """Envelope and payload in one step, for each operation."""

    def has(self, kind: type[Message]) -> bool:
        """This version has that message. A push that it has not is not sent; a request is answered by the client
        itself; a reply without its request cannot be."""
        return kind in self._ops

    def encode(self, request_id: int, message: Message) -> bytes:
        """A whole frame, length prefix included. Pushes have request id 0."""
        op = self._names[type(message)]
        if self._down:
            message = self._lowered(message)
        body = _encode((self.version, request_id, op, message))
        size = len(body)
        return (_LENGTHS[size] if size < _SHORT else size.to_bytes(LENGTH_BYTES, "big")) + body

    def encode_tail(self, message: Message) -> bytes:
        """What follows the request id in a frame: for one reply to many requests, encoded once."""
        return self._ops[type(message)] + _encode(self._lowered(message))

    def decode_tail(self, tail: bytes) -> AnyReply | AnyPush:
        """The message of `encode_tail` back.

        Raises:
            MalformedError: it is none.
        """
        message: AnyReply | AnyPush = self.decode_answer(self._head + _encode(1) + tail)[1]
        return message

    def frame(self, request_id: int, tail: bytes) -> bytes:
        """The frame that `encode` makes of this request id and the message of `encode_tail`."""
        return self.head(request_id, tail) + tail

    def head(self, request_id: int, tail: bytes) -> bytes:
        """What goes before the tail in that frame."""
        begin = self._head + _encode(request_id)
        return (len(begin) + len(tail)).to_bytes(LENGTH_BYTES, "big") + begin

    def decode_request(self, body: bytes, *, agreed: bool = False) -> tuple[int, AnyRequest]:
        """Decode a frame body on the server's side.

        Args:
            body: of the frame.
            agreed: this version was agreed on, so that a frame of another one is refused: its fields may mean
                something else there.

        Returns:
            Request id (above 0) and message.

        Raises:
            MalformedError: for any bytes that are not a request of a known operation.
        """
        try:
            # As good frames are: four elements, a small version, a short operation. The decoder looks at
            # all of it, the operation included; whatever it does not like is decoded in two steps.
            op_at = 2 + _NUMBER_BYTES[body[2]]
            whole = self._whole[body[op_at + 1 : op_at + body[op_at] - 0x9F]].decode(body)
        except (LookupError, *_BAD_INPUT):
            request_id, message = self._decode(body, self._requests, agreed)
        else:
            request_id, message = whole.request_id, whole.payload
            if agreed and whole.version != self.version:
                raise self._confused(whole)
            if self._up and (up := self._up.get(whole.op)) is not None:
                message = up(message)
        if request_id <= 0:
            raise MalformedError(f"request id {request_id} is not above 0")
        return request_id, message

    def decode_answer(self, body: bytes, *, agreed: bool = False) -> tuple[int, AnyReply | AnyPush]:
        """Decode a frame body on the client's side: request id (0 for a push) and message.

        Args:
            body: of the frame.
            agreed: as in `decode_request`.

        Raises:
            MalformedError: for any bytes that are not a reply or push of a known operation.
        """
        return self._decode(body, self._answers, agreed)

    def _lowered(self, message: Message) -> Message:
        down = self._down.get(type(message))
        return message if down is None else down(message)

    def _decode(self, body: bytes, decoders: _Decoders, agreed: bool) -> tuple[int, Any]:
        envelope = _opened(body)
        request_id, op = envelope.request_id, envelope.op
        decoder = decoders.get(op)
        if decoder is None:
            raise MalformedError(
                f"unknown operation {op[:32]!r} (protocol version {self.version})",
                request_id,
                op_known=False,
            )
        if agreed and envelope.version != self.version:
            raise self._confused(envelope)
        try:
            message = decoder.decode(envelope.payload)
        except _BAD_INPUT as error:
            raise MalformedError(f"bad {op}: {error}", request_id) from None
        up = self._up.get(op)
        return request_id, message if up is None else up(message)

    def _confused(self, envelope: Any) -> MalformedError:
        text = f"a frame of protocol version {envelope.version}, where version {self.version} was agreed on"
        return MalformedError(text, envelope.request_id)


def version_of(body: bytes) -> int:
    """Which version a frame body says it is written in.

    Raises:
        MalformedError: it is no frame body.
    """
    return _opened(body).version


def _opened(body: bytes) -> Envelope:
    try:
        return _envelopes.decode(body)
    except _BAD_INPUT as error:
        raise MalformedError(f"not a frame of this protocol: {error}") from None


def _whole(op: str, kind: type[Message]) -> msgspec.msgpack.Decoder[Any]:
    fields = [("version", int), ("request_id", int), ("op", Literal[op]), ("payload", kind)]
    struct = msgspec.defstruct(
        f"Whole{kind.__name__}", fields, frozen=True, array_like=True, gc=False
    )
    return msgspec.msgpack.Decoder(struct)


CURRENT = Codec(NEWEST)
encode, encode_tail, decode_tail = CURRENT.encode, CURRENT.encode_tail, CURRENT.decode_tail
frame, head = CURRENT.frame, CURRENT.head
decode_request, decode_answer = CURRENT.decode_request, CURRENT.decode_answer
