"""The wire of torch's TCPStore, as a server reads and writes it: torch 2.2 to 2.14.

All integers are little-endian. A request is one byte `op` and its fields, without a length around it,
so where it ends follows from reading it. `Parser` takes bytes in pieces of any size and hands out
requests; every limit is checked as soon as the length or count is there. Answers carry neither op nor
id: they come in the order in which the requests are done.
"""

import struct
from typing import Any, ClassVar

import msgspec

from rdzv_proto import limits

HELLO = b"\x00" + (0x3C85F7CE).to_bytes(4, "little")
"""First bytes of every connection (op VALIDATE and a magic number). There is no answer to it."""

_U32, _U64, _I64 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<q")

YES = b"\x00"
"""CHECK: all keys are there. WAIT, BARRIER: the wait is over."""
NO = b"\x01"
"""CHECK: a key is missing. CANCEL_WAIT: no wait is pending any more."""

_KEEP_BYTES = 1 << 16
"""Consumed bytes at the front of the buffer that are not worth moving the rest for."""


class BadRequestError(Exception):
    """The peer broke the protocol or a limit. The text never tells what a key or value holds."""


class Request(msgspec.Struct, frozen=True):
    """Base of all requests. Values are secrets (unique ids among them): no text shows them."""

    op: ClassVar[int]

    def __repr__(self) -> str:
        return type(self).__name__


class Set(Request, frozen=True):
    """Set a key. No answer."""

    op = 1
    key: bytes
    value: bytes


class CompareSet(Request, frozen=True):
    """Set a key if it has the expected value; answered with the resulting value."""

    op = 2
    key: bytes
    expected: bytes
    desired: bytes


class Get(Request, frozen=True):
    """Answered with the value; empty if there is none."""

    op = 3
    key: bytes


class Add(Request, frozen=True):
    """Add to a decimal counter; answered with the new number."""

    op = 4
    key: bytes
    delta: int


class Check(Request, frozen=True):
    """Are all keys there?"""

    op = 5
    keys: tuple[bytes, ...]


class Wait(Request, frozen=True):
    """Answered when all keys have come."""

    op = 6
    keys: tuple[bytes, ...]


class GetNumKeys(Request, frozen=True):
    """How many keys there are."""

    op = 7


class DeleteKey(Request, frozen=True):
    """Delete a key; answered with 1 if it was there."""

    op = 8
    key: bytes


class Append(Request, frozen=True):
    """Append to a key's value. No answer."""

    op = 9
    key: bytes
    value: bytes


class MultiGet(Request, frozen=True):
    """Answered with the values, one after the other."""

    op = 10
    keys: tuple[bytes, ...]


class MultiSet(Request, frozen=True):
    """Set several keys. No answer."""

    op = 11
    keys: tuple[bytes, ...]
    values: tuple[bytes, ...]


class CancelWait(Request, frozen=True):
    """Give up the pending wait."""

    op = 12


class Ping(Request, frozen=True):
    """Answered with the same number; torch sends its process id."""

    op = 13
    nonce: int


class QueuePush(Request, frozen=True):
    """Append to a queue. No answer."""

    op = 14
    key: bytes
    value: bytes


class QueuePop(Request, frozen=True):
    """Answered with the queue's length, and with its first value if there is one."""

    op = 15
    key: bytes


class QueueLen(Request, frozen=True):
    """Answered with the queue's length."""

    op = 16
    key: bytes


class ListKeys(Request, frozen=True):
    """Answered with all keys."""

    op = 17


class Barrier(Request, frozen=True):
    """Count an arrival; answered when there are enough."""

    op = 18
    key: bytes
    world_size: int


AnyRequest = (
    Set | CompareSet | Get | Add | Check | Wait | GetNumKeys | DeleteKey | Append | MultiGet
    | MultiSet | CancelWait | Ping | QueuePush | QueuePop | QueueLen | ListKeys | Barrier
)  # fmt: skip

_KEY, _VALUE, _NUMBER, _NONCE, _KEYS, _PAIRS = range(6)

_SHAPES: dict[int, tuple[type[Any], tuple[int, ...]]] = {
    Set.op: (Set, (_KEY, _VALUE)),
    CompareSet.op: (CompareSet, (_KEY, _VALUE, _VALUE)),
    Get.op: (Get, (_KEY,)),
    Add.op: (Add, (_KEY, _NUMBER)),
    Check.op: (Check, (_KEYS,)),
    Wait.op: (Wait, (_KEYS,)),
    GetNumKeys.op: (GetNumKeys, ()),
    DeleteKey.op: (DeleteKey, (_KEY,)),
    Append.op: (Append, (_KEY, _VALUE)),
    MultiGet.op: (MultiGet, (_KEYS,)),
    MultiSet.op: (MultiSet, (_PAIRS,)),
    CancelWait.op: (CancelWait, ()),
    Ping.op: (Ping, (_NONCE,)),
    QueuePush.op: (QueuePush, (_KEY, _VALUE)),
    QueuePop.op: (QueuePop, (_KEY,)),
    QueueLen.op: (QueueLen, (_KEY,)),
    ListKeys.op: (ListKeys, ()),
    Barrier.op: (Barrier, (_KEY, _NUMBER)),
}
"""What follows each op."""


