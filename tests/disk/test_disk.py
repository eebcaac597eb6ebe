"""L7, a sample of each campaign; `make disk` tries every point."""

import pytest

from tests.disk import __main__ as disk
from tests.disk import full, images, kills, migration, traced
from tests.disk.tally import Tally

PROCESSES = 2


def all_good(*tallies: Tally) -> None:
    for tally in tallies:
        assert tally.tried
        assert not tally.bad, tally.examples[:5]


def need(missing: str | None) -> None:
    if missing is not None:
        pytest.skip(missing)


def test_l7_s27_files_cut_anywhere_or_with_a_flipped_bit_lose_nothing_without_a_word() -> None:
    tallies = list(images.campaign(disk.QUICK_BYTES, processes=1))
    all_good(*tallies)
    assert len(tallies) == 11
    torn = tallies[0]
    assert torn.whole == torn.tried


@pytest.mark.parametrize("name", ["a new database", "going on after a crash", "a repair"])
def test_l7_s26_killed_at_a_system_call_everything_acknowledged_is_there(name: str) -> None:
    need(traced.available())
    all_good(kills.killed(name, disk.QUICK_CALLS, PROCESSES))


def test_l7_s26_a_migration_that_is_killed_leaves_the_old_state_or_the_new_one() -> None:
    need(traced.available())
    tally = migration.killed(3, PROCESSES)
    all_good(tally)
    assert tally.whole, "some were killed before"
    assert tally.refused, "and some after"


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("error", list(kills.FAULTS))
def test_l7_s28_a_fault_of_the_disk_is_no_acknowledgement(error: str, lasting: bool) -> None:
    need(traced.available())
    name = "going on after a crash"
    all_good(kills.faulty(name, error, disk.QUICK_CALLS, PROCESSES, lasting=lasting))


def test_l7_s28_short_writes_are_no_acknowledgement() -> None:
    all_good(*full.short(4))


def test_l7_s28_a_full_disk_that_has_room_again_needs_no_restart() -> None:
    need(full.available())
    all_good(*full.campaign(4))
