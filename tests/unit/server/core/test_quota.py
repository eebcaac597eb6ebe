"""What several key spaces of one owner hold together."""

import pytest

from rdzv_proto import limits
from rdzv_server.core.quota import Quota
from tests.lab import Lab, policy


@pytest.mark.parametrize(
    ("grown_bytes", "new_keys", "allowed"),
    [(10, 2, True), (11, 0, False), (0, 3, False), (-5, 2, True), (10, -1, True), (0, 0, True)],
)
def test_a_change_fits_or_does_not(grown_bytes: int, new_keys: int, allowed: bool) -> None:
    quota = Quota(bytes_max=20, keys_max=5)
    quota.take(10, 3)
    assert quota.allows(grown_bytes, new_keys) is allowed
    assert (quota.bytes_used, quota.keys_used) == (10, 3), "asking takes nothing"


def test_giving_back_makes_room_again() -> None:
    quota = Quota(bytes_max=20, keys_max=5)
    quota.take(20, 5)
    assert not quota.allows(1, 1)
    quota.take(-20, -5)
    assert quota.allows(20, 5)


def test_shrinking_is_always_allowed_even_above_the_limit() -> None:
    quota = Quota(bytes_max=10, keys_max=1)
    quota.take(12, 2)
    assert quota.allows(-1, 0)
    assert not quota.allows(1, 0)


def test_giving_back_what_was_never_taken_is_a_fault() -> None:
    with pytest.raises(AssertionError):
        Quota(10, 10).take(-1, 0)


def test_a_run_has_one_quota_with_the_limits_of_the_protocol() -> None:
    lab = Lab()
    lab.node("a", rules=policy(1)).join()
    quota = lab.run().quota
    assert (quota.bytes_max, quota.keys_max) == (
        limits.KV_BYTES_PER_RUN_MAX,
        limits.KV_KEYS_PER_RUN_MAX,
    )
