"""T15: many runs, nodes, keys and names; long ones and strange ones. Refused by type, with no side effect."""

import pytest

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Barrier,
    Done,
    Error,
    Goodbye,
    KvCount,
    KvMultiSet,
    KvNumber,
    KvSet,
    Reply,
    Welcome,
)
from tests.e2e.conftest import Cluster
from tests.e2e.kit.hostile import Raw, join, world
from tests.e2e.kit.swarm import Swarm

LONG = "n" * (limits.NAME_CHARS_MAX + 1)
STRANGE = {
    "nul": "a\0b", "line feed": "a\nb", "carriage return": "a\rb", "escape": "a\x1b[31mb",
    "delete": "a\x7fb", "C1": "a\x9bb", "next line": "a\x85b", "line separator": "a\u2028b",
    "paragraph separator": "a\u2029b", "a line feed at the end": "a\n",
}  # fmt: skip


@pytest.mark.parametrize("field", ["run", "node_id", "name", "client"])
def test_names_that_are_too_long_or_hold_control_characters_open_no_session(
    cluster: Cluster, field: str
) -> None:
    """T15"""
    server = cluster.server()
    empty = {} if field == "client" else {"empty": ""}
    for kind, text in (STRANGE | {"long": LONG} | empty).items():
        with Raw(server) as raw:
            reply = raw.hello("r", "n", **{field: text})  # type: ignore[arg-type]
            assert isinstance(reply, Error), kind
            assert reply.code == ErrorCode.MALFORMED
            assert field in reply.message
            assert len(reply.message) <= limits.TEXT_CHARS_MAX
    assert not server.runs()
    assert not server.log_lines("run_opened")
    with Raw(server) as raw:
        assert isinstance(raw.hello("r", "n", **{field: LONG[1:]}), Welcome), "128 are fine"  # type: ignore[arg-type]


def test_names_inside_a_run_are_held_to_the_same(cluster: Cluster) -> None:
    """T15: barriers and expected nodes; a key may hold anything but is bounded."""
    server = cluster.server()
    with world(server, "r", 1) as ((node,), (told,)):
        for text in (*STRANGE.values(), LONG, ""):
            ask = Barrier(fence=told.fence, name=text, timeout_ms=0)
            assert node.refused(ask).code == ErrorCode.MALFORMED
            assert node.refused(join(1, expected_nodes=[text])).code == ErrorCode.MALFORMED
        key = "k" * (limits.KEY_CHARS_MAX + 1)
        assert node.refused(KvSet(fence=told.fence, key=key, value=b"")).code == ErrorCode.MALFORMED
        node.good(KvSet(fence=told.fence, key=key[1:], value=b""), Done)
    assert server.generation("r") == 1
    assert server.inside("r").keys == 1


def _limit(reply: Reply) -> Error:
    assert isinstance(reply, Error), reply
    assert reply.code == ErrorCode.LIMIT_EXCEEDED
    return reply


def test_keys_beyond_what_a_run_may_hold_are_refused_and_none_of_them_is_set(
    cluster: Cluster,
) -> None:
    """T15: by number."""
    server = cluster.server()
    step = limits.KEYS_PER_REQUEST_MAX
    with Raw(server).node("r", "n", lease_s=60) as node:
        rounds, rest = divmod(limits.KV_KEYS_PER_RUN_MAX, step)
        for number in range(rounds):
            keys = [f"{number}/{i}" for i in range(step)]
            node.good(KvMultiSet(keys=keys, values=[b""] * step), Done)
        keys = [f"last/{i}" for i in range(rest + 1)]
        refused = _limit(node.ask(KvMultiSet(keys=keys, values=[b""] * len(keys))))
        assert str(limits.KV_KEYS_PER_RUN_MAX) in refused.message
        assert node.good(KvCount(), KvNumber).value == rounds * step, "all or nothing"
        node.good(KvMultiSet(keys=keys[1:], values=[b""] * rest), Done)
        _limit(node.ask(KvSet(key="one more", value=b"")))
        node.good(KvSet(key="last/1", value=b"changed"), Done)
    with Raw(server).node("other", "n") as node:
        node.good(KvSet(key="k", value=b"a run of its own"), Done)


