"""Unique ids and a server that resumes: none serves twice, and who asks again learns how an attempt ended."""

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import NcclIds
from rdzv_server.core.durable import restoring
from rdzv_server.core.nccl import seen
from rdzv_server.core.nccl.unique_id import digest
from tests.ids import Process, error, processes, publish, unique_id
from tests.lab import EPOCH, Lab, Node


def back(lab: Lab, nodes: list[Node]) -> list[Process]:
    """All nodes come back to the server that was started again."""
    lab.restart()
    for node in nodes:
        node.resume()
    return [Process(lab, node.wire, node.live_fence(), node.rank) for node in nodes]


def test_s18_an_id_is_refused_for_a_second_communicator_after_a_restart_too() -> None:
    lab = Lab()
    nodes, before = processes(lab)
    raw = publish(before)
    for process in before:
        process.ready()
    minter, _ = back(lab, nodes)
    assert isinstance(minter.get(), NcclIds)
    refused = error(minter.put(raw, attempt=1), ErrorCode.DUPLICATE_ID)
    assert "communicator 'dp'" in refused.message


def test_s18_an_id_is_refused_after_a_repair_that_began_a_new_epoch() -> None:
    lab = Lab()
    _, before = processes(lab)
    raw = publish(before)
    changes = restoring.in_new_epoch(lab.stored, EPOCH + 1)
    kept = {key: record for key, record in {**lab.stored, **changes}.items() if record is not None}
    lab.stored.clear()
    lab.stored.update(kept)
    lab.restart()
    assert lab.core.tables.ids_seen.find(digest(raw)) is not None


def test_a_put_that_is_repeated_after_a_restart_learns_that_the_attempt_has_failed() -> None:
    lab = Lab()
    nodes, (minter, other) = processes(lab)
    assert isinstance(minter.get(), NcclIds)
    assert other.get() is None
    again, _ = back(lab, nodes)
    refused = error(again.put(unique_id(1)), ErrorCode.ID_FAILED)
    assert "restarted" in refused.message


def test_the_oldest_fingerprint_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab()
    nodes, before = processes(lab)
    monkeypatch.setattr(seen, "IDS_SEEN_MAX", 1)
    first = publish(before)
    for process in before:
        process.ready()
    second = publish(before, 2, attempt=1)
    back(lab, nodes)
    assert lab.core.tables.ids_seen.find(digest(first)) is None
    assert lab.core.tables.ids_seen.find(digest(second)) is not None
