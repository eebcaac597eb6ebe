"""The client for ordinary code, against a server in this process."""

from collections.abc import Iterator
from typing import Any

import pytest

from rdzv_client.blocking import Client
from rdzv_client.errors import (
    ConnectionLost,
    GenerationEnded,
    JoinTimeout,
    RequestTimeout,
    RunClosed,
    Unauthenticated,
    WaitTimeout,
)
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Address,
    CloseRun,
    Ended,
    Error,
    Fence,
    Finished,
    Goodbye,
    Heartbeat,
    HelloNode,
    Join,
    Joined,
    KvGet,
    KvWait,
    Leave,
    MemberStatus,
    View,
    ViewChanged,
)
from tests.e2e.kit.wait import until
from tests.unit.client.fake_server import FENCE, PATIENCE_S, FakeServer, joined


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    made = Client(server.address, run="llama", min_nodes=2, node_id="node-1", name="node-1")
    yield made
    made.close()


def test_a_join_returns_the_generation(server: FakeServer, client: Client) -> None:
    g = client.join(timeout=5, address=Address(host="10.0.0.1", port=7))
    assert (g.rank, g.world_size, g.number, g.fence) == (0, 2, 1, FENCE)
    assert client.generation is g
    ask = server.wait_for(Join)
    assert ask.last is None
    assert ask.address == Address(host="10.0.0.1", port=7)
    assert (ask.policy.min_nodes, ask.policy.join_timeout_ms) == (2, 5000)
    assert server.wait_for(HelloNode).node_id == "node-1"


def test_the_next_join_names_the_generation_the_node_comes_from(
    server: FakeServer, client: Client
) -> None:
    client.join()
    server.on(Join, lambda m: joined(Fence(7, 2)))
    assert client.join().number == 2
    assert [ask.last for ask in server.all(Join)] == [None, FENCE]


def test_a_refused_join_says_which_server_refused_it(server: FakeServer, client: Client) -> None:
    server.on(Join, lambda m: Error(code=ErrorCode.RUN_CLOSED, message="closed by bob"))
    with pytest.raises(RunClosed) as caught:
        client.join()
    expected = f"closed by bob (server {server.address}, instance fake)"
    assert caught.value.message == expected
    assert client.generation is None


def test_a_join_timeout_is_a_timeout_error(server: FakeServer, client: Client) -> None:
    server.on(Join, lambda m: Error(code=ErrorCode.JOIN_TIMEOUT, message="1 of min 2"))
    with pytest.raises(TimeoutError) as caught:
        client.join()
    assert isinstance(caught.value, JoinTimeout)


def test_keys_of_the_generation(server: FakeServer, client: Client) -> None:
    kv = client.join().kv
    kv.set("a", "text")
    kv.multi_set(["b", "c"], [b"1", "2"])
    assert kv.get("a") == b"text"
    assert kv.multi_get(["c", "b"]) == [b"2", b"1"]
    kv.wait(["a", "b"], timeout=2)
    assert server.wait_for(KvWait).timeout_ms == 2000
    assert [kv.add("n"), kv.add("n", 5), kv.add("n", -1)] == [1, 6, 5]


def test_a_key_that_does_not_come_is_a_wait_timeout(server: FakeServer, client: Client) -> None:
    server.on(KvGet, lambda m: Error(code=ErrorCode.WAIT_TIMEOUT, message=f"{m.key} is missing"))
    with pytest.raises(WaitTimeout, match="k is missing"):
        client.join().kv.get("k", timeout=0)


def test_keys_of_a_generation_that_ended_say_so(server: FakeServer, client: Client) -> None:
    g = client.join()
    server.on(KvGet, lambda m: Error(code=ErrorCode.STALE_GENERATION, message="b was lost"))
    with pytest.raises(GenerationEnded, match="b was lost"):
        g.kv.get("k")


def test_no_answer_in_time_is_a_request_timeout_that_names_request_and_server(
    server: FakeServer, client: Client
) -> None:
    server.on(Leave, None)
    with pytest.raises(RequestTimeout) as caught:
        client.leave(timeout=0.05)
    assert caught.value.message == f"leave: no answer from {server.address} for 0.05 s"


def test_members_are_asked_for_page_by_page(server: FakeServer, client: Client) -> None:
    server.members = [
        MemberStatus(node_id=f"n{i}-1", name=f"n{i}", state="participant", group_rank=i)
        for i in range(7)
    ] + [MemberStatus(node_id="s-1", name="s", state="standby")]
    server.page_rows = 3
    members = client.join().members
    assert [(m.rank, m.name) for m in members] == [(i, f"n{i}") for i in range(7)]


def test_a_push_ends_the_generation_with_its_reason(server: FakeServer, client: Client) -> None:
    g = client.join()
    assert not g.ended
    ended = Ended(kind="lost", reason="node b was lost")
    server.push(ViewChanged(view=View(fence=FENCE, waiting=1, ended=ended)))
    assert g.ended.wait(PATIENCE_S)
    assert (g.ended.kind, g.ended.reason, g.waiting) == ("lost", "node b was lost", 1)


