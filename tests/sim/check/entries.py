"""A recorded history: one JSON object a line, one line for each operation of a client process.

    {"client": str, "run": str, "op": str, "key": str|null, "args": {…}, "start_s": float,
     "end_s": float|null, "ok": bool|null, "result": {…}|null, "epoch": int|null,
     "generation": int|null, "rank": int|null, "world": int|null, "round": int|null}

`client` names one process, times are of one clock. `end_s` null: the outcome is not known, the operation
may have happened, may still happen, or never. `ok` false: it certainly did not happen (for a barrier: the
round failed; `result.error` names the error). An operation on a key with a generation is on that
generation's keys, one without on the run's; the epoch tells lives of a server that lost its memory apart.

| op | key | args | result |
|---|---|---|---|
| `put` | key | `value` | `revision` |
| `get` | key | – | `value` (null: not there), `revision` |
| `add` | key | `delta` | `value` (the sum), `revision` |
| `append` | key | `value` | `length`, `revision` |
| `cas` | key | `expected` (null: not there), `value`; or `revision`, `value` | `swapped`, `value`, `revision` |
| `delete` | key | – | `deleted` (0 or 1), `revision` |
| `join` | – | – | `digest` |
| `attach` | – | `agent`: the client that started this process | – |
| `barrier` | name | `payload`; `members` if not the whole world; `round` if one was asked for | `payloads`, or `error` |
| `id` | group | `minted` (fingerprint, if this rank did) | `id` (fingerprint), `attempt` |

What is left out of a result is not checked.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

Scope = tuple[str, int, int]
"""Run, epoch, generation; -1 for what there is none of."""

ON_KEYS = frozenset({"put", "get", "add", "append", "cas", "delete"})
OPS = ON_KEYS | {"join", "attach", "barrier", "id"}

_MAIN = {"put": "value", "add": "delta", "append": "value", "cas": "value"}
"""A bare value in `args` is this one."""


class FormatError(ValueError):
    """A line is no operation; says which and why."""


@dataclass(slots=True)
class Entry:
    """One operation. `end_s` is infinite while its outcome is not known."""

    client: str
    run: str
    op: str
    key: str
    args: dict[str, Any]
    start_s: float
    end_s: float
    ok: bool | None
    result: dict[str, Any]
    epoch: int | None = None
    generation: int | None = None
    rank: int | None = None
    world: int | None = None
    round: int | None = None
    where: str = ""
    """File and line."""
    text: str = field(default="", repr=False)
    """The line itself."""

    @property
    def known(self) -> bool:
        """It is known how it went."""
        return self.end_s < math.inf

    @property
    def scope(self) -> Scope:
        """Whose keys or barriers."""
        return self.run, _number(self.epoch), _number(self.generation)

    @property
    def fence(self) -> tuple[int, int] | None:
        """Epoch and generation, if it names both."""
        if self.epoch is None or self.generation is None:
            return None
        return self.epoch, self.generation

    def line(self) -> str:
        """As it stands in a history."""
        return self.text or json.dumps(self.row(), separators=(",", ":"))

    def row(self) -> dict[str, Any]:
        """The fields of its line."""
        return {
            "client": self.client, "run": self.run, "op": self.op, "key": self.key or None,
            "args": self.args, "start_s": self.start_s, "end_s": self.end_s if self.known else None,
            "ok": self.ok, "result": self.result or None, "epoch": self.epoch,
            "generation": self.generation, "rank": self.rank, "world": self.world,
            "round": self.round,
        }  # fmt: skip


def entry(row: dict[str, Any], where: str = "", text: str = "") -> Entry:
    """Make one of the fields of a line.

    Raises:
        FormatError: a field is missing or wrong.
    """
    try:
        op = row["op"]
        if op not in OPS:
            raise FormatError(f"{where}: {op!r} is no operation")
        end_s = row["end_s"]
        args, result = row.get("args"), row.get("result")
        return Entry(
            client=row["client"], run=row["run"], op=op, key=row.get("key") or "",
            args=_fields(args, _MAIN.get(op, "value")), start_s=float(row["start_s"]),
            end_s=math.inf if end_s is None else float(end_s), ok=row.get("ok"),
            result=_fields(result, "value"), epoch=row.get("epoch"),
            generation=row.get("generation"), rank=row.get("rank"), world=row.get("world"),
            round=row.get("round"), where=where, text=text,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{where}: {type(error).__name__} {error}") from None


def read(path: str) -> Iterator[Entry]:
    """The operations of a file.

    Raises:
        FormatError: a line is none.
    """
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            where, text = f"{path}:{number}", line.rstrip("\n")
            if not text:
                continue
            try:
                row = json.loads(text)
            except ValueError as error:
                raise FormatError(f"{where}: no JSON: {error}") from None
            yield entry(row, where, text)


def write(path: str, entries: Iterable[Entry]) -> None:
    """Store a history."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(each.row(), separators=(",", ":")) + "\n" for each in entries)


def _fields(given: Any, main: str) -> dict[str, Any]:
    if given is None:
        return {}
    return given if isinstance(given, dict) else {main: given}


def _number(value: int | None) -> int:
    return -1 if value is None else value