class Parser:
    """Bytes of one connection to requests. What is read once is not read again, so the cost is linear
    in the bytes, however they are cut."""

    __slots__ = (
        "_at", "_buffer", "_done", "_fields", "_items", "_kind", "_left", "_request_bytes",
        "_todo", "greeted",
    )  # fmt: skip

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        self.greeted = False
        """The hello was there."""
        self._kind: type[Any] | None = None
        """Of the request that is being read, with what is known of it so far."""
        self._todo: tuple[int, ...] = ()
        self._fields: list[Any] = []
        self._items: list[bytes] = []
        self._left = -1
        """Items of a list that are still to come; -1: its count is."""
        self._request_bytes = 0
        """Of the request that is being read, as far as it was consumed."""

    def __len__(self) -> int:
        """Bytes that are held for requests which are not complete."""
        return len(self._buffer) - self._at + self._request_bytes

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def next(self) -> AnyRequest | None:
        """The next complete request, or None until more bytes come.

        Raises:
            BadRequestError: unknown op, or a length or count above its limit.
        """
        if not self.greeted and not self._greet():
            return None
        if self._kind is None and not self._begin():
            return None
        while len(self._fields) < len(self._todo):
            if not self._read(self._todo[len(self._fields)]):
                self._compact()
                return None
        assert self._kind is not None, "a request without its kind"
        if self._todo and self._todo[0] == _PAIRS:
            pairs = self._fields[0]
            request: AnyRequest = MultiSet(pairs[::2], pairs[1::2])
        else:
            request = self._kind(*self._fields)
        self._kind = None
        self._request_bytes = 0
        return request

    # --- inside -------------------------------------------------------------------------------

    def _greet(self) -> bool:
        got = bytes(self._buffer[: len(HELLO)])
        if not HELLO.startswith(got):
            raise BadRequestError("the first bytes are no hello of a TCPStore client")
        self.greeted = got == HELLO
        self._at = len(HELLO) if self.greeted else 0
        return self.greeted

    def _begin(self) -> bool:
        if self._at >= len(self._buffer):
            self._compact()
            return False
        op = self._buffer[self._at]
        shape = _SHAPES.get(op)
        if shape is None:
            raise BadRequestError(f"op {op} is not known" if op else "a second hello")
        self._kind, self._todo = shape
        self._fields = []
        self._left = -1
        self._at += 1
        return True

    def _read(self, field: int) -> bool:
        """Read one field; False: it is not complete."""
        value: Any
        if field == _KEY:
            value = self._blob(limits.STORE_KEY_BYTES_MAX)
        elif field == _VALUE:
            value = self._blob(limits.STORE_VALUE_BYTES_MAX)
        elif field == _NUMBER:
            value = self._number(_I64)
        elif field == _NONCE:
            value = self._number(_U32)
        else:
            value = self._list(field)
        if value is None:
            return False
        self._fields.append(value)
        return True

    def _list(self, field: int) -> tuple[bytes, ...] | None:
        if self._left < 0:
            count = self._number(_U64)
            if count is None:
                return None
            if count > limits.STORE_KEYS_PER_REQUEST_MAX:
                raise BadRequestError(
                    f"{count} keys in one request exceed the limit of "
                    f"{limits.STORE_KEYS_PER_REQUEST_MAX}"
                )
            self._left = count if field == _KEYS else 2 * count
            self._items = []
        while self._left:
            is_value = field == _PAIRS and self._left % 2 == 1
            item = self._blob(
                limits.STORE_VALUE_BYTES_MAX if is_value else limits.STORE_KEY_BYTES_MAX
            )
            if item is None:
                return None
            self._items.append(item)
            self._left -= 1
        items, self._items = tuple(self._items), []
        return items

    def _number(self, kind: struct.Struct) -> int | None:
        if len(self._buffer) - self._at < kind.size:
            return None
        number: int = kind.unpack_from(self._buffer, self._at)[0]
        self._consume(kind.size)
        return number

    def _blob(self, bytes_max: int) -> bytes | None:
        start = self._at + 8
        if len(self._buffer) < start:
            return None
        size: int = _U64.unpack_from(self._buffer, self._at)[0]
        if size > bytes_max:
            raise BadRequestError(f"{size} bytes exceed the limit of {bytes_max} bytes")
        if self._request_bytes + size > limits.STORE_REQUEST_BYTES_MAX:
            raise BadRequestError(
                f"one request exceeds the limit of {limits.STORE_REQUEST_BYTES_MAX} bytes"
            )
        if len(self._buffer) < start + size:
            return None
        data = bytes(memoryview(self._buffer)[start : start + size])
        self._consume(8 + size)
        return data

    def _consume(self, count: int) -> None:
        self._at += count
        self._request_bytes += count

    def _compact(self) -> None:
        """Drop what was handed out; runs once per batch of input, not once per request."""
        if self._at == len(self._buffer):
            self._buffer.clear()
        elif self._at > _KEEP_BYTES:
            del self._buffer[: self._at]
        else:
            return
        self._at = 0


# --- answers ------------------------------------------------------------------------------------


def blob(data: bytes | bytearray) -> bytes:
    """A length and that many bytes."""
    return _U64.pack(len(data)) + data


def number(value: int) -> bytes:
    """A signed 64-bit number."""
    return _I64.pack(value)


def nonce(value: int) -> bytes:
    """What a ping is answered with."""
    return _U32.pack(value)
