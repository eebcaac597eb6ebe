"""How the durable parts of the core's state are written: one small record for each thing that changes by itself.

There are no times in here (clocks of two processes have nothing in common) and no secrets: of tokens only hashes.
Fields are only ever added, with defaults, so that an older file can be read.
"""

from typing import Any, TypeVar

import msgspec

from rdzv_proto.messages import Address, Ended, Fence, Policy

Key = tuple[str | int, ...]
"""A kind, then what tells one from another."""


class _Stored(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Base of all records."""


class StoredMeta(_Stored, frozen=True, array_like=True):
    """Of the server itself."""

    epoch: int
    sessions_reserved: int
    """No session id above this was ever given out."""
    generation_floor: int


class StoredSession(_Stored, frozen=True, array_like=True):
    """A session, and the member that it is."""

    role: str
    run: str
    node_id: str
    name: str
    incarnation: bytes
    token_hash: bytes
    lease_s: float
    client: str
    acknowledged: int
    fence: Fence | None
    rank: int
    worker_hashes: list[tuple[int, bytes]]
    member: "StoredMember | None" = None


class StoredMember(_Stored, frozen=True, array_like=True):
    """A node's part in its run."""

    order: int
    seat: int | None
    hint: int | None
    finished: bool


class StoredRun(_Stored, frozen=True, array_like=True):
    """A run, without its generation."""

    number: int
    phase: str
    policy: Policy | None
    policy_from: str
    expected: list[str]
    last_ended: Ended | None
    formed: int
    departed: list[str]
    departed_order: int
    arrivals: int
    reason: str
    kv_over: bool


class StoredParticipant(_Stored, frozen=True, array_like=True):
    """A row of a member table."""

    node_id: str
    name: str
    session_id: int
    incarnation: bytes
    address: Address


class StoredGeneration(_Stored, frozen=True, array_like=True):
    """What never changes once a generation has formed."""

    fence: Fence
    participants: list[StoredParticipant]
    digest: bytes
    reason: str
    master: Address
    master_reason: str
    served: bool
    """The server had opened a port for its workers' store."""


class StoredEnd(_Stored, frozen=True, array_like=True):
    """What does."""

    finished: list[int]
    ended: Ended | None


class StoredEntry(_Stored, frozen=True, array_like=True):
    """What a key holds."""

    revision: int
    value: bytes


class StoredBarrier(_Stored, frozen=True, array_like=True):
    """How far the rounds of one name are."""

    where: str
    round: int
    had: dict[int, int]


class StoredDecision(_Stored, frozen=True, array_like=True):
    """How a round ended, and which requests that answered."""

    of: str
    needed: int
    members: list[int] | None
    reply: bytes
    answered: list[tuple[int, int]]


class StoredAttempt(_Stored, frozen=True, array_like=True):
    """One attempt to make a communicator: never an id, only who holds one."""

    attempt: int
    nranks: int
    n_ids: int
    minter: int | None
    by: str
    state: str
    """`begun` (ids are being minted or handed out), `spent` or `failed`."""
    code: int
    message: str
    """Of a failure."""
    holders: list[tuple[int, int, str]]
    """(rank, session id, process) of those that have fetched its ids."""
    revoked: list[int]


class StoredGroup(_Stored, frozen=True, array_like=True):
    """A communicator's attempts."""

    floor: int
    next: dict[int, int]
    attempts: list[StoredAttempt]


class StoredFenced(_Stored, frozen=True, array_like=True):
    """A process that may never come back."""

    run: str
    node_id: str
    incarnation: bytes
    token_hash: bytes


class StoredLost(_Stored, frozen=True, array_like=True):
    """A process that was lost, the last one of its node: it may come back unless another takes its place."""

    session: int
    incarnation: bytes
    token_hash: bytes


class StoredSeen(_Stored, frozen=True, array_like=True):
    """A unique id that was taken: none serves twice, whatever happened to its run and to the server since."""

    digest: bytes
    run: str
    where: str


_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}

T = TypeVar("T")


def pack(value: Any) -> bytes:
    """A record."""
    return _encode(value)


def unpack(data: bytes, kind: type[T]) -> T:
    """A record back.

    Raises:
        msgspec.MsgspecError: it is none of that kind.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    found: T = decoder.decode(data)
    return found


def key_bytes(key: Key) -> bytes:
    """As it is stored: the kind in clear, for whoever looks into a file."""
    return str(key[0]).encode() + b"\0" + _encode(key[1:])


def key_of(data: bytes) -> Key:
    """A key back."""
    kind, _, rest = data.partition(b"\0")
    return (kind.decode(), *unpack(rest, list))
