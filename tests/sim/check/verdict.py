"""What the checkers found."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.sim.check.entries import Entry

LINES_SHOWN_MAX = 8


@dataclass(frozen=True)
class Violation:
    """A rule that a history breaks, and the lines that show it."""

    rule: str
    what: str
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        rows = [f"    {e.where} {e.line()}".rstrip() for e in self.entries[:LINES_SHOWN_MAX]]
        more = len(self.entries) - len(rows)
        if more > 0:
            rows.append(f"    and {more} more")
        return "\n".join([f"{self.rule}: {self.what}", *rows])


@dataclass
class Verdict:
    """Of a history."""

    ops: int = 0
    keys: int = 0
    undecided: list[str] = field(default_factory=list)
    """Keys whose search ran out of time, or out of room."""
    undecided_ops: int = 0
    violations: list[Violation] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Everything was decided, and nothing is wrong."""
        return not self.violations and not self.undecided

    def broken(self, rule: str, what: str, entries: Sequence[Entry] | Iterable[Entry]) -> None:
        """Note a violation."""
        self.violations.append(Violation(rule, what, tuple(entries)))

    def summary(self) -> str:
        """One line."""
        return (
            f"{self.ops} operations checked, {self.keys} keys, {len(self.undecided)} keys undecided "
            f"({self.undecided_ops} operations), {len(self.violations)} violations"
        )
