"""What a mutant is."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.sim.world import Mode


class Patch:
    """Replaces attributes, and puts them back."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def __call__(self, owner: Any, name: str, new: Any) -> None:
        """Replace one attribute of a module or class."""
        self._undo.append((owner, name, vars(owner)[name]))
        setattr(owner, name, new)

    def undo(self) -> None:
        """Everything is as it was."""
        while self._undo:
            setattr(*self._undo.pop())


Breaks = Callable[[Patch], None]


@dataclass(frozen=True)
class Mutant:
    """One fault."""

    name: str
    rule: str
    """Which invariant it inverts."""
    says: str
    """What the server (or the client) does wrong."""
    mode: Mode
    """In which the simulator looks for it."""
    breaks: Breaks

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The product is broken meanwhile."""
        patch = Patch()
        try:
            self.breaks(patch)
            yield
        finally:
            patch.undo()


class Collection(list[Mutant]):
    """Mutants of one module."""

    def mutant(self, rule: str, mode: Mode = Mode.STEADY) -> Callable[[Breaks], Breaks]:
        """Add a function: its name is the mutant's, its docstring what it does wrong."""

        def add(breaks: Breaks) -> Breaks:
            name = breaks.__name__.strip("_")
            self.append(Mutant(name, rule, (breaks.__doc__ or "").strip(), mode, breaks))
            return breaks

        return add
