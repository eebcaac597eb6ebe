"""What people and programs see of a generation from inside, and of keys."""

import json

from rdzv_client import show_inside
from rdzv_client.operations import KeyEntry
from rdzv_proto.messages import (
    Address,
    BarrierStatus,
    CommunicatorStatus,
    Fence,
    GenerationStatus,
    ProbeStatus,
    StoreStatus,
)

MASTER = Address(host="10.0.0.1", port=43211)


def test_nothing_to_say_is_no_line() -> None:
    assert show_inside.lines(GenerationStatus()) == ""


def test_a_barrier_line_says_who_is_missing_since_when_and_for_how_long_still() -> None:
    row = BarrierStatus(
        name="ckpt", of="nodes", round=3, arrived=3, needed=4, missing=["node-7 (group rank 2)"],
        age_ms=41_000, left_ms=19_000,
    )  # fmt: skip
    assert show_inside.lines(GenerationStatus(barriers=[row])) == (
        "barrier ckpt (round 3): 3 of 4 nodes, for 41 s, 19 s left · missing: node-7 (group rank 2)"
    )


def test_clients_of_a_counted_barrier_are_no_nodes() -> None:
    row = BarrierStatus(name="b", of="count", round=1, arrived=1, needed=2)
    assert "1 of 2 clients" in show_inside.lines(GenerationStatus(barriers=[row]))


def test_nodes_that_cannot_reach_the_master_are_named_and_the_others_counted() -> None:
    probes = [
        ProbeStatus(node="node-1"),
        ProbeStatus(node="node-3", error="timed out", after_ms=5_000),
    ]
    first, second = show_inside.lines(
        GenerationStatus(fence=Fence(1, 1), master=MASTER, probes=probes)
    ).splitlines()
    assert first == "master: 10.0.0.1:43211 · reached by 1 of 2 nodes that tried"
    assert second == "  node-3 cannot reach it (timed out), after 5 s"


def test_the_servers_own_store_shows_who_is_connected_and_who_is_not() -> None:
    store = StoreStatus(
        port=40_001, clients=5, world_size=8, ranks=[0, 1, 2, 3, 6], missing=["rank 4 on node-1"],
        keys=17, value_bytes=900,
    )  # fmt: skip
    master, line = show_inside.lines(GenerationStatus(store=store)).splitlines()
    assert master == "master: this server, port 40001 (worker_store=server)"
    assert line == (
        "workers' store: 5 of 8 connected (ranks 0-3, 6) · not connected: rank 4 on node-1 · 17 keys, "
        "900 bytes"
    )


def test_a_store_that_ended_with_its_server_is_said_to_be_lost() -> None:
    shown = show_inside.lines(
        GenerationStatus(master=Address(host="10.0.0.1", port=0), store_lost=True)
    )
    assert "store was lost" in shown
    assert "10.0.0.1:0" not in shown


def test_a_communicator_line_says_who_has_not_fetched_the_id() -> None:
    row = CommunicatorStatus(
        name="dp", via="broker", state="published", attempt=1, minter="rank 0 on node-0", fetched=3,
        ready=2, needed=4, missing=["rank 3 on node-1"], age_ms=2_500,
    )  # fmt: skip
    assert show_inside.lines(GenerationStatus(communicators=[row])) == (
        "communicator dp (via broker): published, attempt 1 · id from rank 0 on node-0 · fetched by "
        "3 of 4, ready 2 of 4 · missing: rank 3 on node-1 · for 2 s"
    )


def test_a_failed_communicator_says_why() -> None:
    row = CommunicatorStatus(name="dp", via="store", state="failed", reason="rank 1 was lost")
    assert "failed · fetched by 0 · rank 1 was lost" in show_inside.lines(
        GenerationStatus(communicators=[row])
    )


def test_many_single_ranks_are_cut() -> None:
    store = StoreStatus(port=1, clients=40, ranks=list(range(0, 80, 2)))
    assert "30, …)" in show_inside.lines(GenerationStatus(store=store))


def test_keys_are_a_table_and_cannot_forge_lines() -> None:
    rows = [KeyEntry("a\nb", 3, 2, b"\x1b["), KeyEntry("c", 4, 3, b"\xff\x00\x01")]
    head, first, second = show_inside.keys_table(rows, values=True).splitlines()
    assert head.split() == ["KEY", "REVISION", "BYTES", "VALUE"]
    assert first.split() == ["a\\nb", "3", "2", "\\x1b["]
    assert second.split() == ["c", "4", "3", "0xff0001"]


def test_long_values_are_cut() -> None:
    table = show_inside.keys_table([KeyEntry("k", 1, 100, b"x" * 100)], values=True)
    assert table.endswith("x" * show_inside.VALUE_CHARS_SHOWN + "…")


def test_keys_without_values_have_no_column_for_them() -> None:
    assert "VALUE" not in show_inside.keys_table([KeyEntry("k", 1, 2)], values=False)


def test_the_document_of_keys_holds_text_as_text_and_bytes_as_base64() -> None:
    rows = [KeyEntry("t", 1, 2, "ä".encode()), KeyEntry("b", 2, 1, b"\xff"), KeyEntry("n", 3, 9)]
    assert json.loads(show_inside.keys_document(rows)) == [
        {"key": "t", "revision": 1, "value_bytes": 2, "value": "ä"},
        {"key": "b", "revision": 2, "value_bytes": 1, "value_base64": "/w=="},
        {"key": "n", "revision": 3, "value_bytes": 9},
    ]
