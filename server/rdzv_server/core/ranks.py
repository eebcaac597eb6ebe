"""Who takes part and with which group rank: pure functions over the nodes that have joined.

Rules (DESIGN 6.4): hints or natural order of names decide the first world, history the later ones.
Survivors keep their order. Rank 0 never goes to a newcomer while a survivor is there.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

_DIGITS = re.compile(r"(\d+)")


class Candidate(NamedTuple):
    """A node that has joined and is alive."""

    node_id: str
    name: str
    order: int
    """Arrival in the run; smaller came earlier."""
    seat: int | None = None
    """Group rank in the run's last generation; None for newcomers and standbys."""
    hint: int | None = None


class Seat(NamedTuple):
    """One place of the last generation, so that whoever comes back can be put there again."""

    node_id: str
    name: str


@lru_cache(maxsize=32_768)
def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which node7 comes before node66."""
    return tuple(
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in _DIGITS.split(text)
        if part
    )


def choose(candidates: Sequence[Candidate], size: int) -> list[Candidate]:
    """The `size` candidates that get a place: survivors by rank first, then first come."""
    ranked = sorted(
        candidates,
        key=lambda c: (c.seat is None, c.order if c.seat is None else c.seat),
    )
    return ranked[:size]


def arrange(chosen: Sequence[Candidate], last: Sequence[Seat]) -> list[Candidate]:
    """The chosen candidates in the order of their group ranks.

    Args:
        chosen: who takes part.
        last: places of the run's last generation by group rank; empty before the first.
    """
    if all(c.hint is not None for c in chosen) or not any(c.seat is not None for c in chosen):
        return sorted(chosen, key=_first_world_key)
    survivors = sorted((c for c in chosen if c.seat is not None), key=lambda c: c.seat or 0)
    places: dict[int, Candidate] = {c.seat or 0: c for c in survivors}
    lowest = survivors[0]
    del places[lowest.seat or 0]
    places[0] = lowest
    newcomers = sorted((c for c in chosen if c.seat is None), key=lambda c: c.order)
    _fill(places, newcomers, last)
    return [places[place] for place in sorted(places)]


def _first_world_key(c: Candidate) -> tuple[object, ...]:
    # A hint is a wished order, not a number: hinted nodes first, then the natural order of names.
    return (c.hint is None, c.hint or 0, natural_key(c.name), natural_key(c.node_id))


def _fill(places: dict[int, Candidate], newcomers: list[Candidate], last: Sequence[Seat]) -> None:
    """Give vacated places to newcomers: first who sat there, then its host, then first come."""
    vacant = [place for place in range(len(last)) if place not in places]
    waiting = list(newcomers)
    for same in (
        lambda c, seat: c.node_id == seat.node_id,
        lambda c, seat: c.name == seat.name,
        lambda c, seat: True,
    ):
        for place in list(vacant):
            found = next((c for c in waiting if same(c, last[place])), None)
            if found is not None:
                places[place] = found
                waiting.remove(found)
                vacant.remove(place)
    behind = max(len(last), max(places) + 1)
    for place, candidate in enumerate(waiting, start=behind):
        places[place] = candidate
