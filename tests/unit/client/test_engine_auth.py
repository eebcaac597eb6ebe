"""The thread that owns the socket, before servers that demand proof and certificates."""

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from rdzv_client import backoff, dial, reconnect, tls
from rdzv_client.credentials import Credentials
from rdzv_client.endpoint import Endpoint
from rdzv_client.engine import Engine
from rdzv_client.session_events import State
from rdzv_client.tls import DistrustError, Tls
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Authenticate, Error, HelloNode, Join, Joined, KvGet, KvValue
from tests.e2e.kit.wait import until
from tests.unit.client.certificates import NAMES, Authority, digest, server_context
from tests.unit.client.driver import FENCE, HELLO, JOIN
from tests.unit.client.fake_server import PATIENCE_S, FakeServer
from tests.unit.client.inbox import Inbox, engine_to

MASTER = Token(EVERYTHING, b"s" * 32)
OTHER = Token(EVERYTHING, b"o" * 32)
JOINER = MASTER.derive(Grant(Scope.JOIN, "llama"))


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    write(path, JOINER)
    return path


def write(path: Path, token: Token) -> None:
    """As tools that rotate secrets do: the new file takes the old one's name."""
    new = path.with_suffix(".new")
    new.touch(0o600)
    new.write_text(token.text() + "\n")
    os.replace(new, path)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(token=MASTER) as running:
        yield running


@pytest.fixture
def encrypted(ca: Authority) -> Iterator[FakeServer]:
    """TLS, mTLS and a token."""
    leaf = ca.issue(*NAMES)
    with FakeServer(
        token=MASTER, tls=server_context(leaf, ca), certificate=digest(leaf)
    ) as running:
        yield running


def failure(made: Engine) -> Error:
    assert made.wait_connected(PATIENCE_S)
    assert made.session.state is State.OVER
    assert made.session.failure is not None
    return made.session.failure


def test_a_token_opens_the_session(server: FakeServer, token_file: Path) -> None:
    with engine_to(server.address, credentials=Credentials(token_file=str(token_file))) as made:
        inbox = Inbox()
        made.submit(JOIN, inbox)
        assert isinstance(inbox.wait(), Joined)
    (answer,) = server.all(Authenticate)
    assert (answer.scope, answer.run) == ("join", "llama")


def test_a_server_that_does_not_know_the_token_gets_no_request(
    server: FakeServer, token_file: Path
) -> None:
    server.prove = lambda transcript, secret: b"x" * 32
    with engine_to(server.address, credentials=Credentials(token_file=str(token_file))) as made:
        inbox = Inbox()
        made.submit(JOIN, inbox)
        reply = inbox.wait()
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.UNAUTHENTICATED
    assert "could not prove that it knows the token" in reply.message
    assert server.all(Join) == []


