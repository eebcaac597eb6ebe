"""Certificates of the server and of its clients; handshakes are made in memory."""

import datetime
import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from rdzv_server.shell import tls
from rdzv_server.shell.tls import Tls


@dataclass
class Files:
    folder: Path
    ca: trustme.CA

    def write(self, name: str, cert: trustme.LeafCert) -> Path:
        """Chain and key in one file."""
        path = self.folder / name
        cert.private_key_and_cert_chain_pem.write_to_path(str(path))
        path.chmod(0o600)
        return path

    @property
    def ca_path(self) -> Path:
        path = self.folder / "ca.pem"
        self.ca.cert_pem.write_to_path(str(path))
        return path


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> Files:
    return Files(tmp_path, authority)


def client_context(files: Files, cert: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files.ca_path))
    if cert is not None:
        cert.configure_cert(context)
    return context


def shake(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str = "server"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """A whole handshake; raises what either side raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=name)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    done = {near: False, far: False}
    while not all(done.values()):
        for end in (near, far):
            try:
                end.do_handshake()
                done[end] = True
            except ssl.SSLWantReadError:
                continue
    return near, far


def test_t4_a_client_sees_the_certificate_whose_digest_the_server_knows(files: Files) -> None:
    cert = files.write("s.pem", files.ca.issue_cert("server"))
    near, far = shake(Tls(cert, None, None).context, client_context(files))
    der = near.getpeercert(binary_form=True)
    assert der is not None
    assert tls.own_digest(far) == hashlib.sha256(der).digest()
    assert near.version() == "TLSv1.3"


def test_t4_older_tls_is_refused(files: Files) -> None:
    cert = files.write("s.pem", files.ca.issue_cert("server"))
    old = client_context(files)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake(Tls(cert, None, None).context, old)


def test_t4_the_digest_is_that_of_the_connection_also_after_a_reload(files: Files) -> None:
    path = files.write("s.pem", files.ca.issue_cert("server"))
    server = Tls(path, None, None)
    _, before = shake(server.context, client_context(files))
    first = tls.own_digest(before)
    files.write("s.pem", files.ca.issue_cert("server"))
    server.reload()
    near, after = shake(server.context, client_context(files))
    assert tls.own_digest(before) == first
    der = near.getpeercert(binary_form=True)
    assert der is not None
    assert tls.own_digest(after) == hashlib.sha256(der).digest() != first


@pytest.mark.parametrize(
    ("issued", "names"),
    [
        ({"identities": ("node-3", "node-3.example")}, ("node-3", "node-3.example")),
        ({"identities": ("10.0.0.3",)}, ("10.0.0.3",)),
        ({"identities": (), "common_name": "node-3"}, ("node-3",)),
        ({"identities": ("node-3",), "common_name": "other"}, ("node-3",)),
        ({"identities": ("someone@example.org",), "common_name": "node-3"}, ("node-3",)),
    ],
)
def test_t4_a_clients_names_are_those_of_its_certificate(
    files: Files, issued: dict[str, object], names: tuple[str, ...]
) -> None:
    identities = issued["identities"]
    assert isinstance(identities, tuple)
    common = issued.get("common_name")
    assert common is None or isinstance(common, str)
    client = files.ca.issue_cert(*identities, common_name=common)
    server = Tls(files.write("s.pem", files.ca.issue_cert("server")), None, files.ca_path)
    _, far = shake(server.context, client_context(files, client))
    assert tls.peer_names(far) == names


def test_t4_without_a_client_ca_nobody_is_asked_for_a_name(files: Files) -> None:
    server = Tls(files.write("s.pem", files.ca.issue_cert("server")), None, None)
    _, far = shake(server.context, client_context(files, files.ca.issue_cert("node-3")))
    assert tls.peer_names(far) is None
    assert tls.peer_names(None) is None
    assert tls.own_digest(None) == b""


def bad_clients(ca: trustme.CA) -> dict[str, trustme.LeafCert | None]:
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
    return {
        "none": None,
        "of another authority": trustme.CA().issue_cert("node-3"),
        "expired": ca.issue_cert("node-3", not_before=past, not_after=past + datetime.timedelta(1)),
    }


@pytest.mark.parametrize("kind", ["none", "of another authority", "expired"])
def test_t4_bad_client_certificates_are_refused(files: Files, kind: str) -> None:
    server = Tls(files.write("s.pem", files.ca.issue_cert("server")), None, files.ca_path)
    with pytest.raises(ssl.SSLError):
        shake(server.context, client_context(files, bad_clients(files.ca)[kind]))


def test_t4_no_ticket_outlives_a_certificate(files: Files) -> None:
    cert = files.write("s.pem", files.ca.issue_cert("server"))
    near, far = shake(Tls(cert, None, files.ca_path).context,
                      client_context(files, files.ca.issue_cert("n")))  # fmt: skip
    far.write(b"x")
    assert near.read(1) == b"x"
    assert near.session is None or not near.session.has_ticket


# --- files ------------------------------------------------------------------------------------


def test_key_and_certificate_may_be_in_two_files(files: Files) -> None:
    leaf = files.ca.issue_cert("server")
    cert, key = files.folder / "c.pem", files.folder / "k.pem"
    leaf.cert_chain_pems[0].write_to_path(str(cert))
    leaf.private_key_pem.write_to_path(str(key))
    key.chmod(0o600)
    server = Tls(cert, key, files.ca_path)
    assert server.paths == [cert, key, files.ca_path]
    shake(server.context, client_context(files, files.ca.issue_cert("n")))


def test_a_bad_file_is_named_with_what_it_should_be(files: Files) -> None:
    good = files.write("s.pem", files.ca.issue_cert("server"))
    other = files.folder / "other.pem"
    files.ca.issue_cert("x").private_key_pem.write_to_path(str(other))
    other.chmod(0o600)
    rubbish = files.folder / "rubbish"
    rubbish.write_text("not PEM")
    rubbish.chmod(0o600)
    open_to_all = files.write("open.pem", files.ca.issue_cert("server"))
    open_to_all.chmod(0o644)
    missing = files.folder / "missing"
    for cert, key, ca, text in (
        (missing, None, None, f"TLS certificate {missing}: No such file"),
        (rubbish, None, None, f"TLS certificate {rubbish}: holds no certificate in PEM"),
        (good, missing, None, f"TLS key {missing}: No such file"),
        (good, other, None, f"TLS key {other}: key and certificate do not belong together"),
        (good, rubbish, None, f"TLS key {rubbish}: no PEM of the right kind"),
        (open_to_all, None, None, f"TLS certificate {open_to_all}: it holds the key: others can"),
        (good, None, missing, f"TLS client CA {missing}: No such file"),
        (good, None, rubbish, f"TLS client CA {rubbish}: no PEM of the right kind"),
    ):
        with pytest.raises(ValueError, match="TLS") as caught:
            Tls(cert, key, ca)
        assert text in str(caught.value)


def test_after_a_bad_reload_the_certificate_of_before_stays(files: Files) -> None:
    path = files.write("s.pem", files.ca.issue_cert("server"))
    server = Tls(path, None, None)
    before = server.context
    path.write_text("rubbish")
    with pytest.raises(ValueError, match="PEM"):
        server.reload()
    assert server.context is before
