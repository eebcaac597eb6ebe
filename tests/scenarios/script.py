"""Scenario files: command lines, `----`, and below it what is told to whom. As text, nothing else.

A file begins with lines of `#`: the story. Blocks follow, separated by empty lines. Commands may be several
lines; what is expected ends at the next empty line.
"""

from dataclasses import dataclass, field
from pathlib import Path

RULE = "----"
FOLDER = Path(__file__).parent


@dataclass
class Block:
    """Commands and what comes of them."""

    commands: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)


def parse(text: str) -> tuple[list[str], list[Block]]:
    """The story's lines and the blocks.

    Raises:
        ValueError: a block without commands or without its rule.
    """
    story: list[str] = []
    blocks: list[Block] = []
    for chunk in text.strip().split("\n\n"):
        lines = [line.rstrip() for line in chunk.splitlines()]
        if all(line.startswith("#") for line in lines):
            if blocks:
                raise ValueError(f"a comment after the first block: {lines[0]!r}")
            story += lines
            continue
        if RULE not in lines or lines[0] == RULE:
            raise ValueError(f"no commands, or no {RULE!r} below them: {lines[0]!r}")
        at = lines.index(RULE)
        blocks.append(Block(lines[:at], lines[at + 1 :]))
    return story, blocks


def render(story: list[str], blocks: list[Block]) -> str:
    """The file again."""
    parts = ["\n".join(story)] + ["\n".join([*b.commands, RULE, *b.expected]) for b in blocks]
    return "\n\n".join(parts) + "\n"


def files() -> list[Path]:
    """All scenarios."""
    return sorted(FOLDER.glob("*.txt"))
