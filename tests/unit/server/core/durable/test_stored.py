"""Records as bytes: names that lead back, older files that can be read, and no secret in any of them."""

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_proto import codec
from rdzv_proto.messages import Address, Ended, Fence, Joined, KvSet, Policy, Welcome
from rdzv_server.core.durable import stored
from rdzv_server.core.durable.stored import Key, key_bytes, key_of, pack, unpack
from tests.lab import Lab, Node, policy

KEYS: list[Key] = [
    ("meta",),
    ("session", 2**40),
    ("reply", 7, 2**32),
    ("fenced", 3),
    ("tomb", "run"),
    ("run", "run"),
    ("generation", "run"),
    ("end", "run"),
    ("revision", "run", 0),
    ("key", "run", 1, "a/b\0c é"),
    ("barrier", "run", 1, "ckpt"),
    ("decision", "run", 0, "ckpt", 12),
    ("nccl", "run", "dp"),
]


@pytest.mark.parametrize("key", KEYS, ids=[str(key[0]) for key in KEYS])
def test_a_name_leads_back_to_its_key(key: Key) -> None:
    raw = key_bytes(key)
    assert key_of(raw) == key
    assert raw.startswith(str(key[0]).encode() + b"\0")


parts = st.one_of(st.text(max_size=20), st.integers(0, 2**63 - 1))
keys = st.tuples(st.sampled_from([str(k[0]) for k in KEYS]), parts, parts, parts)


@given(keys, keys)
def test_two_keys_never_have_one_name(one: Key, other: Key) -> None:
    assert (key_bytes(one) == key_bytes(other)) == (one == other)
    assert key_of(key_bytes(one)) == one


RECORDS: list[msgspec.Struct] = [
    stored.StoredMeta(2**63 - 1, 10, 3),
    stored.StoredSession(
        "node", "r", "n", "name", b"i" * 16, b"h" * 32, 0.2, "client", 5, Fence(1, 2), 3, [(2, b"w" * 32)],
        stored.StoredMember(1, 0, None, True),
    ),
    stored.StoredMember(9, None, 4, False),
    stored.StoredRun(
        4, "live", Policy(min_nodes=1, max_nodes=2), "a", ["x"], Ended(kind="lost", reason="gone"), 2,
        ["b failed"], 3, 4, "why", True,
    ),
    stored.StoredParticipant("n", "name", 3, b"i" * 16, Address(host="h", port=1, explicit=True)),
    stored.StoredGeneration(
        Fence(1, 2), [stored.StoredParticipant("n", "m", 3, b"i" * 16, Address())], b"d" * 16, "why",
        Address(host="h"), "because", True,
    ),
    stored.StoredEnd([1, 2], Ended(kind="failed", reason="r", node_id="a", exit_code=-9)),
    stored.StoredEntry(3, bytes(range(256))),
    stored.StoredBarrier("run 'r'", 3, {0: 2, 2**40: 1}),
    stored.StoredDecision("workers", 2, [0, 4], b"reply", [(1, 2), (3, 4)]),
    stored.StoredAttempt(1, 2, 1, None, "a", "failed", 7, "text", [(0, 1, "who")], [3]),
    stored.StoredGroup(1, {0: 1}, []),
    stored.StoredFenced("r", "n", b"i" * 16, b"h" * 32),
    stored.StoredLost(3, b"i" * 16, b"h" * 32),
    stored.StoredSeen(b"d" * 32, "r", "communicator 'dp' of run 'r'"),
]  # fmt: skip
RECORD_IDS = [type(record).__name__ for record in RECORDS]


@pytest.mark.parametrize("record", RECORDS, ids=RECORD_IDS)
def test_a_record_comes_back_as_it_was(record: msgspec.Struct) -> None:
    assert unpack(pack(record), type(record)) == record


def test_every_kind_of_record_is_tried_here() -> None:
    kinds = {
        kind for kind in vars(stored).values()
        if isinstance(kind, type) and issubclass(kind, stored._Stored) and kind is not stored._Stored
    }  # fmt: skip
    assert kinds == {type(record) for record in RECORDS}


@pytest.mark.parametrize("record", RECORDS, ids=RECORD_IDS)
def test_a_field_that_a_later_version_adds_does_not_harm_older_records(
    record: msgspec.Struct,
) -> None:
    kind = type(record)
    later = msgspec.defstruct(
        "Later", [("added", str, "default")], bases=(kind,), frozen=True, array_like=True
    )
    found = unpack(pack(record), later)
    assert msgspec.structs.asdict(found)["added"] == "default"
    assert [getattr(found, name) for name in kind.__struct_fields__] == [
        getattr(record, name) for name in kind.__struct_fields__
    ]


def test_a_session_of_before_it_had_a_last_field_is_read_with_its_default() -> None:
    row = ["node", "r", "n", "name", b"i" * 16, b"h" * 32, 5.0, "", 0, None, 0, []]
    found = unpack(msgspec.msgpack.encode(row), stored.StoredSession)
    assert found.member is None
    assert found.token_hash == b"h" * 32


@pytest.mark.parametrize("record", RECORDS, ids=RECORD_IDS)
def test_a_record_that_lacks_a_field_without_default_is_refused(record: msgspec.Struct) -> None:
    row = msgspec.msgpack.decode(pack(record))
    with pytest.raises(msgspec.ValidationError):
        unpack(msgspec.msgpack.encode(row[:1] if len(row) > 2 else []), type(record))


@pytest.mark.parametrize("record", RECORDS, ids=RECORD_IDS)
def test_half_a_record_and_rubbish_are_refused(record: msgspec.Struct) -> None:
    data = pack(record)
    for bad in (b"", data[:-1], b"\xc1", msgspec.msgpack.encode("text"), data + b"\0"):
        with pytest.raises(msgspec.MsgspecError):
            unpack(bad, type(record))


def test_a_stored_reply_is_the_one_that_was_sent() -> None:
    lab = Lab()
    (a,) = lab.world("a", rules=policy(1))
    sent = a.set("k", b"v")
    raw = [r for r in lab.stored if r.startswith(b"reply\0")]
    assert [codec.decode_tail(lab.stored[r]) for r in raw] == [sent]


# --- secrets ----------------------------------------------------------------------------------


def secrets_of(lab: Lab, nodes: list[Node]) -> list[bytes]:
    """All that a server handed out to be proved later, and its own key."""
    found = [lab.core.tables.identity.key]
    for wire in lab.wires.values():
        found += [w.token for w in wire.all(Welcome) if w.token]
        found += [j.worker_token for j in wire.all(Joined)]
    assert len(found) > len(nodes)
    return found


def test_no_record_holds_a_token_or_the_key_that_makes_them() -> None:
    lab = Lab()
    nodes = lab.world("a", "b", rules=policy(2))
    a, b = nodes
    a.worker(0)
    a.set("k")
    a.ask(KvSet(key="of the run", value=b"v"))
    a.meet()
    b.meet()
    written = dict(lab.stored)
    a.resume()
    a.join()
    b.join()
    b.worker(1)
    written.update({b"later " + raw: data for raw, data in lab.stored.items()})
    lab.node("b", incarnation=2)
    lab.restart()
    a.resume()
    written.update({b"last " + raw: data for raw, data in lab.stored.items()})
    everything = b"\n".join(raw + b"=" + data for raw, data in written.items())
    secrets = secrets_of(lab, nodes)
    assert len(set(secrets)) >= 7
    for secret in secrets:
        for form in (secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"=")):
            assert form not in everything
            assert form[: len(form) // 2] not in everything
