"""What one client process did, on disk before it is done: a SIGKILL may come between any two steps.

An operation is begun on one line and ended on another one, each written with one system call. `merged`
makes a history of the files of many processes: what was begun and not ended has an unknown outcome.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.sim.check.entries import ON_KEYS

Row = dict[str, Any]


class Recorder:
    """Of one process.

    Args:
        path: its file, which is only appended to.
        client: its name in the history.
        run: of all its operations.
    """

    def __init__(self, path: Path, client: str, run: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._client, self._run, self._count = client, run, 0

    def begin(self, op: str, key: str | None, args: Row, **place: Any) -> int:
        """About to do it; returns the number to end it with."""
        self._count += 1
        row = {
            "client": self._client, "run": self._run, "op": op, "key": key, "args": args,
            "start_s": time.monotonic(), **place,
        }  # fmt: skip
        self._write("begin", row)
        return self._count

    def note(self, number: int, args: Row) -> None:
        """Something about an operation that came up while it was done."""
        self._write("note", args, number)

    def end(self, number: int, ok: bool, result: Row | None = None, **more: Any) -> None:
        """It is known how it went."""
        row = {"ok": ok, "end_s": time.monotonic(), "result": result or {}, **more}
        self._write("end", row, number)

    def _write(self, what: str, row: Row, number: int | None = None) -> None:
        line = json.dumps([self._count if number is None else number, what, row])
        os.write(self._file, line.encode() + b"\n")


def merged(paths: Iterable[Path]) -> Iterator[Row]:
    """Lines of a history, of one process after the other."""
    rows = [row for path in paths for row in _operations(path)]
    epochs: dict[str, set[int]] = {}
    for row in rows:
        if row["end_s"] is not None and row["epoch"] is not None:
            epochs.setdefault(row["run"], set()).add(row["epoch"])
    for row in rows:
        connected = row.pop("connected", True)
        yield row
        if row["end_s"] is None and not connected and row["generation"] is None:
            # Asked without a connection: it may have been sent to a server that came later.
            later = (e for e in epochs.get(row["run"], ()) if e > (row["epoch"] or 0))
            for epoch in later if row["op"] in ON_KEYS else ():
                yield {**row, "epoch": epoch}


def _operations(path: Path) -> list[Row]:
    found: dict[int, Row] = {}
    for line in path.read_bytes().split(b"\n")[:-1]:  # behind the last end of line nothing is whole
        number, what, fields = json.loads(line)
        if what == "begin":
            empty = dict.fromkeys(("ok", "end_s", "result", "epoch", "generation", "rank", "world",
                                   "round"))  # fmt: skip
            found[number] = {**empty, **fields}
        elif what == "note":
            found[number]["args"].update(fields)
        else:
            found[number].update(fields)
    return list(found.values())
