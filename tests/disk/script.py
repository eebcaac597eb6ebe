"""What is written in all campaigns: commit n is a function of n, so the state after it is known."""

import random
from functools import lru_cache

KEYS = [b"%s/%d" % (kind, i) for kind in (b"run", b"session", b"kv\0node") for i in range(5)]


def changes(number: int) -> dict[bytes, bytes | None]:
    """Of commit `number`: some records new, some replaced, some gone; small, empty, and of several pages."""
    rng = random.Random(number)
    found: dict[bytes, bytes | None] = {}
    for key in rng.sample(KEYS, rng.randint(1, 4)):
        length = rng.choice((0, 1, 30, 200, 200, 700, 9000 if number % 5 == 0 else 400))
        found[key] = None if rng.random() < 0.2 else rng.randbytes(length)
    # Without this, commits that only remove what is not there would be the same state.
    found[b"epoch"] = b"%d" % number
    return found


@lru_cache(maxsize=1000)
def state(number: int) -> dict[bytes, bytes]:
    """After commits 1 to `number`."""
    if number == 0:
        return {}
    records = dict(state(number - 1))
    apply(records, changes(number))
    return records


def apply(records: dict[bytes, bytes], wanted: dict[bytes, bytes | None]) -> None:
    for key, value in wanted.items():
        if value is None:
            records.pop(key, None)
        else:
            records[key] = value


def number_of(records: dict[bytes, bytes]) -> int | None:
    """After which commit this is the state; None: after none."""
    number = int(records.get(b"epoch", b"0") or b"0")
    return number if 0 <= number < 500 and records == state(number) else None
