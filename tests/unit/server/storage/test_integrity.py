from dataclasses import replace

import pytest

from rdzv_server.storage.integrity import Meta, Step, gather, is_whole, kind, row_sum

EMPTY = Meta(schema=1, number=0, rows=0, identity=b"i" * 16, chain=b"c" * 16, digest=0)

Row = tuple[bytes, int, bytes, bytes]


def row(key: bytes, value: bytes, number: int = 1) -> Row:
    return key, number, row_sum(key, value, number), value


def committed(before: Meta, records: dict[bytes, bytes]) -> Meta:
    step = Step(before)
    for key, value in records.items():
        step.put(key, value)
    return step.after()


RECORDS = {b"a": b"1", b"b": b"2", b"c": b"3"}
META = committed(EMPTY, RECORDS)
ROWS = [row(key, value) for key, value in RECORDS.items()]


def test_what_was_written_is_read() -> None:
    assert gather(ROWS, META) == RECORDS


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (ROWS[:2], "2 records, but 3 were stored"),
        ([*ROWS, row(b"d", b"4")], "4 records, but 3"),
        ([ROWS[0], ROWS[0], ROWS[1], ROWS[2]], "wrong place"),
        ([ROWS[1], ROWS[0], ROWS[2]], "wrong place"),
        ([(b"a", 1, ROWS[0][2], b"2"), *ROWS[1:]], "checksum"),
        ([(b"A", 1, ROWS[0][2], b"1"), *ROWS[1:]], "checksum"),
        ([(b"a", 0, ROWS[0][2], b"1"), *ROWS[1:]], "checksum"),
        ([row(b"a", b"0", 0), *ROWS[1:]], "older one"),
        ([row(b"a", b"1", 2), *ROWS[1:]], "commit 2, but the last one was 1"),
    ],
)
def test_s27_lost_altered_doubled_and_stale_records_are_found(rows: list[Row], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        gather(rows, META)


def test_values_of_another_type_are_no_records() -> None:
    assert is_whole(b"a", 1, row_sum(b"a", b"1", 1), b"1")
    assert not is_whole("a", 1, row_sum(b"a", b"1", 1), b"1")
    assert not is_whole(b"a", -1, b"", b"1")
    assert not is_whole(b"a", None, b"", b"1")
    assert not is_whole(b"a", 1, None, b"1")


def test_a_record_that_is_replaced_or_gone_no_longer_counts() -> None:
    step = Step(META)
    step.replaced(ROWS[0][2])
    step.put(b"a", b"new")
    step.replaced(ROWS[1][2])
    step.gone(b"b")
    after = step.after()
    assert after.rows == 2
    assert gather([row(b"a", b"new", 2), ROWS[2]], after) == {b"a": b"new", b"c": b"3"}
    with pytest.raises(ValueError, match="older one"):
        gather([ROWS[0], ROWS[2]], after)


def test_equal_content_by_another_way_has_another_chain() -> None:
    step = Step(EMPTY)
    step.gone(b"x")
    for key, value in RECORDS.items():
        step.put(key, value)
    other = step.after()
    assert (other.digest, other.rows, other.number) == (META.digest, META.rows, META.number)
    assert other.chain != META.chain


@pytest.mark.parametrize("name", ["schema", "number", "rows", "digest"])
def test_every_part_is_sealed(name: str) -> None:
    changed = {
        "schema": replace(META, schema=2),
        "number": replace(META, number=2),
        "rows": replace(META, rows=2),
        "digest": replace(META, digest=META.digest ^ 1),
    }[name]
    assert changed.seal() != META.seal()
    assert replace(META, chain=b"d" * 16).seal() != META.seal()
    assert replace(META, identity=b"d" * 16).seal() != META.seal()


@pytest.mark.parametrize(
    ("key", "shown"),
    [(b"run/llama", "run"), (b"kv\0llama/x", "kv"), (b"epoch", "epoch"), (b"\xff\n/", "\\xff\n")],
)
def test_kinds_are_what_precedes_the_first_slash_or_nul(key: bytes, shown: str) -> None:
    assert kind(key) == shown


def test_the_kind_of_what_is_no_key() -> None:
    assert kind(None) == "?"
