"""Counters as the C library reads them."""

import pytest

from rdzv_proto.counters import counter, wrapped


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (b"0", 0), (b"12", 12), (b"-5", -5), (b"+5", 5), (b" 5", 5), (b"\t\n\v\f\r 7", 7), (b"-3 ", -3),
        (b"12abc", 12), (b"0x10", 0), (b"1_0", 1), (b"000000000000000000000000000000000000000042", 42),
        (b"9223372036854775807", (1 << 63) - 1), (b"-9223372036854775808", -(1 << 63)),
        (b"9223372036854775808", None), (b"99999999999999999999", None), (b"9" * 100, None),
        (b"", None), (b"abc", None), (b"-", None), (b"+-5", None), (b"- 5", None), (b" ", None),
        (b"\xd9\xa3", None), (b" " * 4096 + b"1", None),
    ],
)  # fmt: skip
def test_counters_are_read_as_the_c_library_does(value: bytes, number: int | None) -> None:
    assert counter(value) == number
    assert counter(bytearray(value)) == number


@pytest.mark.parametrize(
    ("number", "result"),
    [(0, 0), (1 << 63, -(1 << 63)), (-(1 << 63) - 1, (1 << 63) - 1), ((1 << 64) + 5, 5), (-7, -7)],
)
def test_sums_wrap_as_the_c_library_s_do(number: int, result: int) -> None:
    assert wrapped(number) == result
