"""TLS: files, handshakes with a real server, and what went wrong in words."""

import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from rdzv_client.credentials import Credentials
from rdzv_client.tls import DistrustError, Tls, context
from tests.unit.client.certificates import NAMES, Authority, server_context
from tests.unit.client.fake_server import PATIENCE_S


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "other")


@contextmanager
def serving(talk: Callable[[socket.socket], object]) -> Iterator[socket.socket]:
    """A connected socket whose other end is talked to on a thread."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.settimeout(PATIENCE_S)
        near = socket.create_connection(listener.getsockname(), PATIENCE_S)
        far, _ = listener.accept()
        far.settimeout(PATIENCE_S)

        def serve() -> None:
            with suppress(OSError), closing(far):
                talk(far)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield near
        finally:
            near.close()
            thread.join(PATIENCE_S)


def echo(made: ssl.SSLContext) -> Callable[[socket.socket], object]:
    def talk(sock: socket.socket) -> None:
        with made.wrap_socket(sock, server_side=True) as spoken:
            spoken.sendall(spoken.recv(100))
            spoken.recv(100)

    return talk


def outcome(credentials: Credentials, made: ssl.SSLContext, host: str = "localhost") -> str:
    """What a handshake and the first read come to."""
    with serving(echo(made)) as sock:
        tls = Tls(credentials)
        try:
            with tls.handshake(sock, host) as spoken:
                try:
                    with suppress(OSError):  # as an engine does: the read side knows why
                        spoken.sendall(b"hello")
                    return spoken.recv(100).decode()
                except ssl.SSLError as error:
                    raise tls.explained(error) from None
        except DistrustError as error:
            return f"distrust: {error.strerror}"
        except OSError as error:
            return str(error.strerror)


@pytest.mark.parametrize("host", NAMES)
def test_a_server_whose_certificate_is_good_is_talked_to(ca: Authority, host: str) -> None:
    made = server_context(ca.issue(*NAMES))
    assert outcome(Credentials(tls_ca=ca.file), made, host) == "hello"


def test_only_tls_1_3_with_checks_of_certificate_and_name(ca: Authority) -> None:
    made = context(Credentials(tls_ca=ca.file))
    assert made.minimum_version is ssl.TLSVersion.TLSv1_3
    assert made.verify_mode is ssl.CERT_REQUIRED
    assert made.check_hostname


def test_the_system_has_authorities_of_its_own(
    ca: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = server_context(ca.issue(*NAMES))
    words = "distrust: the server's certificate comes from an authority that is not in the system's"
    assert outcome(Credentials(tls_ca="system"), made).startswith(words)
    monkeypatch.setenv("SSL_CERT_FILE", ca.file)
    assert outcome(Credentials(tls_ca="system"), made) == "hello"


def test_an_authority_that_is_not_known_is_not_trusted(ca: Authority, other: Authority) -> None:
    made = server_context(ca.issue(*NAMES))
    assert outcome(Credentials(tls_ca=other.file), made) == (
        "distrust: the server's certificate comes from an authority that is not in "
        f"{other.file} (tls_ca)"
    )


def test_an_expired_certificate_is_not_trusted(ca: Authority) -> None:
    made = server_context(ca.issue(*NAMES, valid=False))
    found = outcome(Credentials(tls_ca=ca.file), made)
    assert found == "distrust: the server's certificate has expired"


@pytest.mark.parametrize("host", ["elsewhere.example", "10.0.0.1"])
def test_a_certificate_for_another_name_is_not_trusted(ca: Authority, host: str) -> None:
    made = server_context(ca.issue(*NAMES))
    found = outcome(Credentials(tls_ca=ca.file), made, host)
    assert f"distrust: the server's certificate is not for '{host}'" in found
    assert "tls_server_name" in found


def test_another_name_can_be_asked_for(ca: Authority) -> None:
    made = server_context(ca.issue("rdzv.example"))
    given = Credentials(tls_ca=ca.file, tls_server_name="rdzv.example")
    assert outcome(given, made, "10.0.0.1") == "hello"


def test_the_zone_of_an_address_is_not_part_of_its_name(ca: Authority) -> None:
    made = server_context(ca.issue("fe80::1"))
    assert outcome(Credentials(tls_ca=ca.file), made, "fe80::1%eth0") == "hello"


def test_a_self_signed_certificate_is_trusted_only_if_it_is_named(
    ca: Authority, tmp_path: Path
) -> None:
    cert, key = tmp_path / "self.cert", tmp_path / "self.key"
    self_signed(cert, key)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(cert, key)
    assert "distrust: the server's certificate is self-signed" in outcome(
        Credentials(tls_ca=ca.file), made
    )
    assert outcome(Credentials(tls_ca=str(cert)), made) == "hello"


def self_signed(cert: Path, key: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from tests.unit.client.certificates import DAY, NOW

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "self")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(private, hashes.SHA256())
    )
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


# --- the client's own certificate -------------------------------------------------------------


def test_a_client_with_a_certificate_is_let_in(ca: Authority) -> None:
    assert outcome(ca.client(), server_context(ca.issue(*NAMES), ca)) == "hello"


def test_a_client_without_one_is_told_so(ca: Authority) -> None:
    found = outcome(Credentials(tls_ca=ca.file), server_context(ca.issue(*NAMES), ca))
    assert found == "distrust: the server requires a client certificate (tls_cert, tls_key)"


def test_a_clients_certificate_of_another_authority_is_told_so(
    ca: Authority, other: Authority
) -> None:
    cert, key = other.files("node-1@example.com")
    given = Credentials(tls_ca=ca.file, tls_cert=cert, tls_key=key)
    found = outcome(given, server_context(ca.issue(*NAMES), ca))
    assert found == (
        f"distrust: the server does not know the authority of this client's certificate {cert}"
    )


def test_a_clients_certificate_that_has_expired_is_told_so(ca: Authority) -> None:
    given = ca.client(valid=False)
    found = outcome(given, server_context(ca.issue(*NAMES), ca))
    assert found == f"distrust: this client's certificate {given.tls_cert} has expired"


# --- no TLS, or another one -------------------------------------------------------------------


def failure(ca: Authority, talk: Callable[[socket.socket], object]) -> str:
    with serving(talk) as sock, pytest.raises(OSError) as failed:
        Tls(Credentials(tls_ca=ca.file)).handshake(sock, "localhost")
    assert not isinstance(failed.value, DistrustError)
    return str(failed.value.strerror)


def test_a_server_that_speaks_something_else_is_told_so(ca: Authority) -> None:
    def http(sock: socket.socket) -> None:
        sock.recv(10_000)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    assert "does not speak TLS: leave tls_ca and tls_cert out" in failure(ca, http)


@pytest.mark.parametrize("bytes_read", [10_000, 1])
def test_a_server_that_hangs_up_may_run_without_tls(ca: Authority, bytes_read: int) -> None:
    """An end, or a reset, since it left bytes unread."""
    assert "closed the connection during the TLS handshake" in failure(
        ca, lambda sock: sock.recv(bytes_read)
    )


def test_an_older_tls_is_not_spoken(ca: Authority) -> None:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.maximum_version = ssl.TLSVersion.TLSv1_2
    ca.issue(*NAMES).configure_cert(made)
    assert failure(ca, echo(made)) == "the server does not offer TLS 1.3"


def test_an_error_of_another_kind_keeps_its_own_words(ca: Authority) -> None:
    tls = Tls(Credentials(tls_ca=ca.file))
    error = ssl.SSLError(1, "[SSL] something (_ssl.c:1)")
    error.reason = "BAD_RECORD_TYPE"
    assert tls.explained(error).strerror == "TLS: bad record type"
    unknown = ssl.SSLCertVerificationError(1, "x")
    unknown.verify_code, unknown.verify_message = 99, "odd"
    assert tls.explained(unknown).strerror == "the server's certificate is refused: odd"


# --- files ------------------------------------------------------------------------------------


def test_a_file_that_is_replaced_counts_at_the_next_connection(
    ca: Authority, other: Authority
) -> None:
    tls = Tls(Credentials(tls_ca=ca.file))
    made = server_context(other.issue(*NAMES))
    with serving(echo(made)) as sock, pytest.raises(DistrustError):
        tls.handshake(sock, "localhost")
    os.replace(other.file, ca.file)
    with serving(echo(made)) as sock, tls.handshake(sock, "localhost") as spoken:
        assert spoken.version() == "TLSv1.3"


def test_a_file_that_is_gone_fails_the_next_connection_and_is_named(ca: Authority) -> None:
    tls = Tls(Credentials(tls_ca=ca.file))
    os.unlink(ca.file)
    made = server_context(ca.issue(*NAMES))
    with serving(echo(made)) as sock, pytest.raises(ValueError, match=f"{ca.file}: No such file"):
        tls.handshake(sock, "localhost")


def test_a_context_is_made_once_while_the_files_stay(
    ca: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = Tls(Credentials(tls_ca=ca.file))
    monkeypatch.setattr("rdzv_client.tls.context", lambda credentials: pytest.fail("made again"))
    with (
        serving(echo(server_context(ca.issue(*NAMES)))) as sock,
        tls.handshake(sock, "localhost") as spoken,
    ):
        assert spoken.version() == "TLSv1.3"


@pytest.fixture
def damaged(ca: Authority, tmp_path: Path) -> dict[str, str]:
    """Files by name."""
    cert, key = ca.files("a.example")
    _, other_key = ca.files("b.example")
    texts = tmp_path / "text"
    texts.write_text("nothing\n")
    texts.chmod(0o600)
    both = tmp_path / "both"
    both.write_text(Path(cert).read_text() + Path(key).read_text())
    both.chmod(0o644)
    open_key = tmp_path / "open.key"
    open_key.write_text(Path(key).read_text())
    open_key.chmod(0o644)
    return {
        "ca": ca.file, "cert": cert, "key": key, "other": other_key, "text": str(texts),
        "none": str(tmp_path / "none"), "both": str(both), "open": str(open_key),
        "locked": locked_key(tmp_path / "locked", key),
    }  # fmt: skip


def locked_key(path: Path, key: str) -> str:
    from cryptography.hazmat.primitives import serialization as forms

    private = forms.load_pem_private_key(Path(key).read_bytes(), None)
    kind, form = forms.Encoding.PEM, forms.PrivateFormat.PKCS8
    path.write_bytes(private.private_bytes(kind, form, forms.BestAvailableEncryption(b"p")))
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tls_ca": "none"}, "tls file {none}: no such file"),
        ({"tls_ca": "text"}, "tls_ca {text}: there is no pem certificate"),
        ({"tls_cert": "none", "tls_key": "key"}, "{none}: no such file"),
        ({"tls_cert": "cert", "tls_key": "none"}, "{none}: no such file"),
        ({"tls_cert": "cert", "tls_key": "other"}, "key does not belong to the certificate {cert}"),
        ({"tls_cert": "cert", "tls_key": "open"}, "chmod 600 {open}"),
        ({"tls_cert": "both"}, "chmod 600 {both}"),
        ({"tls_cert": "cert", "tls_key": "text"}, "no key in the other"),
        ({"tls_cert": "text", "tls_key": "key"}, "no pem certificate in the one"),
        ({"tls_cert": "text"}, "must hold a pem certificate and its key"),
        ({"tls_cert": "cert", "tls_key": "locked"}, "{locked}: the key is encrypted"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    damaged: dict[str, str], given: dict[str, str], words: str
) -> None:
    files = {name: damaged[file] for name, file in given.items()}
    with pytest.raises(ValueError) as refused:
        Tls(Credentials(**{"tls_ca": damaged["ca"], **files}))
    assert words.format(**damaged).lower() in str(refused.value).lower()


def test_certificate_and_key_may_share_a_file(ca: Authority, damaged: dict[str, str]) -> None:
    os.chmod(damaged["both"], 0o600)
    given = Credentials(tls_ca=ca.file, tls_cert=damaged["both"])
    assert outcome(given, server_context(ca.issue(*NAMES), ca)) == "hello"
