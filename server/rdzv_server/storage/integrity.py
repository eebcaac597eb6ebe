"""Checksums over what is stored. SQLite has none of its own in the main file, and takes what follows a
flipped bit in its write-ahead log for a log that ended there.

Each record carries a checksum over its key, its value and the number of the commit that wrote it. One
more row, `Meta`, holds the sum of them all, so that a record that is lost, doubled or older than it
should be is noticed although every record there is good by itself.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b

SUM_BYTES = 16
"""Of a checksum. Against accidents, so 128 bits are plenty; whoever can write the file can forge them."""

_MODULUS = 1 << (8 * SUM_BYTES)
_META = struct.Struct(">QQQ16s16s16s")
_LENGTHS = struct.Struct(">QQ")


@dataclass(frozen=True)
class Meta:
    """What is said of all records together.

    Args:
        schema: version of the records' layout.
        number: of the last commit.
        rows: how many records there are.
        identity: of the database; random, so that files of two databases are never mixed.
        chain: hash over all commits since the database was made, in their order.
        digest: sum of the checksums of all records, modulo 2**128.
    """

    schema: int
    number: int
    rows: int
    identity: bytes
    chain: bytes
    digest: int

    def seal(self) -> bytes:
        """A checksum over all of it."""
        digest = self.digest.to_bytes(SUM_BYTES, "big")
        fields = (self.schema, self.number, self.rows, self.identity, self.chain, digest)
        return blake2b(_META.pack(*fields), digest_size=SUM_BYTES, person=b"rdzv meta").digest()


@dataclass
class Step:
    """The checksums of one commit as it is put together.

    Args:
        before: how things stood.
    """

    before: Meta

    def __post_init__(self) -> None:
        self.number = self.before.number + 1
        self._rows = self.before.rows
        self._digest = self.before.digest
        self._chain = blake2b(self.before.chain, digest_size=SUM_BYTES, person=b"rdzv chain")

    def put(self, key: bytes, value: bytes) -> bytes:
        """A record is there from now on.

        Returns:
            Its checksum.
        """
        checksum = row_sum(key, value, self.number)
        self._chain.update(checksum)
        self._rows += 1
        self._digest += int.from_bytes(checksum, "big")
        return checksum

    def gone(self, key: bytes) -> None:
        """A record shall not be there any longer."""
        self._chain.update(_sum(key, b"", self.number, b"rdzv gone"))

    def replaced(self, checksum: bytes) -> None:
        """This is what was there in the place of one that was put, or is gone."""
        self._rows -= 1
        self._digest -= int.from_bytes(checksum, "big")

    def after(self, schema: int | None = None) -> Meta:
        """How things stand after it."""
        return replace(
            self.before,
            schema=self.before.schema if schema is None else schema,
            number=self.number,
            rows=self._rows,
            chain=self._chain.digest(),
            digest=self._digest % _MODULUS,
        )


def row_sum(key: bytes, value: bytes, number: int) -> bytes:
    """The checksum of a record."""
    return _sum(key, value, number, b"rdzv row")


def is_whole(key: object, number: object, checksum: object, value: object) -> bool:
    """Whether a row is a record as it was written."""
    return (
        isinstance(key, bytes)
        and isinstance(value, bytes)
        and isinstance(number, int)
        and 0 <= number < 1 << 63
        and checksum == row_sum(key, value, number)
    )


def gather(rows: Iterable[tuple[bytes, int, bytes, bytes]], meta: Meta) -> dict[bytes, bytes]:
    """All records, out of rows in the order of their keys.

    Raises:
        ValueError: they are not those that were written; the text says what is wrong.
    """
    records: dict[bytes, bytes] = {}
    digest = 0
    last: bytes | None = None
    for key, number, checksum, value in rows:
        if not is_whole(key, number, checksum, value):
            place = f"record {len(records) + 1} of {meta.rows} (a {kind(key)!r})"
            raise ValueError(f"{place} does not match its checksum")
        # An order that is broken hides records from every search, though a scan still finds them.
        if last is not None and key <= last:
            raise ValueError(f"record {len(records) + 1} of {meta.rows} is in the wrong place")
        if number > meta.number:
            raise ValueError(f"a record of commit {number}, but the last one was {meta.number}")
        last = key
        records[key] = value
        digest += int.from_bytes(checksum, "big")
    if len(records) != meta.rows:
        raise ValueError(f"{len(records)} records, but {meta.rows} were stored")
    if digest % _MODULUS != meta.digest:
        raise ValueError("a record is an older one than was stored last")
    return records


def kind(key: object) -> str:
    """What a record is about: the part of its key before the first NUL or slash."""
    if not isinstance(key, bytes):
        return "?"
    return key.replace(b"\0", b"/").partition(b"/")[0][:32].decode("ascii", "backslashreplace")


def _sum(key: bytes, value: bytes, number: int, person: bytes) -> bytes:
    hasher = blake2b(_LENGTHS.pack(number, len(key)), digest_size=SUM_BYTES, person=person)
    hasher.update(key)
    hasher.update(value)
    return hasher.digest()
