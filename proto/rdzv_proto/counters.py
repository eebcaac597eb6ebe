"""Numbers in values, as torch's C++ store reads and adds them."""

import re

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

_COUNTER = re.compile(rb"[ \t\n\v\f\r]*([+-]?[0-9]+)")
_COUNTER_BYTES_MAX = 4096
"""So much of a counter is looked at. Reading megabytes of blanks or digits for each addition would
hold up the loop, and a number that begins later is none."""

_DIGITS_MAX = 32
"""More digits than this, leading zeros not counted, are outside 64 bits."""


def counter(value: bytes | bytearray) -> int | None:
    """Read a counter as C++ `stoll` does: leading blanks, a sign, the longest run of digits.

    Returns:
        None if there are no digits, or if the number does not fit 64 bits.
    """
    found = _COUNTER.match(value, 0, _COUNTER_BYTES_MAX)
    if found is None:
        return None
    digits = found[1].lstrip(b"+-").lstrip(b"0")
    if len(digits) > _DIGITS_MAX:
        return None
    result = int(digits or b"0") * (-1 if found[1].startswith(b"-") else 1)
    return result if INT64_MIN <= result <= INT64_MAX else None


def wrapped(value: int) -> int:
    """Overflow as the C++ server has it: modulo 2^64."""
    return (value - INT64_MIN) % (1 << 64) + INT64_MIN
