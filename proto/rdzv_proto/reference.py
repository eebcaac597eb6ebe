"""Writes `proto/PROTOCOL.md` from the tables: `python -m rdzv_proto.reference [--check]`.

With `--check` it writes nothing and ends with 1 if the page is stale, which `make test` asks.
"""

import ast
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import msgspec

from rdzv_proto import (
    PORT_DEFAULT,
    PROTOCOL_VERSION,
    agreement,
    auth,
    errors,
    framing,
    limits,
    messages,
)
from rdzv_proto.messages import Message, Request

PAGE = Path(__file__).parent.parent / "PROTOCOL.md"

_PARTS = (
    messages.Fence, messages.Address, messages.Resume, messages.Policy, messages.Ended,
    messages.View, messages.KvEntry, messages.RunStatus, messages.MemberStatus,
    messages.BarrierStatus, messages.StoreStatus, messages.CommunicatorStatus,
    messages.ProbeStatus,
)  # fmt: skip

_HEAD = f"""\
# The rdzv protocol, version {PROTOCOL_VERSION}

Generated from `rdzv_proto` by `make reference`; do not edit.

## Connection

TCP, port {PORT_DEFAULT} by default. The client sends eight bytes first: `{framing.MAGIC.decode()}`,
one byte with the oldest protocol version that it speaks, three zeros. Frames follow in both directions:

    u32 big-endian length | msgpack array [version, request_id, op, payload]

- `request_id` is above 0 in requests, unique within the client's session, and returned in the reply.
  Pushes have request id 0.
- `payload` is a map from field names to values. A field that has its default may be left out;
  unknown fields are ignored; an unknown `op` is answered with `error` UNSUPPORTED.
- The first request is a hello. Requests marked *once* may be sent again under the same request id,
  also on another connection of the same session: they are done once, and the recorded reply is
  returned until a heartbeat acknowledges it.
- Durations are integer milliseconds. There are no floats, no wall-clock times, no msgpack extension
  types.
- Anything else in the first bytes is closed.
"""

_SKEW = """\
- Within a version, fields and operations are only ever added: unknown fields are ignored, unknown pushes too, and
  an unknown operation is an ordinary error. The frames of a version never change.
- A server of version N serves clients of N and N − 1, and a client of N speaks with servers of N and N − 1. So either side may be upgraded first, one version at a time.
- All frames behind the `welcome` are in its version; a request in another one is answered with `error` MALFORMED.
- `hello_*`, `authenticate`, `welcome`, `error` and `goodbye` have the same form in all versions.
- `rdzv status` shows the versions of the server, and of the nodes that are behind it.
"""


def page() -> str:
    """The whole page."""
    parts = [
        _HEAD,
        f"## Versions\n\n{inspect.getdoc(agreement)}\n\n{_SKEW}",
        f"## Authentication\n\n{inspect.getdoc(auth)}\n",
        "## Requests\n\n" + _sections(messages.REQUESTS.values()),
        "## Replies\n\n" + _sections(messages.REPLIES.values()),
        "## Pushes\n\n" + _sections(messages.PUSHES.values()),
        "## Parts\n\n" + _sections(_PARTS),
        "## Errors\n\n" + _errors(),
        "## Limits\n\n" + _limits(limits),
    ]
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    text = page()
    if arguments == ["--check"]:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        sys.stderr.write(f"{PAGE.name} is stale: run `make reference`\n")
        return 1
    PAGE.write_text(text)
    return 0


def _sections(kinds: Iterable[type[msgspec.Struct]]) -> str:
    return "\n".join(_section(kind) for kind in kinds)


def _section(kind: type[msgspec.Struct]) -> str:
    title = kind.op if issubclass(kind, Message) else kind.__name__
    lines = [f"### {title}", "", _paragraph(kind.__doc__ or "")]
    if issubclass(kind, Request):
        once = ", *once*" if kind.recorded else ""
        lines += ["", f"Answered by `{kind.answer}` or `error`{once}."]
    if kind.__struct_config__.array_like:
        lines += ["", "Sent as an array of its fields in this order."]
    rows = list(_rows(kind))
    if rows:
        lines += ["", "| field | type | default | meaning |", "|---|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _rows(kind: type[msgspec.Struct]) -> Iterable[str]:
    docs = _field_docs(kind)
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        default = "" if field.required else _default(field)
        yield f"| `{field.name}` | {_type(field.type)} | {default} | {docs.get(field.name, '')} |"


def _default(field: msgspec.inspect.Field) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
        if isinstance(value, msgspec.Struct):
            return "empty"
        return "none" if value is None else f"`{value!r}`"
    return "empty"


def _type(of: msgspec.inspect.Type) -> str:
    """A type with its bounds, for people."""
    match of:
        case msgspec.inspect.Metadata(type=inner):
            return _type(inner)
        case msgspec.inspect.IntType(ge=low, le=high):
            bounds = "" if low is None else f" {low}…{_number(high)}"
            return f"int{bounds}"
        case msgspec.inspect.StrType(min_length=low, max_length=high):
            return "str" + ("" if high is None else f" {low or 0}…{high} characters")
        case msgspec.inspect.BytesType(min_length=low, max_length=high):
            return "bytes" + ("" if high is None else f" {low or 0}…{high}")
        case msgspec.inspect.BoolType():
            return "bool"
        case msgspec.inspect.ListType(item_type=item, min_length=low, max_length=high):
            return f"list of {_type(item)}" + ("" if high is None else f", {low or 0}…{high} items")
        case msgspec.inspect.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(_type(one) for one in types)
        case msgspec.inspect.NoneType():
            return "nil"
        case msgspec.inspect.StructType(cls=cls):
            return f"[{cls.__name__}](#{cls.__name__.lower()})"
        case _:
            raise TypeError(f"no words for {of!r}")


def _number(value: int | None) -> str:
    """Large bounds as what they mean."""
    names = {limits.GENERATION_MAX: "2⁶³−1", limits.DURATION_MS_MAX: "ten years"}
    return "" if value is None else names.get(value, str(value))


def _field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The string under each field in the source."""
    tree = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            text = _string(after)
            if text is not None:
                docs[before.target.id] = _paragraph(text)
    return docs


def _string(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        value = node.value.value
        return value if isinstance(value, str) else None
    return None


def _errors() -> str:
    lines = [
        "| code | name | certainly not done | retry | when | what to do |",
        "|---|---|---|---|---|---|",
    ]
    for row in errors.ERRORS.values():
        lines.append(
            f"| {row.code.value} ({row.label}) | {row.code.name} | {'yes' if row.definite else 'no'} "
            f"| {row.retry.value} | {row.meaning} | {row.action} |"
        )
    return "\n".join(lines) + "\n"


def _limits(module: ModuleType) -> str:
    tree = ast.parse(inspect.getsource(module))
    lines = ["| limit | value | reason |", "|---|---|---|"]
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.Assign) and isinstance(before.targets[0], ast.Name):
            name = before.targets[0].id
            lines.append(
                f"| {name} | {getattr(module, name):,} | {_paragraph(_string(after) or '')} |"
            )
    return "\n".join(lines) + "\n"


def _paragraph(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
