"""Of the model: keys of a generation or of a run (S11, S23 to S25)."""

from dataclasses import dataclass, field
from typing import Any

from rdzv_proto.messages import (
    AnyRequest,
    KvAdd,
    KvAppend,
    KvCas,
    KvCheck,
    KvCount,
    KvDelete,
    KvGet,
    KvList,
    KvMultiGet,
    KvMultiSet,
    KvSet,
    KvWait,
)
from tests.stateful.told import Told

READS = (KvGet, KvWait, KvMultiGet)
LOOKS = (KvCheck, KvCount, KvList)
WRITES = (KvSet, KvAdd, KvMultiSet, KvCas, KvAppend, KvDelete)


class NoError(Exception):
    """A refusal: the name of its code. One that was not even read leaves no record."""

    def __init__(self, code: str, *more: Any, read: bool = True) -> None:
        super().__init__(code)
        self.read = read
        self.told: Told = ("error", code, *more)


@dataclass
class Waiting:
    """A read that waits for its keys."""

    session: int
    request: int
    ask: Any
    until: float


@dataclass
class Space:
    """One key space."""

    values: dict[str, bytes] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    """Number of the last change of each key."""
    changes: int = 0
    waiting: list[Waiting] = field(default_factory=list)

    @property
    def bytes_held(self) -> int:
        return sum(len(key.encode()) + len(value) for key, value in self.values.items())


def keys_of(ask: AnyRequest) -> list[str]:
    match ask:
        case KvWait() | KvMultiGet() | KvCheck() | KvDelete() | KvMultiSet():
            return list(ask.keys)
        case KvGet() | KvSet() | KvAdd() | KvCas() | KvAppend():
            return [ask.key]
        case _:
            raise TypeError(ask)


def found(space: Space, ask: AnyRequest) -> Told | None:
    """The answer to a read; None: a key is not there."""
    keys = keys_of(ask)
    if any(key not in space.values for key in keys):
        return None
    match ask:
        case KvGet():
            return ("value", space.values[ask.key], space.changed[ask.key])
        case KvMultiGet():
            return ("values", tuple(space.values[key] for key in keys))
        case _:
            return ("done", 0)


def missing(space: Space, ask: AnyRequest) -> Told:
    """Each key that is not there, once, in the order asked for."""
    return tuple(dict.fromkeys(key for key in keys_of(ask) if key not in space.values))


def look(space: Space, ask: AnyRequest) -> Told:
    match ask:
        case KvCheck():
            return ("missing", tuple(key for key in ask.keys if key not in space.values))
        case KvCount():
            return ("number", sum(key.startswith(ask.prefix) for key in space.values), 0)
        case KvList():
            keys = sorted(k for k in space.values if k.startswith(ask.prefix) and k > ask.after)
            rows = tuple(
                (k, space.changed[k], len(space.values[k]), space.values[k] if ask.values else None)
                for k in keys
            )
            return ("page", rows, False, space.changes)
        case _:
            raise TypeError(ask)


def write(spaces: list[Space], space: Space, ask: AnyRequest, limits: tuple[int, int]) -> Told:
    """Do one write. `spaces` are all of the run, which share its limits (keys, bytes)."""
    new: dict[str, bytes] = {}
    old = None if isinstance(ask, KvDelete | KvMultiSet) else space.values.get(keys_of(ask)[0])
    match ask:
        case KvSet():
            new = {ask.key: ask.value}
        case KvMultiSet():
            if len(ask.keys) != len(ask.values):
                raise NoError("MALFORMED")
            new = dict(zip(ask.keys, ask.values, strict=True))
        case KvAppend():
            new = {ask.key: (old or b"") + ask.value}
        case KvAdd():
            new = {ask.key: str(_sum(old, ask.delta)).encode()}
        case KvCas():
            if not _as_expected(space, ask):
                return ("swapped", False, old, space.changed.get(ask.key, 0))
            new = {ask.key: ask.value}
        case KvDelete():
            there = [key for key in dict.fromkeys(ask.keys) if key in space.values]
            delete(space, there)
            return ("number", len(there), space.changes)
        case _:
            raise TypeError(ask)
    _check_room(spaces, space, new, limits)
    space.changes += 1
    for key, value in new.items():
        space.values[key], space.changed[key] = value, space.changes
    return _written(space, ask, new)


def _as_expected(space: Space, ask: KvCas) -> bool:
    if ask.revision is not None:
        return ask.revision == space.changed.get(ask.key, 0)
    return ask.expected == space.values.get(ask.key)


def _written(space: Space, ask: AnyRequest, new: dict[str, bytes]) -> Told:
    match ask:
        case KvAdd():
            return ("number", int(new[ask.key]), space.changes)
        case KvAppend():
            return ("number", len(new[ask.key]), space.changes)
        case KvCas():
            return ("swapped", True, ask.value, space.changes)
        case _:
            return ("done", space.changes)


def delete(space: Space, there: list[str]) -> None:
    """One change, if there is anything to delete."""
    if there:
        space.changes += 1
        for key in there:
            del space.values[key], space.changed[key]


def _sum(old: bytes | None, delta: int) -> int:
    text = "0" if old is None else old.decode("latin-1")
    digits = text.removeprefix("-")
    if not digits or len(digits) > 19 or any(c not in "0123456789" for c in digits):
        raise NoError("NOT_A_NUMBER")
    total = int(text) + delta
    if not -(2**63) <= total < 2**63:
        raise NoError("NOT_A_NUMBER")
    return total


def _check_room(
    spaces: list[Space], space: Space, new: dict[str, bytes], limits: tuple[int, int]
) -> None:
    """What grows must stay within its limit; what does not grow may stay beyond it."""
    after = {**space.values, **new}
    keys = len(after) - len(space.values)
    held = sum(len(k.encode()) + len(v) for k, v in after.items()) - space.bytes_held
    if keys > 0 and sum(len(s.values) for s in spaces) + keys > limits[0]:
        raise NoError("LIMIT_EXCEEDED")
    if held > 0 and sum(s.bytes_held for s in spaces) + held > limits[1]:
        raise NoError("LIMIT_EXCEEDED")
