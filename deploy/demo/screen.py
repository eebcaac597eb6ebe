"""What the demo prints."""

import os
import shlex
import sys
import textwrap
import time
from collections.abc import Sequence

WIDTH = 100
_INDENT = 22  # time and name

BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"


class Screen:
    """Lines with the seconds since the demo began.

    Attributes:
        began: monotonic seconds.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._colour = (
            sys.stdout.isatty()
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM", "dumb") != "dumb"
        )

    def paint(self, text: str, colour: str) -> str:
        """Coloured on a terminal, unless NO_COLOR is set."""
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour and colour else text

    def text(self, text: str = "", colour: str = "") -> None:
        """As it is."""
        print(self.paint(text, colour), flush=True)

    def say(self, who: str, text: str, colour: str = "", at: float | None = None) -> None:
        """One thing that happened, and when."""
        passed_s = (time.monotonic() if at is None else at) - self.began
        first, *more = textwrap.wrap(text, WIDTH - _INDENT, break_on_hyphens=False)
        head = f"{self.paint(f'{passed_s:6.1f} s', DIM)}  {self.paint(f'{who:10}', BOLD)}  "
        self.text(head + self.paint(first, colour))
        for line in more:
            self.text(" " * _INDENT + self.paint(line, colour))

    def command(self, who: str, argv: Sequence[str]) -> None:
        """A command as one would type it, broken between options."""
        lines = [f"$ {argv[0]}"]
        for word in argv[1:]:
            word = shlex.quote(word)
            if len(lines[-1]) + len(word) > WIDTH - _INDENT - 3:
                lines[-1] += " \\"
                lines.append("   ")
            lines[-1] += f" {word}"
        passed = self.paint(f"{time.monotonic() - self.began:6.1f} s", DIM)
        self.text(f"{passed}  {self.paint(f'{who:10}', BOLD)}  {self.paint(lines[0], CYAN)}")
        for line in lines[1:]:
            self.text(" " * _INDENT + self.paint(line, CYAN))

    def paragraph(self, text: str) -> None:
        """Plain sentences."""
        for line in textwrap.wrap(text, WIDTH - 2, break_on_hyphens=False):
            self.text(f"  {line}")

    def quote(self, line: str) -> None:
        """What another program printed."""
        lines = [line]
        if "  " not in line:  # a table stays as it is
            width = WIDTH - _INDENT
            lines = textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)
        for part in lines or [""]:
            self.text(f"{' ' * _INDENT}{self.paint(part, DIM)}".rstrip())

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as they need to be; numbers, the second and third, to the right."""
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        for number, row in enumerate((head, *rows)):
            cells = [
                cell.rjust(width) if i in (1, 2) else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            self.text("  " + "  ".join(cells).rstrip(), "" if number else BOLD)
