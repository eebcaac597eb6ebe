"""Which keys carry unique ids, and which tell a rank."""

import pytest

from rdzv_proto import limits
from rdzv_server.core.tcpstore.exchanges import Exchanges, rank_told_by

ID_BYTES = limits.NCCL_ID_BYTES
KEY = b"/default_pg/0//cuda//0"


@pytest.mark.parametrize(
    ("key", "of_all", "pair"),
    [
        (b"/default_pg/0//cuda//0", True, None),
        (b"/default_pg/3//cuda//12", True, None),
        (b"/default_pg/0//cuda//UniqueNCCLID:128", True, None),
        (b"/default_pg/0//tp-group//cuda//0", False, None),
        (b"/default_pg/0//cuda//0:1", False, (0, 1)),
        (b"/default_pg/0//5//cuda//12:3", False, (12, 3)),
        (b"/my/own/prefix//cuda//0", False, None),
        (b"cuda//0", False, None),
    ],
)
def test_keys_of_unique_ids(key: bytes, of_all: bool, pair: tuple[int, int] | None) -> None:
    exchanges: Exchanges[str] = Exchanges()
    exchanges.published(key, ID_BYTES, "a", 1.0)
    exchange = exchanges.by_key[key]
    assert (exchange.of_all, exchange.pair, exchange.minter) == (of_all, pair, "a")


@pytest.mark.parametrize(
    ("key", "size"),
    [
        (KEY, ID_BYTES - 1), (KEY, ID_BYTES + 1), (KEY, 0),
        (b"/default_pg/0//cpu//0/1", ID_BYTES), (b"/default_pg/0//cuda//", ID_BYTES),
        (b"/default_pg/0//cuda//x", ID_BYTES), (b"/default_pg/0//cuda//0/1", ID_BYTES),
        (b"/default_pg/0//xcuda//0", ID_BYTES), (b"/exception_dump", ID_BYTES),
        (b"/default_pg/0//cuda//0:1:2", ID_BYTES), (b"", ID_BYTES),
    ],
)  # fmt: skip
def test_other_keys_and_values(key: bytes, size: int) -> None:
    exchanges: Exchanges[str] = Exchanges()
    exchanges.published(key, size, "a", 1.0)
    assert not exchanges.by_key


def test_who_fetched_is_noted_once_and_the_minter_never() -> None:
    exchanges: Exchanges[str] = Exchanges()
    exchanges.fetched(KEY, "b")
    exchanges.published(KEY, ID_BYTES, "a", 1.0)
    for client in ("a", "b", "b", "c"):
        exchanges.fetched(KEY, client)
    assert list(exchanges.by_key[KEY].fetched) == ["b", "c"]


def test_a_second_id_under_one_key_begins_anew_and_is_counted() -> None:
    exchanges: Exchanges[str] = Exchanges()
    exchanges.published(KEY, ID_BYTES, "a", 1.0)
    exchanges.fetched(KEY, "b")
    exchanges.published(KEY, ID_BYTES, "a", 2.0)
    exchange = exchanges.by_key[KEY]
    assert (exchange.attempt, exchange.fetched, exchange.published_at) == (1, {}, 2.0)


def test_an_id_that_is_deleted_or_overwritten_is_gone() -> None:
    exchanges: Exchanges[str] = Exchanges()
    exchanges.published(KEY, ID_BYTES, "a", 1.0)
    exchanges.deleted(KEY)
    exchanges.deleted(KEY)
    assert not exchanges.by_key
    exchanges.published(KEY, ID_BYTES, "a", 1.0)
    exchanges.published(KEY, 4, "a", 1.0)
    assert not exchanges.by_key


def test_the_oldest_of_too_many_makes_way() -> None:
    exchanges: Exchanges[str] = Exchanges()
    for i in range(limits.NCCL_GROUPS_MAX + 1):
        exchanges.published(b"cuda//%d" % i, ID_BYTES, "a", 1.0)
    assert len(exchanges.by_key) == limits.NCCL_GROUPS_MAX
    assert b"cuda//0" not in exchanges.by_key


def test_no_more_fetches_are_noted_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdzv_server.core.tcpstore.exchanges.FETCHES_MAX", 3)
    exchanges: Exchanges[int] = Exchanges()
    exchanges.published(KEY, ID_BYTES, 0, 1.0)
    for client in range(1, 9):
        exchanges.fetched(KEY, client)
    assert len(exchanges.by_key[KEY].fetched) == 3
    exchanges.published(KEY, ID_BYTES, 0, 2.0)
    exchanges.fetched(KEY, 9)
    assert len(exchanges.by_key[KEY].fetched) == 1, "what was forgotten makes room"


@pytest.mark.parametrize(
    ("key", "rank"),
    [
        (b"/default_pg/0//cpu//0/3", 3),
        (b"/default_pg/2//cpu//7/0", 0),
        (b"/default_pg/0//cuda//UniqueNCCLID:128", 128),
        (b"/default_pg/0//tp//cpu//0/1", None),
        (b"/default_pg/0//cuda//0", None),
        (b"/other/0//cpu//0/3", None),
        (b"/default_pg/0//cpu//0/3x", None),
        (b"init/", None),
    ],
)
def test_only_keys_of_the_default_group_tell_a_global_rank(key: bytes, rank: int | None) -> None:
    assert rank_told_by(key) == rank
