"""What the core counts since the start, for metrics. Nothing reads it but those."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Totals:
    """Only ever grows."""

    generations_formed: int = 0
    generations_ended: Counter[str] = field(default_factory=Counter)
    """By kind (`Ended.kind`)."""
    rounds_released: int = 0
    rounds_failed: int = 0
