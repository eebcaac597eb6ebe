"""Messages by the table of messages: valid ones, nearly valid ones, and bytes that once were one.

What hypothesis does for unit tests (tests/unit/proto/strategies.py), thousands of times faster: values come from a
seeded `random.Random`, with limits and their neighbours, and with names, fences and tokens that mean something
to the server that they are for.
"""

import copy
import functools
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import inspect

from rdzv_proto import PROTOCOL_VERSION
from rdzv_proto.messages import REQUESTS, Request
from tests.unit.proto import golden
from tests.unit.proto.strategies import INT64

Plain = Any
"""What msgpack can write."""

JUNK: tuple[Plain, ...] = (
    None, True, -1, 0, 1 << 31, (1 << 64) - 1, -(1 << 63), 0.5, float("nan"), float("inf"), "", "\x00", "\u2028",
    "\ud7ff\U0010ffff", "x" * 129, "x" * 1025, b"", b"\xff" * 33, [], [[]], {}, {"a": {}}, [None] * 70,
)  # fmt: skip

TEXT_CHARS, LIST_ITEMS, BYTES = 140, 5, 200
"""The most that a value has without a reason: most limits are near the first, none of the others is tried."""

KNOWN = 0.9
"""How often a field has a value that means something; a message has up to a dozen fields, and one that means nothing
is enough for most to be refused at once."""

_encode = msgspec.msgpack.Encoder().encode


@functools.cache
def fields_of(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    """Of a message or part."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info.fields


@dataclass
class Known:
    """What means something where messages go: values by the name of the field."""

    by_field: dict[str, list[Plain]] = field(default_factory=dict)

    def learn(self, name: str, *values: Plain) -> None:
        """Add values of a field."""
        self.by_field.setdefault(name, []).extend(values)


class Grammar:
    """Makes requests.

    Args:
        rng: the only source of randomness.
        known: what to take values from.
        kinds: of requests; none: all.
        rubbish: of how many of `any` nothing can be expected, not even a number to answer to.
    """

    def __init__(
        self,
        rng: random.Random,
        known: Known,
        rubbish: float = 0.15,
        kinds: Sequence[type[Request]] = (),
    ) -> None:
        self.rng, self.known, self.rubbish, self.kinds = rng, known, rubbish, kinds or KINDS
        self._ids = itertools.count(20)

    def payload(self, kind: type[msgspec.Struct]) -> Plain:
        """Plain data of a message or part; fields that have a default are left out half of the time."""
        rng = self.rng
        array = kind.__struct_config__.array_like
        made = {
            f.name: self._field(f) for f in fields_of(kind) if array or f.required or rng.random() < 0.5
        }  # fmt: skip
        return list(made.values()) if array else made

    def body(self, kind: type[Request]) -> bytes:
        """Of a valid frame."""
        return self._body(kind.op, self.payload(kind))

    def near(self, kind: type[Request]) -> bytes:
        """Of a frame in which one thing is not as it should be."""
        rng, payload = self.rng, copy.deepcopy(self.payload(kind))
        for _ in range(rng.randint(1, 2)):
            self._spoil(payload)
        return self._body(kind.op, payload)

    def mutated(self) -> bytes:
        """A body that was good: bytes are cut out, put in, changed, or come from another."""
        rng = self.rng
        data = bytearray(rng.choice(golden_bodies()) if rng.random() < 0.5 else self.any_valid())
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(4):
                case 0:
                    del data[at : at + rng.randint(1, 5)]
                case 1:
                    data[at:at] = rng.randbytes(rng.randint(1, 5))
                case 2:
                    data[at : at + 1] = rng.randbytes(1)
                case _:
                    donor = rng.choice(golden_bodies())
                    start = rng.randrange(len(donor))
                    data[at : at + 8] = donor[start : start + 8]
        return bytes(data)

    def any_valid(self) -> bytes:
        """Of a request of any kind."""
        return self.body(self.rng.choice(self.kinds))

    def any(self) -> bytes:
        """Most of them valid, a quarter nearly, and rubbish."""
        chance = self.rng.random()
        if chance < self.rubbish:
            return self.mutated()
        return self.near(self.rng.choice(self.kinds)) if chance > 0.75 else self.any_valid()

    # --- values -------------------------------------------------------------------------------

    def _body(self, op: str, payload: Plain) -> bytes:
        rng = self.rng
        request_id = next(self._ids) if rng.random() < 0.7 else rng.randint(1, 12)
        if rng.random() < self.rubbish:
            request_id = rng.choice((0, -1, 1 << 40, 1 << 62))
        return _encode([PROTOCOL_VERSION, request_id, op, payload])

    def _field(self, one: inspect.Field) -> Plain:
        values = self.known.by_field.get(one.name)
        if values and self.rng.random() < KNOWN:
            return self.rng.choice(values)
        return self._value(one.type)

    def _value(self, of: inspect.Type) -> Plain:
        rng = self.rng
        match of:
            case inspect.Metadata(type=inner):
                return self._value(inner)
            case inspect.IntType(ge=low, le=high):
                return self._number(
                    INT64[0] if low is None else low, INT64[1] if high is None else high
                )
            case inspect.StrType(min_length=low, max_length=high):
                size = self._size(low or 0, min(high or TEXT_CHARS, TEXT_CHARS))
                return "".join(rng.choices("abcz09-_.: é\u4e2d'\"\\=%", k=size))
            case inspect.BytesType(min_length=low, max_length=high):
                return rng.randbytes(self._size(low or 0, min(high or BYTES, BYTES)))
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.NoneType():
                return None
            case inspect.ListType(item_type=item, min_length=low):
                return [
                    self._value(item) for _ in range(self._size(low or 0, (low or 0) + LIST_ITEMS))
                ]
            case inspect.LiteralType(values=values):
                return rng.choice(values)
            case inspect.UnionType(types=types):
                return self._value(rng.choice(types))
            case inspect.StructType(cls=cls):
                return self.payload(cls)
            case _:
                raise TypeError(f"no value for {of!r}")

    def _number(self, low: int, high: int) -> int:
        rng = self.rng
        match rng.randrange(4):
            case 0:
                return rng.choice((low, high))
            case 1:
                return min(high, low + rng.randrange(4))
            case 2:
                return rng.randint(low, min(high, low + 1000))
            case _:
                return rng.randint(low, high)

    def _size(self, low: int, high: int) -> int:
        return self.rng.choice((low, min(high, low + 1), self.rng.randint(low, high), high))

    def _spoil(self, payload: Plain) -> None:
        """Put junk in one place, or leave one out, or add one."""
        rng = self.rng
        place = payload
        while isinstance(place, dict | list) and place:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = rng.choice(keys)
            inner = place[key]
            if isinstance(inner, dict | list) and inner and rng.random() < 0.6:
                place = inner
            elif rng.random() < 0.2:
                del place[key]
                return
            else:
                place[key] = copy.deepcopy(rng.choice(JUNK))
                return
        if isinstance(place, dict):
            place[rng.choice(("zzz", "fence", "key"))] = copy.deepcopy(rng.choice(JUNK))


KINDS = tuple(REQUESTS.values())


@functools.cache
def golden_bodies() -> tuple[bytes, ...]:
    """The frozen frames."""
    return tuple(bytes.fromhex(example["hex"])[4:] for example in golden.load())