def test_bytes_beyond_what_a_run_may_hold_are_refused(cluster: Cluster) -> None:
    """T15: by size; and memory is bounded by what it may hold."""
    server = cluster.server()
    value = bytes(limits.VALUE_BYTES_MAX)
    with Raw(server).node("r", "n", lease_s=60) as node:
        kept = 0
        while isinstance(reply := node.ask(KvSet(key=f"k{kept}", value=value)), Done):
            kept += 1
            assert kept <= limits.KV_BYTES_PER_RUN_MAX // len(value)
        refused = _limit(reply)
        assert str(limits.KV_BYTES_PER_RUN_MAX) in refused.message
        assert kept == limits.KV_BYTES_PER_RUN_MAX // len(value) - 1, "keys count too"
        assert node.good(KvCount(), KvNumber).value == kept
    assert server.inside("r").value_bytes < limits.KV_BYTES_PER_RUN_MAX


def test_barriers_and_waits_beyond_their_number_are_refused(cluster: Cluster) -> None:
    """T15: per session what waits, per generation the names."""
    server = cluster.server()
    with world(server, "r", 2) as ((one, two), (told, _)):

        def ask(name: str) -> Barrier:
            return Barrier(fence=told.fence, name=name, timeout_ms=60_000)

        waiting = [one.post(ask(f"b{i}")) for i in range(limits.PARKED_PER_SESSION_MAX)]
        refused = _limit(one.ask(ask("one more")))
        assert str(limits.PARKED_PER_SESSION_MAX) in refused.message
        refused = _limit(two.ask(ask("one name more")))
        assert str(limits.BARRIER_NAMES_MAX) in refused.message
        assert len(waiting) == limits.BARRIER_NAMES_MAX
        two.ask(ask("b0"))  # completes a round: those that wait are none the worse
        one.answer(waiting[0])
    assert server.generation("r") == 1


def test_runs_beyond_their_number_are_refused_and_the_others_go_on(cluster: Cluster) -> None:
    """T15"""
    server = cluster.server()
    with Swarm(cluster, server, "many", limits.RUNS_MAX, apart=True) as swarm:
        told = swarm.go()
        assert not told["faults"], told["faults"][:3]
        assert told["ranks"] == [0] * limits.RUNS_MAX
        with Raw(server).node("one-too-many", "n") as node:
            refused = _limit(node.ask(join(1)))
            assert str(limits.RUNS_MAX) in refused.message
            _limit(node.ask(KvSet(key="k", value=b"")))
        with Raw(server).node("many-0", "second") as node:
            node.good(KvSet(key="k", value=b""), Done)
        assert len(server.runs()) == limits.RUNS_MAX
        assert server.run("one-too-many") is None


@pytest.mark.full
def test_nodes_beyond_their_number_are_refused(cluster: Cluster) -> None:
    """T15: 10,000 of one run."""
    server = cluster.server()
    with Swarm(cluster, server, "large", limits.MEMBERS_PER_RUN_MAX) as swarm:
        swarm.formed()
        with Raw(server).node("large", "one-too-many") as node:
            _limit(node.ask(join(limits.MEMBERS_PER_RUN_MAX)))
        assert server.generation("large") == 1


def test_frames_after_a_refused_hello_open_nothing(cluster: Cluster) -> None:
    """T15: a refused hello leaves a connection that may do nothing."""
    server = cluster.server()
    with Raw(server) as raw:
        raw.hello(LONG, "n")
        for message in (join(1), KvSet(key="k", value=b"")):
            request_id = raw.post(message)
            frame = raw.next()
            assert frame is None or isinstance(frame[1], Error | Goodbye), frame
            if frame is None:
                break
            assert frame[0] in (0, request_id)
    assert not server.runs()
