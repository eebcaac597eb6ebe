"""TCPStore clients: hello, answers, what closes them, and the one store at the main port."""

import struct

import pytest

from rdzv_proto import limits
from rdzv_server.core.quota import Quota
from rdzv_server.core.tcpstore.clients import HELD_FREE_BYTES
from tests.lab import Lab, StoreWire, policy
from tests.unit.proto.tcpstore_bytes import (
    CANCEL,
    HELLO,
    NO,
    YES,
    add,
    append,
    blob,
    check,
    get,
    multi_get,
    number,
    ping,
    set_,
    wait,
)


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
def port(lab: Lab) -> int:
    (a,) = lab.world("a", rules=policy(1, worker_store="server"))
    assert a.joined is not None
    return a.joined.store_port


def quota_of(lab: Lab) -> Quota:
    return lab.run().quota


# --- one connection -------------------------------------------------------------------------------


def test_a_session_byte_by_byte(lab: Lab, port: int) -> None:
    wire = lab.store(port, hello=False)
    script = HELLO + ping(23171) + add(b"init/", 1) + set_(b"/a", b"1") + wait(b"/a") + get(b"/a")
    got = b"".join(wire.send(bytes((byte,))) for byte in script)
    assert got == struct.pack("<I", 23171) + number(1) + YES + blob(b"1")


def test_all_answers_of_one_batch_go_out_together_and_in_order(lab: Lab, port: int) -> None:
    wire = lab.store(port)
    assert wire.send(ping(1) + wait(b"/k") + add(b"/n", 1) + set_(b"/k", b"") + CANCEL) == (
        struct.pack("<I", 1) + number(1) + YES + NO
    )


def test_a_client_that_wakes_itself_reads_that_first(lab: Lab, port: int) -> None:
    wire = lab.store(port)
    assert wire.send(wait(b"/n") + add(b"/n", 7)) == YES + number(7)


def test_a_wait_is_answered_by_another_client_s_write(lab: Lab, port: int) -> None:
    a, b = lab.store(port), lab.store(port)
    assert a.send(wait(b"/k")) == b""
    assert b.send(set_(b"/k", b"v")) == b""
    assert a.read() == YES


def test_who_is_gone_is_not_answered(lab: Lab, port: int) -> None:
    a, b = lab.store(port), lab.store(port)
    a.send(wait(b"/k"))
    a.lose()
    b.send(set_(b"/k", b"v"))
    assert a.read() == b""


def test_a_client_without_a_hello_is_closed_in_time(lab: Lab, port: int) -> None:
    silent, good, half = lab.store(port, hello=False), lab.store(port), lab.store(port, hello=False)
    half.send(HELLO[:3])
    lab.advance(lab.core.tables.settings.hello_timeout_s + 0.1)
    assert silent.closed
    assert half.closed
    assert not good.closed
    assert any("no hello within 5 s" in str(r.fields) for r in lab.reported("store_client_closed"))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (HELLO, "second hello"),
        (b"\x4d", "op 77"),
        (b"\x03" + struct.pack("<Q", 8193), "8193 bytes exceed"),
        (set_(b"/n", b"no number") + add(b"/n", 1), "no 64-bit number"),
    ],
)
def test_a_bad_request_closes_that_client_and_no_other(
    lab: Lab, port: int, data: bytes, why: str
) -> None:
    bad, good = lab.store(port), lab.store(port)
    assert bad.send(ping(7) + data + ping(8)) == struct.pack("<I", 7)
    assert bad.closed
    assert good.send(ping(9)) == struct.pack("<I", 9)
    (report,) = lab.reported("store_client_closed")
    assert why in str(report.fields["reason"])
    assert report.run == "llama"
    assert report.fields["peer"] == "10.0.0.9"


def test_a_bad_first_byte_closes_at_once(lab: Lab, port: int) -> None:
    wire = lab.store(port, hello=False)
    assert wire.send(b"G") == b""
    assert wire.closed


def test_no_text_of_a_client_gets_into_the_log(lab: Lab, port: int) -> None:
    wire = lab.store(port)
    wire.send(set_(b"/secret-key", b"secret-value") + add(b"/secret-key", 1))
    assert wire.closed
    assert "secret" not in str(lab.reports)
    assert "secret" not in repr(lab.core.tables.stores)


def test_bad_clients_cost_one_line_a_second(lab: Lab, port: int) -> None:
    for _ in range(20):
        lab.store(port, hello=False).send(b"G")
    assert len(lab.reported("store_client_closed")) == 1
    lab.advance(1)
    lab.store(port, hello=False).send(b"G")
    (_, second) = lab.reported("store_client_closed")
    assert second.fields["suppressed"] == 19


