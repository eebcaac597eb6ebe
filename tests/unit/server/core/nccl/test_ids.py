"""The records of one generation's unique ids, as a data structure."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_server.core.nccl.ids import ATTEMPTS_KEPT, Ids, Rank, Record, Shape, State, Wait
from rdzv_server.core.refusal import Refused
from tests import ids as made_up


def record(
    ids: Ids, group: str = "dp", attempt: int = 0, nranks: int = 2, n_ids: int = 1
) -> Record:
    shape = Shape.of(nranks, n_ids, None)
    return ids.open(Record(group, attempt, 0, shape, "rank 0", 0.0, 300.0))


def rank(session_id: int, host: str = "10.0.0.1") -> Rank:
    return Rank(session_id, f"node {session_id}", host, 0.0)


def published(ids: Ids, number: int = 1, **more: Any) -> Record:
    one = record(ids, **more)
    assert ids.put(one, 0, made_up.unique_id(number), 1.0)
    return one


@pytest.mark.parametrize(
    ("nranks", "n_ids", "leaders"),
    [
        (5, 2, [0, 3]),
        (10, 3, [0, 4, 7]),
        (8, 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        (64, 4, [0, 16, 32, 48]),
        (1, 1, [0]),
    ],
)
def test_the_first_rank_of_each_block_mints(nranks: int, n_ids: int, leaders: list[int]) -> None:
    shape = Shape.of(nranks, n_ids, None)
    assert [shape.leader(i) for i in range(n_ids)] == leaders


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_each_id_is_minted_by_exactly_one_rank(size: tuple[int, int]) -> None:
    shape = Shape.of(*size, None)
    minted = [(i, r) for r in range(size[0]) for i in shape.slots(r)]
    assert [i for i, _ in minted] == list(range(size[1]))
    assert all(shape.leader(i) == r for i, r in minted)


def test_a_named_minter_mints_all_ids() -> None:
    shape = Shape.of(8, 3, 5)
    assert shape.slots(5) == [0, 1, 2]
    assert [shape.slots(r) for r in (0, 3, 6)] == [[], [], []]


def test_naming_rank_0_as_the_minter_of_the_only_id_says_nothing_new() -> None:
    assert Shape.of(4, 1, 0) == Shape.of(4, 1, None)
    assert Shape.of(4, 2, 0) != Shape.of(4, 2, None)


@pytest.mark.parametrize(("nranks", "n_ids", "minter"), [(2, 3, None), (2, 1, 2)])
def test_numbers_that_no_communicator_can_have_are_refused(
    nranks: int, n_ids: int, minter: int | None
) -> None:
    with pytest.raises(Refused) as caught:
        Shape.of(nranks, n_ids, minter)
    assert caught.value.code is ErrorCode.MALFORMED


def test_s19_published_when_the_last_id_is_there() -> None:
    ids = Ids()
    one = record(ids, nranks=4, n_ids=2)
    assert not ids.put(one, 1, made_up.unique_id(1), 1.0)
    assert one.to_mint == [0]
    assert ids.put(one, 0, made_up.unique_id(2), 2.0)
    assert one.state is State.PUBLISHED


def test_s22_ids_are_gone_when_the_attempt_is_over_and_never_in_a_repr() -> None:
    ids = Ids()
    one = published(ids)
    raw = made_up.unique_id()
    assert repr(raw)[2:12] not in repr(one) + repr(ids)
    ids.close(one, State.SPENT, 3.0)
    assert one.ids == []
    assert ids.active() == []
    assert ids.find("dp", 0) is one


def test_a_rank_of_another_process_is_taken() -> None:
    ids = Ids()
    one = record(ids)
    ids.enter(one, 0, rank(1))
    assert ids.enter(one, 0, rank(1)) is one.ranks[0]
    with pytest.raises(Refused) as caught:
        ids.enter(one, 0, rank(2))
    assert caught.value.code is ErrorCode.DUPLICATE_RANK
    assert "node 1" in caught.value.message
    assert "node 2" in caught.value.message


def test_the_default_attempt_counts_what_a_rank_has_finished() -> None:
    ids = Ids()
    one = record(ids)
    assert ids.attempt_of("dp", 0) == 0
    ids.finish(one, 0)
    assert ids.attempt_of("dp", 0) == 1
    assert ids.attempt_of("dp", 1) == 0
    assert ids.attempt_of("tp", 0) == 0


def test_a_place_of_a_lost_process_can_be_taken_again() -> None:
    ids = Ids()
    one = record(ids, nranks=3)
    ids.enter(one, 2, rank(7, "10.0.0.7"))
    ids.release(one, 7, "its connection closed")
    assert one.gone == {2: "node 7: its connection closed"}
    assert one.hosts == set()
    ids.enter(one, 2, rank(8))
    assert one.gone == {}


def test_all_ranks_ready() -> None:
    ids = Ids()
    one = published(ids)
    for number in (0, 1):
        ids.enter(one, number, rank(number))
    assert not ids.ready(one, 0)
    assert not ids.ready(one, 0)
    assert ids.ready(one, 1)


def test_who_lacks_what_is_counted_and_the_first_are_named() -> None:
    ids = Ids()
    one = record(ids, nranks=1000)
    ids.enter(one, 1, rank(1))
    assert one.without("asked") == ([0, *range(2, 9)], 999)


def test_waits_end_with_their_record() -> None:
    ids = Ids()
    one = record(ids)
    ids.wait(one, Wait((1, 10), 0, 5.0))
    ids.wait(one, Wait((2, 20), 1, 5.0))
    assert ids.drop((1, 10)) == (one, Wait((1, 10), 0, 5.0))
    assert ids.drop((1, 10)) is None
    assert ids.close(one, State.FAILED, 1.0) == [Wait((2, 20), 1, 5.0)]
    assert ids.waiters() == []


def test_finished_attempts_are_forgotten_but_never_open_again() -> None:
    ids = Ids()
    for attempt in range(ATTEMPTS_KEPT + 3):
        ids.close(record(ids, attempt=attempt), State.SPENT, 1.0)
    kept = [r.attempt for r in ids.records()]
    assert len(kept) <= ATTEMPTS_KEPT + 1
    assert ids.forgotten("dp", 0)
    assert not ids.forgotten("dp", kept[0])
    assert ids.attempt_of("dp", 1) == kept[0]


def test_s25_a_communicator_that_is_over_makes_way_and_one_in_the_making_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "NCCL_GROUPS_MAX", 3)
    ids = Ids()
    names = (f"step {n}" for n in itertools.count())
    for _ in range(5):
        ids.close(record(ids, next(names)), State.SPENT, 1.0)
    assert len(ids.records()) == 3
    for _ in range(3):
        record(ids, next(names))
    with pytest.raises(Refused) as caught:
        record(ids, next(names))
    assert caught.value.code is ErrorCode.LIMIT_EXCEEDED
