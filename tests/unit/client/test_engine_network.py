"""The thread that owns the socket: names, addresses, broken connections and foreign servers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from rdzv_client import backoff, reconnect
from rdzv_client.endpoint import Endpoint
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Done, Error, Goodbye, Heartbeat, HelloNode, Join
from tests.ports import free_port
from tests.unit.client.driver import JOIN
from tests.unit.client.fake_server import PATIENCE_S, FakeServer
from tests.unit.client.inbox import Inbox, engine_to


def test_a_broken_connection_is_replaced_and_pending_requests_are_asked_again(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.on(Join, None)
    with engine_to(server.address) as made:
        inbox = Inbox()
        request_id = made.submit(JOIN, inbox)
        server.wait_for(Join)
        server.peers[-1].cut()
        server.wait_for(Join, 2)
        hello = server.wait_for(HelloNode, 2)
        assert server.ids(Join) == [request_id, request_id]
        assert (hello.attempt, hello.resume is not None) == (2, True)
        server.peers[-1].send(request_id, Done())
        assert inbox.wait() == Done()
    lines = [record.getMessage() for record in caplog.records]
    where = server.address
    assert f"rdzv[llama] connection to {where} lost: the server closed the connection" in lines
    assert any(line.startswith(f"rdzv[llama] connection to {where} restored") for line in lines)


def test_a_reset_connection_is_replaced_too(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    with engine_to(server.address) as made:
        made.wait_connected(PATIENCE_S)
        server.peers[-1].reset()
        server.wait_for(HelloNode, 2)
    line = f"rdzv[llama] connection to {server.address} lost: Connection reset by peer"
    assert line in [record.getMessage() for record in caplog.records]


def test_servers_are_tried_in_turn(server: FakeServer) -> None:
    with engine_to(f"127.0.0.1:{free_port()}", server.address) as made:
        assert made.wait_connected(PATIENCE_S)
        assert made.session.connected_now
        assert made.session.where.endswith(server.address)


def test_a_server_that_stands_by_is_left_for_the_one_that_leads(server: FakeServer) -> None:
    with FakeServer() as second:
        bye = Goodbye(code=ErrorCode.NOT_LEADER, message="it stands by", leader=server.address)
        second.on(HelloNode, lambda hello: second.push(bye))
        with engine_to(second.address) as made:
            assert made.wait_connected(PATIENCE_S)
            assert made.session.connected_now
            assert len(second.all(HelloNode)) == 1
            server.peers[-1].cut()
            server.wait_for(HelloNode, 2)
            assert len(second.all(HelloNode)) == 1, "the leader is asked first when contact breaks"


def test_a_leader_that_is_stopped_keeps_nobody_from_its_successor(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnect, "HELLO_S", 10 * PATIENCE_S)
    server.lease_ms = 300
    with FakeServer() as second:
        bye = Goodbye(code=ErrorCode.NOT_LEADER, message="it stands by", leader=server.address)
        second.on(HelloNode, lambda hello: second.push(bye))
        with engine_to(server.address, second.address) as made:
            assert made.wait_connected(PATIENCE_S)
            for kind in (HelloNode, Heartbeat):  # it is stopped, and the other one does not know
                server.on(kind, None)
            second.wait_for(HelloNode)
            server.wait_for(HelloNode, 2)
            second.wait_for(HelloNode, 2)


def test_nobody_there_ends_with_the_endpoint_and_the_reason(server: FakeServer) -> None:
    where = f"127.0.0.1:{free_port()}"
    with engine_to(where, connect_timeout_s=0.2) as made:
        inbox = Inbox()
        made.submit(JOIN, inbox)
        reply = inbox.wait()
        assert isinstance(reply, Error)
        assert f"cannot reach rdzv-server at {where} for 0." in reply.message
        assert reply.message.endswith(f"last error: {where}: Connection refused")
        assert made.wait_connected(0), "nobody waits for it any more"


def test_a_name_that_does_not_resolve_is_tried_again_until_it_does(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reconnect, "COMPLAIN_S", 0.02)
    resolve, lookups = socket.getaddrinfo, []

    def getaddrinfo(host: str, port: int, **more: int) -> object:
        lookups.append(host)
        if not caplog.records:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve("127.0.0.1", port, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with engine_to(f"rdzv.example:{server.port}") as made:
        made.wait_connected(PATIENCE_S)
        assert made.session.connected_now
    assert len(lookups) >= 2
    assert set(lookups) == {"rdzv.example"}
    line = caplog.records[0].getMessage()
    assert f"server rdzv.example:{server.port} not reachable for" in line
    assert "giving up after 10 s" in line
    assert "name lookup failed: Temporary failure in name resolution" in line


@contextmanager
def black_hole() -> Iterator[int]:
    """A port whose kernel answers no more SYNs: its queue is full."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            with suppress(BlockingIOError):
                filler.connect(listener.getsockname())
        try:
            yield listener.getsockname()[1]
        finally:
            for filler in fillers:
                filler.close()


def test_an_address_that_swallows_packets_does_not_hide_one_that_answers(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "CONNECT_S", 0.2)
    with black_hole() as hole:
        monkeypatch.setattr(
            socket,
            "getaddrinfo",
            lambda host, port, **more: [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", to))
                for to in (hole, server.port)
            ],
        )
        with engine_to("rdzv.example", connect_timeout_s=1.0) as made:
            made.wait_connected(PATIENCE_S)
            assert made.session.connected_now


def test_an_address_that_refuses_does_not_hide_one_that_answers(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = free_port()
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, port, **more: [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", to))
            for to in (dead, server.port)
        ],
    )
    with engine_to("rdzv.example") as made:
        made.wait_connected(PATIENCE_S)
        assert made.session.connected_now
        assert len(server.all(HelloNode)) == 1


def test_a_peer_that_is_no_rdzv_server_is_named_as_such() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        threading.Thread(target=answer_http, args=(listener,), daemon=True).start()
        with engine_to(f"127.0.0.1:{port}", connect_timeout_s=0.3) as made:
            inbox = Inbox()
            made.submit(JOIN, inbox)
            reply = inbox.wait()
            assert isinstance(reply, Error)
            assert "does not speak the rdzv protocol" in reply.message
        listener.shutdown(socket.SHUT_RDWR)


def answer_http(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            sock, _ = listener.accept()
            with closing(sock):
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
                while sock.recv(4096):
                    pass


def test_an_endpoint_with_a_zone_or_brackets_is_connected_to_as_a_host() -> None:
    assert str(Endpoint("::1", 5)) == "[::1]:5"
    with (
        closing(socket.create_server(("::1", 0), family=socket.AF_INET6)) as listener,
        engine_to(f"[::1]:{listener.getsockname()[1]}"),
    ):
        listener.settimeout(PATIENCE_S)
        sock, _ = listener.accept()
        sock.close()
