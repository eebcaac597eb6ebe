"""What `rdzv status` prints, for people and for programs."""

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from rdzv_client import show
from rdzv_proto.messages import (
    Address,
    Ended,
    Fence,
    GenerationStatus,
    MemberStatus,
    Policy,
    RunStatus,
    ServerStatus,
)

SERVER = ServerStatus(
    server="rdzv 1", protocol=1, instance="i1", epoch=7, state="memory", uptime_ms=3_723_000,
    stalls=2, stalled_ms=850, connections=5, sessions=4, runs=3,
)  # fmt: skip
POLICY = Policy(min_nodes=2, max_nodes=4)


def run(**more: Any) -> RunStatus:
    fields: dict[str, Any] = {"run": "llama", "phase": "live", "fence": Fence(7, 3)}
    return RunStatus(**(fields | {"policy": POLICY, "reason": "3 of 4 joined"} | more))


def member(name: str, rank: int | None = None, **more: Any) -> MemberStatus:
    fields: dict[str, Any] = {"node_id": f"{name}-1", "name": name, "group_rank": rank}
    return MemberStatus(**({"state": "participant"} | fields | more))


def cells(row: str) -> list[str]:
    return re.split("  +", row)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (850, "850 ms"),
        (1_000, "1 s"),
        (41_400, "41 s"),
        (119_000, "119 s"),
        (120_000, "2 min"),
        (7_100_000, "118 min"),
        (7_200_000, "2.0 h"),
        (12_600_000, "3.5 h"),
        (172_000_000, "47.8 h"),
        (172_800_000, "2.0 d"),
        (181_440_000, "2.1 d"),
    ],
)
def test_durations_have_a_unit_that_suits_them(ms: int, text: str) -> None:
    assert show.duration(ms) == text


def test_columns_are_as_wide_as_they_need_to_be() -> None:
    assert show.table(("A", "LONG"), [("wide cell", "x"), ("b", "")]) == (
        "A          LONG\n"
        "wide cell  x\n"
        "b"
    )  # fmt: skip


def test_a_table_without_rows_is_its_head() -> None:
    assert show.runs_table([]) == "RUN  STATE  GEN  NODES  SINCE  WHY"


def test_the_server_is_told_in_two_lines() -> None:
    assert show.server_lines("host:29500", SERVER, 0.00123).splitlines() == [
        "server host:29500 · rdzv 1 · protocol 1 · instance i1 · epoch 7 · state memory · up 62 min",
        "3 runs · 4 sessions · 5 connections · stalled 2 times (850 ms) · round trip 1.2 ms",
    ]


@pytest.mark.parametrize(
    ("oldest", "newest", "spoken", "text"),
    [
        (0, 1, None, " · protocol 1 · "),
        (0, 1, 1, " · protocol 1 · "),
        (1, 2, 2, " · protocol 1 to 2 · "),
        (1, 2, 1, " · protocol 1 to 2 (1 with this client) · "),
    ],
)
def test_s34_both_sides_versions_are_told_where_they_differ(
    oldest: int, newest: int, spoken: int | None, text: str
) -> None:
    server = replace(SERVER, protocol=newest, protocol_min=oldest)
    assert text in show.server_lines("host:29500", server, 0.001, spoken)


def test_s34_nodes_are_told_apart_by_their_versions_only_where_those_differ() -> None:
    new = [member(name, client="rdzv 2", protocol=2) for name in "ab"]
    old = [member(name, client="rdzv 1", protocol=1) for name in "cdefghijkl"]
    away = [member("m", client="rdzv 1", protocol=0)]
    assert show.skew([], 2) == show.skew(new, 2) == show.skew([*new, *away], 2) == ""
    assert show.skew(old, 0) == "", "it is not known what the server speaks"
    behind = "10 × rdzv 1, protocol 1 (c, d, e, f, g, h, i, j, …)"
    assert show.skew(old, 2) == behind
    assert show.skew([*new, *old], 2) == f"{behind} · 2 × rdzv 2, protocol 2 (a, b)"
    assert f"clients: {behind}" in show.run_lines(run(), old, 2).splitlines()


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (run(participants=3, members=4), "3 of 2:4"),
        (run(participants=4, members=5, standbys=1), "4 of 2:4, 1 standby"),
        (run(participants=2, members=2, finished=1), "2 of 2:4, 1 finished"),
        (run(phase="forming", participants=2, members=1), "1 of 2:4"),
        (run(phase="ended", participants=2, members=3, finished=2), "1 of 2:4, 2 finished"),
        (run(participants=2, policy=Policy(min_nodes=2, max_nodes=2)), "2 of 2"),
        (run(phase="forming", policy=None, members=1), "1"),
    ],
)
def test_nodes_are_counted_against_what_the_run_wants(status: RunStatus, text: str) -> None:
    assert show.nodes(status) == text


