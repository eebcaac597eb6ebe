"""The rendezvous handler, driven the way torch's agent drives it, against a server here."""

import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from rdzv_proto.auth import EVERYTHING, Token
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Address,
    CloseRun,
    Ended,
    Error,
    Fence,
    HelloNode,
    Join,
    Joined,
    Leave,
    View,
    ViewChanged,
    Welcome,
)
from tests.e2e.kit.wait import until
from tests.unit.client.fake_server import FENCE, PATIENCE_S, FakeServer, joined
from tests.unit.client.inbox import signal_in_join
from tests.unit.client.torch.agent import create, rank_0_server, with_master

if TYPE_CHECKING:
    from rdzv_client.torch.handler import RdzvHandler

pytestmark = pytest.mark.torch


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with rank_0_server(monkeypatch) as running:
        yield running


@pytest.fixture
def handler(server: FakeServer) -> Iterator["RdzvHandler"]:
    made = create(server)
    yield made
    made.shutdown()


def test_a_rendezvous_gives_rank_world_store_and_master(
    server: FakeServer, handler: "RdzvHandler"
) -> None:
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 2)
    info.store.set("a", b"1")
    assert info.store.get("a") == b"1"
    address = server.wait_for(Join).address
    assert address == Address(host="127.0.0.1", port=address.port)
    assert info.bootstrap_store_info.master_addr == "127.0.0.1"
    assert info.bootstrap_store_info.master_port == address.port


def test_another_rank_gets_the_address_of_rank_0(
    server: FakeServer, handler: "RdzvHandler"
) -> None:
    def as_rank_1(ask: Join) -> Joined:
        return replace(joined(rank=1), master=Address(host="10.0.0.1", port=4321))

    server.on(Join, as_rank_1)
    info = handler.next_rendezvous()
    master = info.bootstrap_store_info
    assert (info.rank, master.master_addr, master.master_port) == (1, "10.0.0.1", 4321)


def test_the_handler_says_who_it_is(handler: "RdzvHandler") -> None:
    assert handler.get_backend() == "rdzv"
    assert handler.get_run_id() == "llama"
    assert handler.use_agent_store is False


def test_a_local_address_that_was_given_is_passed_on_as_it_is(server: FakeServer) -> None:
    handler = create(server, local_addr="node-1.example")
    handler.next_rendezvous()
    address = server.wait_for(Join).address
    assert (address.host, address.explicit) == ("node-1.example", True)
    handler.shutdown()


def test_every_generation_has_a_port_of_its_own_and_the_old_one_is_freed(
    server: FakeServer, handler: "RdzvHandler"
) -> None:
    first = handler.next_rendezvous().bootstrap_store_info.master_port
    with pytest.raises(OSError):
        bind(first)
    server.on(Join, lambda ask: with_master(ask, Fence(7, 2)))
    second = handler.next_rendezvous().bootstrap_store_info.master_port
    assert second != first
    bind(first)
    with pytest.raises(OSError):
        bind(second)


def bind(port: int) -> None:
    with closing(socket.socket()) as sock:
        sock.bind(("", port))


def test_the_settings_reach_the_server(server: FakeServer) -> None:
    handler = create(server, join_timeout="45", rank="1", keep_alive_interval="2", node_id="n")
    handler.next_rendezvous()
    ask, hello = server.wait_for(Join), server.wait_for(HelloNode)
    assert (ask.policy.join_timeout_ms, ask.rank_hint) == (45_000, 1)
    assert (ask.policy.min_nodes, ask.policy.max_nodes) == (1, 2)
    assert (hello.lease_ms, hello.node_id) == (6000, "n")
    handler.shutdown()


def test_settings_without_effect_and_the_default_port_are_said(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rdzv")
    create(server, endpoint="127.0.0.1", is_host="1").shutdown()
    assert "is_host belongs to the c10d backend" in caplog.text
    assert "rendezvous at 127.0.0.1:29500 (no port given: the default is used)" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"endpoint": ""}, "--rdzv-endpoint is missing"),
        ({"endpoint": "::1:29500"}, "[::1]:29500"),
        ({"join_timout": "1"}, "did you mean 'join_timeout'"),
        ({"join_timeout": "soon"}, "join_timeout=soon"),
        ({"node_unit": "3"}, "node_unit"),
    ],
)
def test_a_wrong_setting_is_a_value_error_that_names_it(
    server: FakeServer, settings: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError) as caught:
        create(server, **settings)
    assert words in str(caught.value)
    assert server.peers == [], "nothing was started"


