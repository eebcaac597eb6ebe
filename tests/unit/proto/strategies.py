"""Hypothesis strategies and plain data for every message, derived from the table of messages."""

from typing import Any, TypeVar

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from msgspec import inspect

from rdzv_proto import codec
from rdzv_proto.messages import (
    PUSHES,
    REPLIES,
    REQUESTS,
    AnyPush,
    AnyReply,
    AnyRequest,
    Message,
)

S = TypeVar("S", bound=msgspec.Struct)

ALL: dict[str, type[Message]] = {**REQUESTS, **REPLIES, **PUSHES}

INT64 = (-(1 << 63), (1 << 63) - 1)
"""What a field without bounds is tried with."""

# Both limits are wall-clock limits of hypothesis, which a loaded machine would break.
often = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])

_PRINTABLE = st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\u2028\u2029")
_ANY = st.characters(exclude_categories=["Cs"])


def structs(kind: type[S]) -> st.SearchStrategy[S]:
    """Values of a message or part; fields that have a default are sometimes left out."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return st.fixed_dictionaries(
        {f.name: _of_type(f.type) for f in info.fields if f.required},
        optional={f.name: _of_type(f.type) for f in info.fields if not f.required},
    ).map(lambda fields: kind(**fields))


def request_ids(kind: type[Message]) -> st.SearchStrategy[int]:
    """Ids that a message of this kind may carry."""
    if kind.op in PUSHES:
        return st.just(0)
    return st.integers(1, (1 << 63) - 1)


def decode(kind: type[Message], body: bytes) -> tuple[int, AnyRequest | AnyReply | AnyPush]:
    """Decode a body on the side that gets messages of this kind."""
    if kind.op in REQUESTS:
        return codec.decode_request(body)
    return codec.decode_answer(body)


def plain(value: object) -> Any:
    """The value as msgpack would show it if every field were sent, default or not.

    Written without msgspec's own conversion, for it is what this is compared with.
    """
    if isinstance(value, msgspec.Struct):
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        return list(fields.values()) if value.__struct_config__.array_like else fields
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def agrees(value: object, sent: object) -> bool:
    """True if `sent`, decoded by msgpack, is this value; a map may lack fields with their default."""
    if isinstance(value, msgspec.Struct) and not value.__struct_config__.array_like:
        assert isinstance(sent, dict)
        names = value.__struct_fields__
        defaults = {
            name: default
            for name, default in zip(names[::-1], value.__struct_defaults__[::-1], strict=False)
            if default is not msgspec.NODEFAULT
        }
        return set(sent) <= set(names) and all(
            agrees(getattr(value, name), sent[name])
            if name in sent
            else name in defaults and _is_default(getattr(value, name), defaults[name])
            for name in names
        )
    if isinstance(value, msgspec.Struct):
        assert isinstance(sent, list)
        return all(map(agrees, [getattr(value, n) for n in value.__struct_fields__], sent))
    if isinstance(value, list):
        assert isinstance(sent, list)
        return len(value) == len(sent) and all(map(agrees, value, sent))
    return type(value) is type(sent) and value == sent


def _is_default(value: object, default: object) -> bool:
    return value == (default.factory() if hasattr(default, "factory") else default)


def _of_type(of: inspect.Type) -> st.SearchStrategy[Any]:
    match of:
        case inspect.Metadata(type=inner):
            return _of_type(inner)
        case inspect.IntType(ge=low, le=high):
            return st.integers(INT64[0] if low is None else low, INT64[1] if high is None else high)
        case inspect.StrType(min_length=low, max_length=high, pattern=pattern):
            alphabet = _ANY if pattern is None else _PRINTABLE
            return st.text(alphabet, min_size=low or 0, max_size=min(high or 40, 40))
        case inspect.BytesType(min_length=low, max_length=high):
            return st.binary(min_size=low or 0, max_size=min(high or 64, 64))
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.ListType(item_type=item, min_length=low):
            return st.lists(_of_type(item), min_size=low or 0, max_size=3)
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.UnionType(types=types):
            return st.one_of([_of_type(one) for one in types])
        case inspect.StructType(cls=cls):
            return structs(cls)
        case _:
            raise TypeError(f"no strategy for {of!r}")
