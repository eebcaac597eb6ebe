"""Sentences about communicators."""

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import NcclIds
from rdzv_server.core.nccl import words as nccl_words
from tests.ids import error, processes, workers
from tests.lab import Lab


@pytest.mark.parametrize(
    ("code", "shown"), [(22809, "2.28.9"), (23203, "2.32.3"), (2804, "2.8.4"), (21003, "2.10.3")]
)
def test_versions_as_nccl_numbers_them(code: int, shown: str) -> None:
    assert nccl_words.version(code) == shown


def test_all_minters_that_are_missing_are_named() -> None:
    lab = Lab()
    _, all_of = processes(lab, 4)
    all_of[2].get(4, n_ids=2)
    refused = error(all_of[3].get(4, n_ids=2, timeout_s=0), ErrorCode.ID_TIMEOUT)
    assert "rank 0 (n0), which mints, has not asked yet" in refused.message
    assert "rank 2 (n2) was told to mint 0.0 s ago and has not; it is alive" in refused.message


def test_no_process_is_guessed_where_the_ranks_are_numbered_otherwise() -> None:
    lab = Lab()
    nodes, _ = processes(lab, 3)
    _, b, c = workers(lab, nodes)
    b.get(2, rank=0, minter=1)
    refused = error(b.get(2, rank=0, minter=1, timeout_s=0), ErrorCode.ID_TIMEOUT)
    assert "rank 1, which mints, has not asked yet" in refused.message
    assert c.get(2, rank=1, minter=1) == NcclIds(attempt=0, mint=[0])


def test_a_closed_connection_is_told() -> None:
    lab = Lab()
    nodes, _ = processes(lab)
    a, b = workers(lab, nodes)
    a.get()
    lab.lose(a.wire)
    refused = error(b.get(timeout_s=0), ErrorCode.ID_TIMEOUT)
    assert "its connection is closed, last heard" in refused.message


def test_communicators_in_the_making_are_shown_first() -> None:
    lab = Lab()
    _, (a, b) = processes(lab)
    for name in ("one", "two", "three"):
        a.get(group=name)
        b.get(group=name)
    shown = nccl_words.show(lab.core.tables, lab.run())
    assert [c.name for c in shown] == ["three", "two", "one"]
    assert {c.via for c in shown} == {"broker"}