def test_the_endpoint_may_come_from_the_environment(server: FakeServer) -> None:
    os.environ["RDZV_ENDPOINT"] = server.address
    handler = create(server, endpoint="")
    assert handler.next_rendezvous().rank == 0
    handler.shutdown()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.RUN_CLOSED, "RendezvousClosedError"),
        (ErrorCode.RUN_FAILED, "RendezvousClosedError"),
        (ErrorCode.JOIN_TIMEOUT, "RendezvousTimeoutError"),
        (ErrorCode.POLICY_MISMATCH, "RendezvousStateError"),
        (ErrorCode.SHUTTING_DOWN, "RendezvousConnectionError"),
    ],
)
def test_a_refusal_is_one_of_torchs_errors_with_our_words(
    server: FakeServer, handler: "RdzvHandler", code: ErrorCode, kind: str
) -> None:
    from torch.distributed.elastic import rendezvous

    server.on(Join, lambda m: Error(code=code, message="node b said no", action="Ask b."))
    with pytest.raises(rendezvous.RendezvousError) as caught:
        handler.next_rendezvous()
    assert type(caught.value).__name__ == kind
    assert "node b said no" in str(caught.value)
    assert "Ask b." in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_an_unreachable_server_is_a_connection_error_after_connect_timeout(
    server: FakeServer,
) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    server.stop_listening()
    handler = create(server, connect_timeout="0.2")
    with pytest.raises(RendezvousConnectionError, match="cannot reach rdzv-server at"):
        handler.next_rendezvous()
    handler.shutdown()


def test_a_standby_ends_well_when_the_run_finished_without_it(
    server: FakeServer, handler: "RdzvHandler"
) -> None:
    server.on(Join, lambda m: Error(code=ErrorCode.RUN_FINISHED, message="all 2 nodes finished"))
    with pytest.raises(SystemExit) as caught:
        handler.next_rendezvous()
    assert caught.value.code == 0


def test_the_waiting_count_is_kept_current_by_pushes(
    server: FakeServer, handler: "RdzvHandler"
) -> None:
    handler.next_rendezvous()
    assert handler.num_nodes_waiting() == 0
    server.push(ViewChanged(view=View(fence=FENCE, waiting=2)))
    until(lambda: handler.num_nodes_waiting() == 2, PATIENCE_S, "the waiting count")
    assert not handler.is_closed()
    ended = Ended(kind="closed", reason="closed by bob")
    server.push(ViewChanged(view=View(fence=FENCE, waiting=1, ended=ended)))
    until(handler.is_closed, PATIENCE_S, "the end")


def test_a_server_that_is_gone_for_good_makes_the_agent_rendezvous_again(
    server: FakeServer,
) -> None:
    handler = create(server, reconnect_timeout="0.2")
    handler.next_rendezvous()
    server.stop_listening()
    server.peers[-1].cut()
    until(lambda: handler.num_nodes_waiting() > 0, PATIENCE_S, "the waiting count")
    handler.shutdown()


def test_sigterm_in_the_rendezvous_leaves_and_then_ends_the_process(
    server: FakeServer, handler: "RdzvHandler", monkeypatch: pytest.MonkeyPatch
) -> None:
    from rdzv_client.torch.signals import Terminated

    died: list[bool] = []
    monkeypatch.setattr(Terminated, "die", lambda self: died.append(bool(server.all(Leave))))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal_in_join(monkeypatch, server, signal.SIGTERM)
    try:
        with pytest.raises(Terminated):
            handler.next_rendezvous()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert died == [True], "the server is told first"
    leave = server.all(Leave)[0]
    assert (leave.kind, leave.detail) == ("drained", "SIGTERM while waiting for the rendezvous")


def test_another_signal_in_the_rendezvous_leaves_too(
    server: FakeServer, handler: "RdzvHandler", monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch turns signals into exceptions once it has installed its handlers."""
    signal_in_join(monkeypatch, server, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        handler.next_rendezvous()
    assert {leave.kind for leave in server.all(Leave)} == {"drained"}


def test_the_run_can_be_closed_for_everybody(server: FakeServer, handler: "RdzvHandler") -> None:
    handler.next_rendezvous()
    handler.set_closed()
    assert server.wait_for(CloseRun).run == "llama"


def test_an_address_that_the_server_sees_differently_is_warned_of_once(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    def behind_nat(hello: HelloNode) -> Welcome:
        return replace(server.welcome(hello), observed_host="203.0.113.9")

    server.on(HelloNode, behind_nat)
    made = create(server)
    for number in (1, 2):
        server.on(Join, lambda ask, number=number: with_master(ask, Fence(7, number)))  # type: ignore[misc]
        made.next_rendezvous()
    made.shutdown()
    lines = [r.getMessage() for r in caplog.records if "203.0.113.9" in r.getMessage()]
    assert len(lines) == 1
    assert "--local-addr" in lines[0]


def test_a_token_is_given_with_the_conf_and_a_refused_one_is_one_clear_line(
    server: FakeServer, tmp_path: Path
) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(Token(EVERYTHING, b"s" * 32).text())
    server.token = Token(EVERYTHING, b"s" * 32)
    handler = create(server, token_file=str(path))
    try:
        assert handler.next_rendezvous().world_size == 2
    finally:
        handler.shutdown()
    server.token = Token(EVERYTHING, b"o" * 32)
    handler = create(server, token_file=str(path))
    try:
        with pytest.raises(RendezvousConnectionError, match="the proof is wrong") as refused:
            handler.next_rendezvous()
    finally:
        handler.shutdown()
    assert "--rdzv-conf=token_file=FILE" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_token_file_that_cannot_be_used_is_a_value_error_at_once(
    server: FakeServer, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"token file .*none: No such file"):
        create(server, token_file=str(tmp_path / "none"))
    assert server.peers == []
