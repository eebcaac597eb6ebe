"""Buckets of tokens; those of a session are in `test_turns`."""

from rdzv_server.shell.bucket import Bucket


def test_a_rate_gives_a_burst_and_then_so_many_a_second() -> None:
    rate = Bucket(2.0, 3, 100.0)
    assert [rate.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert not rate.take(100.4)
    assert rate.take(100.6)
    assert [rate.take(200.0) for _ in range(4)] == [True, True, True, False]
