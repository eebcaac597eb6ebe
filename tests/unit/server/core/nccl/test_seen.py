"""Fingerprints of ids that were taken."""

import pytest

from rdzv_server.core.durable.stored import StoredSeen
from rdzv_server.core.nccl import seen
from rdzv_server.core.nccl.seen import SeenIds


def one(number: int) -> StoredSeen:
    return StoredSeen(bytes([number]) * 32, "run", f"communicator {number}")


def test_what_was_taken_is_found_and_nothing_else() -> None:
    ids = SeenIds()
    assert ids.add(one(1)) == [1]
    assert ids.add(one(2)) == [2]
    assert ids.find(one(2).digest) == one(2)
    assert ids.find(one(3).digest) is None


def test_the_oldest_makes_way_and_its_record_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "IDS_SEEN_MAX", 2)
    ids = SeenIds()
    assert [ids.add(one(n)) for n in (1, 2, 3)] == [[1], [2], [3, 1]]
    assert ids.find(one(1).digest) is None
    assert list(ids.by_number) == [2, 3]


def test_numbers_go_on_behind_those_that_were_stored() -> None:
    ids = SeenIds()
    ids.enter(7, one(1))
    assert ids.add(one(2)) == [8]