def test_the_reason_is_followed_by_who_is_missing() -> None:
    assert show.why(run()) == "3 of 4 joined"
    assert show.why(run(waiting_for=["c", "d"])) == "3 of 4 joined · waiting for c, d"
    assert show.why(run(reason="")) == "–"


def test_runs_are_one_row_each() -> None:
    runs = [
        run(participants=3, phase_age_ms=41_000),
        run(run="bert", phase="forming", fence=None, policy=None, reason="", members=1),
    ]
    head, first, second = show.runs_table(runs).splitlines()
    assert head.split() == ["RUN", "STATE", "GEN", "NODES", "SINCE", "WHY"]
    assert cells(first) == ["llama", "live", "3", "3 of 2:4", "41 s", "3 of 4 joined"]
    assert cells(second) == ["bert", "forming", "–", "1", "0 ms", "–"]
    assert first.index("3 of") == second.index("1  ") == head.index("NODES")


def test_one_run_is_told_with_its_members_in_the_order_given() -> None:
    ended = Ended(kind="lost", reason="node b was lost")
    members = [
        member("a", 0, incarnation_age_ms=60_000, heard_ms_ago=200, peer="10.0.0.9:5"),
        member("b", 1, address=Address(host="10.0.0.2", port=4321)),
        member("c", state="standby", address=Address(host="fe80::1", port=1)),
        member("d", state="idle", address=Address(host="fe80::2")),
        member("e", state="idle"),
    ]
    text = show.run_lines(run(participants=2, phase_age_ms=5_000, ended=ended), members)
    lines = text.splitlines()
    assert lines[:5] == [
        "run llama · live for 5 s · fence 7.3",
        "nodes: 2 of 2:4",
        "why: 3 of 4 joined",
        "last end (lost): node b was lost",
        "",
    ]
    assert lines[5].split() == ["RANK", "NODE", "ID", "STATE", "AGE", "HEARD", "ADDRESS"]
    assert cells(lines[6])[:4] == ["0", "a", "a-1", "participant"]
    assert [line.split()[0] for line in lines[6:]] == ["0", "1", "–", "–", "–"]
    addresses = [line.split()[-1] for line in lines[6:]]
    assert addresses == ["10.0.0.9:5", "10.0.0.2:4321", "[fe80::1]:1", "[fe80::2]", "–"]
    assert "200 ms ago" in lines[6]


def test_a_run_without_members_says_so() -> None:
    text = show.run_lines(run(fence=None, members=0), [])
    assert text.splitlines()[0].endswith("fence –")
    assert text.splitlines()[-1] == "no members"


def test_the_document_has_every_key_even_where_nothing_is_known() -> None:
    bare = RunStatus(run="llama", phase="forming")
    nobody = MemberStatus(node_id="a-1", name="a", state="idle")
    empty = ServerStatus(server="", protocol=1, instance="", epoch=1, state="memory")
    data = json.loads(show.document("host:29500", empty, 0.0, 1, [(bare, [nobody], None)]))
    assert set(data) == {"server", "runs"}
    assert set(data["server"]) == {
        "server", "protocol", "instance", "epoch", "state", "uptime_ms", "stalls", "stalled_ms",
        "connections", "sessions", "runs", "denied", "read_only", "leader", "address", "round_trip_ms",
        "protocol_min", "protocol_spoken",
    }  # fmt: skip
    assert set(data["runs"][0]) == {
        "run", "phase", "phase_age_ms", "fence", "policy", "members", "member_count",
        "participants", "standbys", "finished", "waiting_for", "reason", "ended", "inside",
    }  # fmt: skip
    assert set(data["runs"][0]["members"][0]) == {
        "node_id", "name", "state", "group_rank", "incarnation_age_ms", "heard_ms_ago", "address",
        "peer", "client", "protocol",
    }  # fmt: skip


def test_the_document_holds_the_values_as_they_are() -> None:
    ended = Ended(kind="lost", reason="b \u00e4", node_id="b-1", exit_code=7)
    rows = [(run(members=2, ended=ended), [member("a", 0), member("b")], GenerationStatus(keys=3))]
    data = json.loads(show.document("host:29500", SERVER, 0.0012345, 1, rows))
    assert data["server"]["address"] == "host:29500"
    assert data["server"]["round_trip_ms"] == pytest.approx(1.2345, abs=0.001)
    assert data["server"]["uptime_ms"] == 3_723_000
    llama = data["runs"][0]
    assert llama["fence"] == [7, 3]
    assert llama["member_count"] == 2
    assert [m["group_rank"] for m in llama["members"]] == [0, None]
    assert llama["ended"]["reason"] == "b \u00e4"
    assert llama["ended"]["exit_code"] == 7
    assert llama["inside"]["keys"] == 3
    assert set(llama["inside"]) == set(GenerationStatus().__struct_fields__)


def test_the_document_of_an_idle_server_is_a_document_too() -> None:
    assert json.loads(show.document("h:1", SERVER, 0.001, 1, []))["runs"] == []