def test_what_comes_after_the_close_is_not_read(lab: Lab, port: int) -> None:
    wire = lab.store(port)
    wire.send(b"\x4d")
    assert wire.send(set_(b"/late", b"")) == b""
    assert lab.store(port).send(check(b"/late")) == NO


# --- what a run may hold --------------------------------------------------------------------------


def test_a_run_s_keys_are_bounded(lab: Lab, port: int) -> None:
    quota_of(lab).bytes_max = 100
    a, b = lab.store(port), lab.store(port)
    a.send(set_(b"/k", b"v" * 90))
    assert not a.closed
    b.send(append(b"/k", b"v" * 20))
    assert b.closed
    assert "exceed 100 bytes" in str(lab.reported("store_client_closed")[0].fields["reason"])
    assert a.send(get(b"/k")) == blob(b"v" * 90)


def test_an_incomplete_request_counts_too_and_is_given_back(lab: Lab, port: int) -> None:
    quota = quota_of(lab)
    wire = lab.store(port)
    data = set_(b"/k", b"v" * (4 * HELD_FREE_BYTES))
    wire.send(data[: 2 * HELD_FREE_BYTES])
    assert quota.bytes_used == 2 * HELD_FREE_BYTES - 1, "the op itself is consumed"
    wire.send(data[2 * HELD_FREE_BYTES :])
    assert quota.bytes_used == 4 * HELD_FREE_BYTES + 2
    wire.send(data[: 2 * HELD_FREE_BYTES])
    wire.lose()
    assert quota.bytes_used == 4 * HELD_FREE_BYTES + 2


def test_incomplete_requests_of_many_clients_cannot_exceed_the_quota(lab: Lab, port: int) -> None:
    quota_of(lab).bytes_max = 10 * HELD_FREE_BYTES
    wires = [lab.store(port) for _ in range(4)]
    for wire in wires:
        wire.send(set_(b"/k", b"v" * (8 * HELD_FREE_BYTES))[: 4 * HELD_FREE_BYTES])
    assert [wire.closed for wire in wires] == [False, False, True, True]
    assert quota_of(lab).bytes_used <= 10 * HELD_FREE_BYTES


def test_unread_answers_are_bounded(lab: Lab, port: int) -> None:
    wire = lab.store(port)
    value = b"v" * (4 << 20)
    wire.send(set_(b"/k", value))
    count = limits.STORE_ANSWER_BYTES_MAX // len(value) + 2
    assert len(wire.send(get(b"/k") * count)) <= limits.STORE_ANSWER_BYTES_MAX + len(value) + 8
    assert wire.closed


def test_one_answer_cannot_exceed_the_bound(lab: Lab, port: int) -> None:
    wire = lab.store(port)
    wire.send(set_(b"/k", b"v" * (4 << 20)))
    assert wire.send(multi_get(*[b"/k"] * 50)) == b""
    assert wire.closed


# --- the store at the main port -------------------------------------------------------------------


def test_clients_at_the_main_port_share_one_store(lab: Lab) -> None:
    a, b = lab.store(), lab.store()
    a.send(set_(b"/k", b"v"))
    assert b.send(get(b"/k")) == blob(b"v")


def test_it_is_emptied_when_its_last_client_leaves(lab: Lab) -> None:
    a, b = lab.store(), lab.store()
    a.send(set_(b"/k", b"v"))
    a.lose()
    assert b.send(check(b"/k")) == YES
    b.lose()
    assert not lab.core.tables.stores
    assert lab.store().send(check(b"/k")) == NO
    assert len(lab.reported("tcpstore_opened")) == 2
    assert lab.reported("tcpstore_closed")[0].fields["keys"] == 1


def test_a_bad_last_client_empties_it_too(lab: Lab) -> None:
    wire = lab.store()
    wire.send(set_(b"/k", b"v") + b"\x4d")
    assert wire.closed
    assert not lab.core.tables.stores


def test_it_has_a_quota_of_its_own(lab: Lab, port: int) -> None:
    shared: StoreWire = lab.store()
    quota_of(lab).bytes_max = 0
    shared.send(set_(b"/k", b"v"))
    assert not shared.closed
    assert lab.store(port).send(check(b"/k")) == NO


def test_it_is_no_run(lab: Lab) -> None:
    lab.store().send(set_(b"/k", b"v"))
    assert not lab.core.tables.runs
    lab.advance(3600)
    assert lab.store().send(check(b"/k")) == YES