def test_an_end_that_came_before_the_assignment_is_seen_at_once(
    server: FakeServer, client: Client
) -> None:
    def push_first(ask: Join) -> Joined:
        ended = View(fence=FENCE, waiting=1, ended=Ended(kind="lost", reason="b"))
        server.push(ViewChanged(view=ended))
        return joined()

    server.on(Join, push_first)
    assert client.join().ended.kind == "lost"


def test_finished_leave_and_close_run_are_told_to_the_server(
    server: FakeServer, client: Client
) -> None:
    client.finished()
    assert server.all(Finished) == [], "there is no generation to finish yet"
    client.join()
    client.finished()
    assert server.wait_for(Finished) == Finished(fence=FENCE)
    client.leave("failed", "worker\n3", exit_code=7)
    assert server.wait_for(Leave) == Leave(kind="failed", detail="worker 3", exit_code=7)
    client.close_run("enough")
    assert server.wait_for(CloseRun) == CloseRun(run="llama", detail="enough")


def test_connect_waits_for_the_welcome_only(server: FakeServer, client: Client) -> None:
    client.connect()
    assert client.engine.session.connected_now
    assert server.all(Join) == []


def test_connect_raises_what_the_server_refused_with(server: FakeServer) -> None:
    server.on(HelloNode, lambda m: Error(code=ErrorCode.UNAUTHENTICATED, message="no token"))
    client = Client(server.address, run="llama")
    try:
        with pytest.raises(Unauthenticated, match="no token"):
            client.connect()
    finally:
        client.close()


@pytest.mark.parametrize(
    ("raised", "kind", "detail"),
    [
        (None, "finished", ""),
        (ValueError("bad\nthing"), "failed", "ValueError: bad thing"),
        (KeyboardInterrupt(), "drained", "KeyboardInterrupt"),
        (SystemExit(3), "drained", "SystemExit"),
    ],
)
def test_leaving_the_with_block_says_why(
    server: FakeServer, raised: BaseException | None, kind: Any, detail: str
) -> None:
    def use() -> None:
        with Client(server.address, run="llama") as client:
            client.join()
            if raised is not None:
                raise raised

    if raised is None:
        use()
    else:
        with pytest.raises(type(raised)):
            use()
    assert server.wait_for(Leave) == Leave(kind=kind, detail=detail)
    assert server.peers[-1].gone.wait(PATIENCE_S), "and the connection is closed"


def test_an_error_in_the_block_is_not_hidden_by_a_server_that_is_gone(server: FakeServer) -> None:
    options = {"connect_timeout_s": 5.0, "reconnect_timeout_s": 0.2}

    def use() -> None:
        with Client(server.address, run="llama", **options) as client:
            client.join()
            server.stop_listening()
            server.peers[-1].cut()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()


def test_a_finished_block_fails_if_the_server_could_not_be_told(server: FakeServer) -> None:
    def use() -> None:
        with Client(server.address, run="llama", reconnect_timeout_s=0.2) as client:
            client.join()
            server.stop_listening()
            server.peers[-1].cut()

    with pytest.raises(ConnectionLost):
        use()


def test_a_blocked_main_thread_keeps_its_lease() -> None:
    with FakeServer(lease_ms=300) as server:
        client = Client(server.address, run="llama")
        client.join()
        until(lambda: len(server.all(Heartbeat)) >= 4, PATIENCE_S, "heartbeats")
        assert len(server.peers) == 1
        client.close()


def test_a_key_too_large_for_a_frame_is_refused_without_asking(
    server: FakeServer, client: Client
) -> None:
    kv = client.join().kv
    with pytest.raises(ValueError, match="exceed the limit"):
        kv.set("k", bytes(3 << 20))
    kv.set("k", b"the connection is fine")
    assert len(server.peers) == 1


def test_a_wrong_option_is_refused_before_anything_is_started() -> None:
    with pytest.raises(ValueError, match="min_nodes"):
        Client("host", run="llama", min_nodes=3, max_nodes=2)
    with pytest.raises(ValueError, match="IPv6"):
        Client("::1:29500", run="llama")
    with pytest.raises(TypeError, match="nodes_min"):
        Client("host", run="llama", nodes_min=2)


def test_a_fenced_client_says_so_for_ever(server: FakeServer, client: Client) -> None:
    g = client.join()
    server.push(Goodbye(code=ErrorCode.FENCED, message="a newer process came"))
    assert g.ended.wait(PATIENCE_S)
    assert g.ended.kind == "fenced"
    for _ in range(2):
        with pytest.raises(Exception, match="a newer process came") as caught:
            g.kv.get("k")
        assert "RDZV-E006" in str(caught.value)
