"""The golden frames of protocol version 1: `python -m tests.unit.proto.golden`.

`golden_v1.json` freezes, for every message, how it looks on the wire: with all its fields, and with
those only that it must have. Clients and servers of this version will be around for years, so the
file only ever grows. The program adds examples that are missing (a new message, or a message with a
new field); if a frozen one no longer encodes to its bytes, it says which and changes nothing.
"""

import hashlib
import json
import sys
import zlib
from pathlib import Path
from typing import Any, TypedDict

import msgpack
import msgspec
from msgspec import inspect

from rdzv_proto import codec
from rdzv_proto.messages import PUSHES, Message
from tests.unit.proto.strategies import ALL

FILE = Path(__file__).parent / "golden_v1.json"


class Example(TypedDict):
    """One frozen frame."""

    name: str
    op: str
    request_id: int
    hex: str
    payload: dict[str, Any]
    """Plain data; bytes are {"hex": …}."""


def load(file: Path = FILE) -> list[Example]:
    """All frozen examples."""
    examples: list[Example] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return examples


def rebuild(example: Example) -> Message:
    """The message of an example, made anew by the present classes."""
    return msgspec.convert(from_json(example["payload"]), ALL[example["op"]])


def from_json(value: Any) -> Any:
    """JSON data as msgpack has it: {"hex": …} is bytes."""
    match value:
        case {"hex": str(digits)} if len(value) == 1:
            return bytes.fromhex(digits)
        case dict():
            return {key: from_json(inner) for key, inner in value.items()}
        case list():
            return [from_json(inner) for inner in value]
        case _:
            return value


def to_json(value: Any) -> Any:
    """The other way."""
    match value:
        case bytes():
            return {"hex": value.hex()}
        case dict():
            return {key: to_json(inner) for key, inner in value.items()}
        case list():
            return [to_json(inner) for inner in value]
        case _:
            return value


def changed(examples: list[Example]) -> list[str]:
    """What is wrong with frozen examples under the present classes; empty if nothing is."""
    wrong = []
    for example in examples:
        name = example["name"]
        if example["op"] not in ALL:
            wrong.append(f"{name}: operation {example['op']} is gone")
            continue
        try:
            frame = codec.encode(example["request_id"], rebuild(example)).hex()
        except msgspec.ValidationError as error:
            wrong.append(f"{name}: {error}")
            continue
        if frame != example["hex"]:
            wrong.append(f"{name}: encodes to {frame}, frozen is {example['hex']}")
    return wrong


def missing(examples: list[Example]) -> list[Example]:
    """Examples to add: each operation with all its present fields, and with the required ones."""
    new = []
    for op, kind in ALL.items():
        mine = [from_json(e["payload"]) for e in examples if e["op"] == op]
        for form, full in (("all", True), ("required", False)):
            if not any(has(kind, payload, full=full) for payload in mine):
                taken = {e["name"] for e in examples}
                numbers = ("", *(f"-{n}" for n in range(2, 1000)))
                name = next(n for s in numbers if (n := f"{op}/{form}{s}") not in taken)
                new.append(_make(name, kind, full=full))
                mine.append(from_json(new[-1]["payload"]))
    return new


def has(kind: type[msgspec.Struct], payload: Any, *, full: bool) -> bool:
    """True if the payload has all fields of its type, at every depth (or the required ones only)."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    if kind.__struct_config__.array_like:
        return len(payload) == len(info.fields)
    wanted = {f.name: f.type for f in info.fields if full or f.required}
    return set(payload) == set(wanted) and all(
        _has(of, payload[name], full=full) for name, of in wanted.items()
    )


def _has(of: inspect.Type, value: Any, *, full: bool) -> bool:
    match of:
        case inspect.Metadata(type=inner):
            return _has(inner, value, full=full)
        case inspect.UnionType(types=types):
            return value is not None and _has(_some(types), value, full=full)
        case inspect.ListType(item_type=item):
            return bool(value) and all(_has(item, one, full=full) for one in value)
        case inspect.StructType(cls=cls):
            return has(cls, value, full=full)
        case _:
            return True


def main(file: Path = FILE) -> int:
    """Add what is missing; refuse if anything frozen has changed."""
    examples = load(file)
    wrong = changed(examples)
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        print(f"{file.name} is frozen: mend the messages, not the file", file=sys.stderr)
        return 1
    new = missing(examples)
    if new:
        file.write_text(
            json.dumps(examples + new, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    print(f"{len(new)} added: {', '.join(e['name'] for e in new) or 'nothing was missing'}")
    return 0


def _make(name: str, kind: type[Message], *, full: bool) -> Example:
    message = msgspec.convert(_struct(kind, full=full), kind)
    request_id = 0 if kind.op in PUSHES else zlib.crc32(name.encode()) % 70_000 + 1
    frame = codec.encode(request_id, message)
    payload = msgpack.unpackb(frame[4:])[3]
    return Example(
        name=name, op=kind.op, request_id=request_id, hex=frame.hex(), payload=to_json(payload)
    )


def _struct(kind: type[msgspec.Struct], *, full: bool) -> Any:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    fields = {f.name: _value(f.type, f.name, full) for f in info.fields if full or f.required}
    return list(fields.values()) if kind.__struct_config__.array_like else fields


def _value(of: inspect.Type, name: str, full: bool) -> Any:
    """A value that depends on the field's name and type only; never the default, if `full`."""
    number = zlib.crc32(name.encode())
    match of:
        case inspect.Metadata(type=inner):
            return _value(inner, name, full)
        case inspect.UnionType(types=types):
            return _value(_some(types), name, full)
        case inspect.IntType(ge=None):
            return -number if full else 0
        case inspect.IntType(ge=int(low), le=int(high)):
            return low + number % (high - low + 1) if full else low
        case inspect.BoolType():
            return full
        case inspect.StrType():
            return f"{name}-\u00b5" if full else name[:1]
        case inspect.BytesType(min_length=low):
            return hashlib.sha256(name.encode()).digest()[: max(low or 0, 8 if full else 0)]
        case inspect.ListType(item_type=item):
            return [_value(item, f"{name}{i}", full) for i in range(2 if full else 1)]
        case inspect.LiteralType(values=values):
            return values[-1] if full else values[0]
        case inspect.StructType(cls=cls):
            return _struct(cls, full=full)
        case _:
            raise TypeError(f"no example for {of!r}")


def _some(types: tuple[inspect.Type, ...]) -> inspect.Type:
    """The member of `X | None` that is a value."""
    return next(one for one in types if not isinstance(one, inspect.NoneType))


if __name__ == "__main__":
    sys.exit(main())
