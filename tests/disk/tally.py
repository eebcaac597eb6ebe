"""Counting what came of each point, and judging it."""

from dataclasses import dataclass, field
from pathlib import Path

from rdzv_server.storage.base import StorageError
from rdzv_server.storage.sqlite import SqliteStore
from tests.disk import script

NAME = "rdzv.db"
FILES = (NAME, f"{NAME}-wal", f"{NAME}-acked")


@dataclass
class Tally:
    """Of one campaign.

    Args:
        name: of it.
        tried: points.
        whole: it started, with a state that holds all that was acknowledged.
        refused: it did not start, and said which file is why.
        lost: it started without a word, with less than was acknowledged.
        wrong: anything else: a state that never was, an exception, a refusal that names nothing.
    """

    name: str
    tried: int = 0
    whole: int = 0
    refused: int = 0
    lost: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def bad(self) -> int:
        return self.lost + self.wrong

    def add(self, other: "Tally") -> None:
        for name in ("tried", "whole", "refused", "lost", "wrong"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.examples += other.examples

    def note(self, what: str, text: str) -> None:
        self.examples.append(f"{what}: {text}")

    def line(self, seconds: float) -> str:
        return (
            f"{self.name:<44} {self.tried:>7} points  {self.whole:>7} whole  {self.refused:>7} refused  "
            f"{self.lost} lost  {self.wrong} wrong  {seconds:6.1f} s"
        )


def judge(
    tally: Tally,
    what: str,
    directory: Path,
    acked: int,
    last: int,
    *,
    may_refuse: bool,
    go_on: bool = False,
) -> None:
    """Start on files and look at the state.

    Args:
        tally: counts it.
        what: names the point.
        directory: holds the files.
        acked: the last commit that was acknowledged.
        last: the last one that was begun.
        may_refuse: whether a refusal is an answer; after mere crashes it is none.
        go_on: also commit once more, and start again.
    """
    tally.tried += 1
    store: SqliteStore | None = None
    try:
        store = SqliteStore(directory / NAME)
        records = store.load()
        number = script.number_of(records)
        if number is not None and go_on:
            store.commit(script.changes(number + 1))
            store.close()
            store = SqliteStore(directory / NAME)
            again = script.number_of(store.load())
            if again != number + 1:
                tally.wrong += 1
                tally.note(what, f"started at {number}, committed, and was at {again}")
                return
    except StorageError as error:
        good = may_refuse and NAME in str(error) and "\n" not in str(error)
        tally.refused += good
        tally.wrong += not good
        if not good:
            tally.note(what, f"refused: {error}")
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, it is counted and shown
        tally.wrong += 1
        tally.note(what, f"{type(error).__name__}: {error}")
        return
    finally:
        if store is not None:
            store.close()
    if number is None or number > last:
        tally.wrong += 1
        tally.note(what, f"a state that never was ({number}, {len(records)} records)")
    elif number < acked:
        tally.lost += 1
        tally.note(what, f"{acked - number} commits lost, at {number}")
    else:
        tally.whole += 1
