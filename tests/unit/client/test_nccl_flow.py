"""The steps in which a rank gets its ids, played by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from rdzv_client import nccl_flow, nccl_library
from rdzv_client.errors import DuplicateId, IdTimeout, MintFailed, UnroutableRoot
from rdzv_client.nccl_flow import Ask, Flow, Mint, Tell, Wanted
from rdzv_client.nccl_library import Source
from rdzv_proto.messages import Fence, NcclFail, NcclGet, NcclIds, NcclPut

FENCE = Fence(7, 1)
ID = bytes(range(1, 129))
OTHER = bytes(range(2, 130))


@pytest.fixture(autouse=True)
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed here: these tests say what there is to mint with."""
    monkeypatch.delenv("NCCL_COMM_ID", raising=False)
    monkeypatch.setattr(nccl_library, "version_here", lambda: 0)

    def none(path: str | None = None) -> Source:
        raise MintFailed("no NCCL library")

    monkeypatch.setattr(nccl_library, "find", none)


def wanted(rank: int = 0, nranks: int = 2, **more: Any) -> Wanted:
    return Wanted(group="dp", rank=rank, nranks=nranks, **more)


def start(want: Wanted) -> tuple[Flow, NcclGet]:
    flow = nccl_flow.obtain(want, FENCE)
    return flow, asked(next(flow))


def asked(step: object) -> Any:
    assert isinstance(step, Ask), step
    return step.message


def result(step: Callable[[], object]) -> NcclIds:
    with pytest.raises(StopIteration) as stop:
        step()
    ids = stop.value.value
    assert isinstance(ids, NcclIds)
    return ids


def minted(flow: Flow, step: object, raw: object = ID) -> NcclPut:
    """Play the minting of one id; returns the put that follows."""
    assert isinstance(step, Mint)
    put = asked(flow.send(step.call()))
    assert isinstance(put, NcclPut)
    return put


def test_a_rank_that_does_not_mint_asks_once() -> None:
    flow, ask = start(wanted(1, timeout=5))
    assert (ask.group, ask.rank, ask.nranks, ask.n_ids) == ("dp", 1, 2, 1)
    assert 4_000 < ask.timeout_ms <= 5_000
    assert result(lambda: flow.send(NcclIds(attempt=0, ids=[ID]))).ids == [ID]


def test_the_elected_rank_mints_puts_and_asks_again_for_the_same_attempt() -> None:
    flow, ask = start(wanted(mint=lambda: ID))
    assert ask.attempt is None
    put = minted(flow, flow.send(NcclIds(attempt=3, mint=[0])))
    assert (put.attempt, put.rank, put.index, put.id) == (3, 0, 0, ID)
    again = asked(flow.send(None))
    assert isinstance(again, NcclGet)
    assert again.attempt == 3
    assert result(lambda: flow.send(NcclIds(attempt=3, ids=[ID]))).attempt == 3


def test_a_rank_that_mints_several_puts_each() -> None:
    raws = iter([ID, OTHER])
    flow, _ = start(wanted(n_ids=2, minter=0, mint=lambda: next(raws)))
    put = minted(flow, flow.send(NcclIds(attempt=0, mint=[0, 1])))
    assert (put.index, put.id) == (0, ID)
    put = minted(flow, flow.send(None))
    assert (put.index, put.id) == (1, OTHER)
    assert isinstance(asked(flow.send(None)), NcclGet)


def told_the_others(step: object) -> NcclFail:
    assert isinstance(step, Tell), step
    assert isinstance(step.message, NcclFail)
    return step.message


def test_a_missing_library_is_told_to_the_others_before_it_is_raised() -> None:
    flow, _ = start(wanted())
    fail = told_the_others(flow.send(NcclIds(attempt=0, mint=[0])))
    assert fail.reason == "no NCCL library"
    with pytest.raises(MintFailed, match="no NCCL library"):
        flow.send(None)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ValueError("broken"), MintFailed), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_whatever_a_mint_function_raises_is_told(
    error: BaseException, raised: type[BaseException]
) -> None:
    flow, _ = start(wanted(mint=lambda: ID))
    assert isinstance(flow.send(NcclIds(attempt=0, mint=[0])), Mint)
    fail = told_the_others(flow.throw(error))
    assert type(error).__name__ in fail.reason
    with pytest.raises(raised):
        flow.send(None)


