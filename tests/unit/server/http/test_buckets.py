"""Histograms."""

from rdzv_server.http.buckets import COMMIT_S, LAG_S, Buckets


def test_a_bound_belongs_to_its_bucket_and_the_last_one_takes_the_rest() -> None:
    seen = Buckets((0.1, 1.0))
    for duration_s in (0.05, 0.1, 0.11, 1.0, 1.01, 99):
        seen.observe(duration_s)
    assert seen.counts == [2, 2, 2]
    assert seen.cumulative() == [("0.1", 2), ("1.0", 4), ("+Inf", 6)]
    assert round(seen.sum_s, 6) == 101.27


def test_a_copy_does_not_change_any_more() -> None:
    seen = Buckets((0.1,))
    seen.observe(1)
    copy = seen.copy()
    seen.observe(1)
    assert (copy.counts, copy.sum_s) == ([0, 1], 1)
    assert (seen.counts, seen.sum_s) == ([0, 2], 2)


def test_bounds_rise() -> None:
    for bounds in (LAG_S, COMMIT_S):
        assert list(bounds) == sorted(set(bounds))