def test_a_token_file_is_read_again_at_each_connection(
    server: FakeServer, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with engine_to(server.address, credentials=Credentials(token_file=str(token_file))) as made:
        made.wait_connected(PATIENCE_S)
        server.token = OTHER
        write(token_file, OTHER.derive(Grant(Scope.JOIN)))
        server.peers[-1].cut()
        server.wait_for(Authenticate, 2)
        until(lambda: made.session.connected_now, PATIENCE_S, "connected again")
    first, second = server.all(Authenticate)
    assert (first.key.hex(), first.run) == (MASTER.key, "llama")
    assert (second.key.hex(), second.run) == (OTHER.key, "")


def test_a_token_file_that_is_gone_for_a_moment_costs_attempts_only(
    server: FakeServer,
    token_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(reconnect, "COMPLAIN_S", 0.02)
    with engine_to(server.address, credentials=Credentials(token_file=str(token_file))) as made:
        made.wait_connected(PATIENCE_S)
        token_file.unlink()
        server.peers[-1].cut()

        def told() -> bool:
            return any(f"{token_file}: No such file" in r.getMessage() for r in caplog.records)

        until(told, PATIENCE_S, "the reason is told")
        assert made.session.state is State.SUSPENDED
        write(token_file, JOINER)
        until(lambda: made.session.connected_now, PATIENCE_S, "connected again")


def test_the_first_time_it_must_be_there(server: FakeServer, token_file: Path) -> None:
    token_file.unlink()
    with (
        pytest.raises(ValueError, match="No such file"),
        engine_to(server.address, credentials=Credentials(token_file=str(token_file))),
    ):
        pass
    assert server.peers == []


# --- TLS --------------------------------------------------------------------------------------


def test_proof_and_certificates_go_together(
    encrypted: FakeServer, ca: Authority, token_file: Path
) -> None:
    own = ca.client()
    given = Credentials(str(token_file), own.tls_ca, own.tls_cert, own.tls_key)
    with engine_to(encrypted.address, credentials=given) as made:
        inbox = Inbox()
        made.submit(JOIN, inbox)
        assert isinstance(inbox.wait(), Joined)
        assert made.local_host == made.remote_host == "127.0.0.1"


def test_a_proof_that_somebody_relays_over_a_connection_of_his_own_is_worth_nothing(
    ca: Authority, token_file: Path
) -> None:
    """He has a good certificate, and the server the token: but the proof is for his certificate."""
    his, its = ca.issue(*NAMES), ca.issue(*NAMES)
    with FakeServer(token=MASTER, tls=server_context(his), certificate=digest(its)) as relay:
        given = Credentials(str(token_file), ca.file)
        with engine_to(relay.address, credentials=given) as made:
            assert failure(made).message == "the proof is wrong"


def test_large_messages_pass_in_both_directions_in_pieces(ca: Authority) -> None:
    value = os.urandom(900_000)
    with FakeServer(tls=server_context(ca.issue(*NAMES))) as server:
        server.on(KvGet, lambda ask: KvValue(value=ask.key.encode() + value))
        with engine_to(server.address, credentials=Credentials(tls_ca=ca.file)) as made:
            for name in ("a" * 1000, "b"):
                inbox = Inbox()
                made.submit(KvGet(fence=FENCE, key=name), inbox)
                assert inbox.wait() == KvValue(value=name.encode() + value)


def test_many_threads_write_while_one_reads(ca: Authority) -> None:
    with FakeServer(tls=server_context(ca.issue(*NAMES))) as server:
        server.on(KvGet, lambda ask: KvValue(value=ask.key.encode() * 100))
        with engine_to(server.address, credentials=Credentials(tls_ca=ca.file)) as made:
            inboxes = {f"{i}-{j}": Inbox() for i in range(4) for j in range(50)}

            def ask(thread: int) -> None:
                for number in range(50):
                    key = f"{thread}-{number}"
                    made.submit(KvGet(fence=FENCE, key=key), inboxes[key])

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all(i.wait() == KvValue(value=k.encode() * 100) for k, i in inboxes.items())
        assert len(server.peers) == 1


def test_a_broken_tls_connection_is_replaced(ca: Authority) -> None:
    with FakeServer(tls=server_context(ca.issue(*NAMES))) as server:
        server.on(Join, None)
        with engine_to(server.address, credentials=Credentials(tls_ca=ca.file)) as made:
            inbox = Inbox()
            made.submit(JOIN, inbox)
            server.wait_for(Join)
            server.peers[-1].cut()
            server.wait_for(Join, 2)


def test_closing_says_so_and_waits_for_nobody(ca: Authority) -> None:
    context = server_context(ca.issue(*NAMES))
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.settimeout(PATIENCE_S)
        where = f"127.0.0.1:{listener.getsockname()[1]}"
        with engine_to(where, credentials=Credentials(tls_ca=ca.file)):
            sock, _ = listener.accept()
            sock.settimeout(PATIENCE_S)
            spoken = context.wrap_socket(sock, server_side=True, suppress_ragged_eofs=False)
            until(lambda: HELLO.node_id.encode() in spoken.recv(10_000), PATIENCE_S, "the hello")
        with closing(spoken):  # the engine has ended, though this side never answered
            assert spoken.recv(100) == b"", "an end that nobody can forge, not a cut"


@pytest.mark.parametrize("kind", ["authority", "name", "expired", "no own", "wrong own"])
def test_a_certificate_that_is_refused_ends_the_first_contact_at_once(
    ca: Authority, tmp_path: Path, kind: str
) -> None:
    other = Authority(tmp_path, "other")
    strange = other.client()
    leaf = (
        ca.issue("elsewhere.example")
        if kind == "name"
        else ca.issue(*NAMES, valid=kind != "expired")
    )
    clients = ca if "own" in kind else None
    given = {
        "authority": Credentials(tls_ca=other.file),
        "wrong own": Credentials("", ca.file, strange.tls_cert, strange.tls_key),
    }.get(kind, Credentials(tls_ca=ca.file))
    words = {
        "authority": f"comes from an authority that is not in {other.file}",
        "name": "is not for '127.0.0.1'",
        "expired": "the server's certificate has expired",
        "no own": "the server requires a client certificate",
        "wrong own": "does not know the authority of this client's certificate",
    }
    with (
        FakeServer(tls=server_context(leaf, clients)) as server,
        engine_to(server.address, credentials=given) as made,
    ):
        why = failure(made)
    assert why.code == ErrorCode.UNAUTHENTICATED
    assert server.address in why.message or "own" in kind
    assert words[kind] in why.message
    assert why.action == tls.ACTION


def test_after_the_first_contact_a_refused_certificate_is_tried_again(
    ca: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reconnect, "COMPLAIN_S", 0.02)
    good = server_context(ca.issue(*NAMES))
    with (
        FakeServer(tls=good) as server,
        engine_to(server.address, credentials=Credentials(tls_ca=ca.file)) as made,
    ):
        made.wait_connected(PATIENCE_S)
        server.tls = server_context(ca.issue(*NAMES, valid=False))
        server.peers[-1].cut()

        def told() -> bool:
            return any("certificate has expired" in r.getMessage() for r in caplog.records)

        until(told, PATIENCE_S, "the reason is told")
        assert made.session.state is State.SUSPENDED
        server.tls = good
        until(lambda: made.session.connected_now, PATIENCE_S, "connected again")


def test_a_plain_client_of_a_tls_server_is_told_what_may_be_wrong(ca: Authority) -> None:
    with FakeServer(tls=server_context(ca.issue(*NAMES))) as server:
        with engine_to(server.address, connect_timeout_s=0.3) as made:
            message = failure(made).message
        assert server.all(HelloNode) == []
    assert "does it want TLS (tls_ca)?" in message or "speaks TLS" in message


def test_a_server_that_hangs_up_on_a_plain_client_may_want_tls() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    sock.recv(10_000)
                    sock.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with engine_to(f"127.0.0.1:{listener.getsockname()[1]}", connect_timeout_s=0.2) as made:
            message = failure(made).message
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    words = "the server closed the connection during the hello; does it want TLS (tls_ca)?"
    assert message.endswith(words)


def test_a_tls_client_of_a_plain_server_is_told_what_may_be_wrong(ca: Authority) -> None:
    def refuse(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                sock, _ = listener.accept()
                sock.recv(10_000)
                sock.close()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=refuse, args=(listener,))
        thread.start()
        where = f"127.0.0.1:{listener.getsockname()[1]}"
        given = Credentials(tls_ca=ca.file)
        with engine_to(where, connect_timeout_s=0.2, credentials=given) as made:
            message = failure(made).message
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert (
        "closed the connection during the TLS handshake: if it runs without --tls-cert" in message
    )


# --- connecting -------------------------------------------------------------------------------


def test_a_handshake_that_gets_no_answer_has_a_patience_of_its_own(
    ca: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "HANDSHAKE_S", 0.05)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        to = Endpoint("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(TimeoutError, match=r"no answer to the TLS handshake within 0\.05 s"):
            dial.connect(to, PATIENCE_S, Tls(Credentials(tls_ca=ca.file)))


def test_a_refused_certificate_is_not_hidden_by_the_next_address(
    ca: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeServer(tls=server_context(ca.issue("elsewhere.example"))) as server:
        monkeypatch.setattr(
            socket,
            "getaddrinfo",
            lambda host, port, **more: [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", to))
                for to in (server.port, 1)
            ],
        )
        with pytest.raises(DistrustError):
            dial.connect(Endpoint("a.example", 1), PATIENCE_S, Tls(Credentials(tls_ca=ca.file)))


def test_a_host_that_is_no_name_fails_the_attempt_and_not_the_thread(ca: Authority) -> None:
    with engine_to("..:1", connect_timeout_s=0.1) as made:
        assert "idna" in failure(made).message


def test_a_tls_connection_blocks_nobody(ca: Authority) -> None:
    with FakeServer(tls=server_context(ca.issue(*NAMES))) as server:
        to = Endpoint("127.0.0.1", server.port)
        with closing(dial.connect(to, PATIENCE_S, Tls(Credentials(tls_ca=ca.file)))) as sock:
            assert isinstance(sock, ssl.SSLSocket)
            assert not sock.getblocking()
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