def test_b35_what_is_no_id_never_goes_out() -> None:
    flow, _ = start(wanted(mint=lambda: ID[:-1]))
    step = flow.send(NcclIds(attempt=0, mint=[0]))
    assert isinstance(step, Mint)
    with pytest.raises(ValueError, match="127 bytes") as caught:
        step.call()
    fail = told_the_others(flow.throw(caught.value))
    assert "127 bytes; a unique id has 128" in fail.reason


def test_an_id_that_the_server_refuses_is_told_to_the_others() -> None:
    flow, _ = start(wanted(mint=lambda: ID))
    minted(flow, flow.send(NcclIds(attempt=0, mint=[0])))
    fail = told_the_others(flow.throw(UnroutableRoot("root at 127.0.0.1")))
    assert fail.reason == "root at 127.0.0.1"
    with pytest.raises(UnroutableRoot):
        flow.send(None)


@pytest.mark.parametrize("empty", [True, False])
def test_b35_a_second_writer_does_not_spoil_the_first_ones_id(empty: bool) -> None:
    flow, _ = start(wanted(mint=lambda: ID))
    minted(flow, flow.send(NcclIds(attempt=0, mint=[0])))
    again = asked(flow.throw(DuplicateId("it is there already")))
    assert isinstance(again, NcclGet)
    if empty:  # the bytes were used elsewhere, and nobody has an id
        told_the_others(flow.send(NcclIds(attempt=0, mint=[0])))
        with pytest.raises(DuplicateId):
            flow.send(None)
    else:
        with pytest.raises(DuplicateId):
            flow.send(NcclIds(attempt=0, ids=[OTHER]))


def test_an_error_of_the_get_is_raised_as_it_is() -> None:
    flow, _ = start(wanted(1))
    with pytest.raises(IdTimeout):
        flow.throw(IdTimeout("too late"))


def test_the_minter_says_its_version_with_the_first_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nccl_library, "find", lambda path=None: Source(lambda: ID, 22809, "x"))
    assert start(wanted(0))[1].version == 22809
    assert start(wanted(1))[1].version == 0, "others load nothing"


def test_a_chosen_library_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str | None] = []

    def find(path: str | None = None) -> Source:
        paths.append(path)
        return Source(lambda: ID, 1, "x")

    monkeypatch.setattr(nccl_library, "find", find)
    start(wanted(nccl_library="/x/libnccl.so"))
    assert paths == ["/x/libnccl.so"]


# --- NCCL_COMM_ID -----------------------------------------------------------------------------


def test_a_minter_with_nccl_comm_id_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_COMM_ID", "10.0.0.1:5000")
    flow, _ = start(wanted(mint=lambda: ID))
    assert "NCCL_COMM_ID" in told_the_others(flow.send(NcclIds(attempt=0, mint=[0]))).reason
    with pytest.raises(UnroutableRoot):
        flow.send(None)


def test_another_rank_with_nccl_comm_id_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_COMM_ID", "10.0.0.1:5000")
    with pytest.raises(UnroutableRoot, match="NCCL_COMM_ID"):
        start(wanted(1))
    start(wanted(1, allow_comm_id=True))


# --- arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(("nranks", "count"), [(1, 1), (128, 1), (129, 2), (1024, 8)])
def test_auto_takes_one_id_for_128_ranks(nranks: int, count: int) -> None:
    assert wanted(nranks=nranks, n_ids="auto").count == count


@pytest.mark.parametrize(
    ("nranks", "n_ids", "elected"), [(5, 2, [0, 3]), (10, 3, [0, 4, 7]), (4, 1, [0])]
)
def test_who_mints_is_known_before_asking(nranks: int, n_ids: int, elected: list[int]) -> None:
    ranks = range(nranks)
    assert [r for r in ranks if wanted(r, nranks, n_ids=n_ids).elected] == elected
    assert [r for r in ranks if wanted(r, nranks, n_ids=n_ids, minter=1).elected] == [1]


@pytest.mark.parametrize("bad", [{"rank": 2}, {"rank": -1}, {"n_ids": 0}, {"n_ids": 3}])
def test_impossible_numbers_are_refused_before_anything_is_sent(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="rank"):
        wanted(**{"rank": 0, "nranks": 2} | bad)


def test_a_reason_is_one_printable_line_of_bounded_length() -> None:
    fail = nccl_flow.failure(wanted(), FENCE, 0, RuntimeError("a\nb\x1b" + "x" * 5000))
    assert fail.reason.startswith("RuntimeError: a b x")
    assert len(fail.reason) <= 1024
