"""What `--state etcd://…` means, and the files of its credentials."""

import os
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from rdzv_server.storage.base import StorageError
from rdzv_server.storage.etcd.place import Credentials, Place, parse


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("etcd://h/p", Place(("h:2379",), "p")),
        ("etcd://a:1,b:2,[::1]:3/rdzv/prod/", Place(("a:1", "b:2", "[::1]:3"), "rdzv/prod")),
        ("etcd://[::1]/p", Place(("[::1]:2379",), "p")),
    ],
)
def test_a_place_is_members_and_a_prefix(text: str, place: Place) -> None:
    assert parse(text) == place


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("etcd://h", "the prefix keeps this cluster's keys apart"),
        ("etcd://h/", "the prefix keeps"),
        ("etcd:///p", "must be etcd://HOST:PORT"),
        ("etcd://h:0/p", "'h:0' is no address"),
        ("etcd://h:x/p", "'h:x' is no address"),
        ("etcd://::1:2/p", "'::1:2' is no address"),
        ("etcd://h/a\x07b", "printable"),
    ],
)
def test_what_is_no_place_is_refused_with_the_right_form(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("(", r"\(")):
        parse(text)


def test_keys_of_a_cluster_are_below_its_prefix() -> None:
    place = parse("etcd://h/a/b")
    assert place.key(b"records", b"\x93x") == b"/a/b/records/\x93x"
    assert place.key(b"") == b"/a/b/"


def test_without_any_file_there_is_no_tls() -> None:
    assert not Credentials().tls
    assert Credentials().context() is None


def test_a_certificate_turns_tls_on(tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca"))
    ca.issue_cert("me").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "me"))
    (tmp_path / "me").chmod(0o600)
    assert Credentials(ca=tmp_path / "ca", cert=tmp_path / "me").context() is not None
    (tmp_path / "ca").chmod(0o600)
    bad = Credentials(ca=tmp_path / "ca", cert=tmp_path / "ca")
    with pytest.raises(StorageError, match="TLS for etcd cannot use it") as caught:
        bad.context()
    assert caught.value.cause == "access"


def test_a_password_is_the_file_without_its_last_line_end(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text(" with blanks \r\n")
    path.chmod(0o600)
    assert Credentials(user="u", password_file=path).password() == " with blanks "


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "is empty"), (b"\n", "is empty"), (b"x" * 5000, "too long"), (b"\xff", "no text")],
)
def test_a_file_that_is_no_password_is_named(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "password"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(StorageError, match=why) as caught:
        Credentials(user="u", password_file=path).password()
    assert str(path) in str(caught.value)
    with pytest.raises(StorageError, match="No such file"):
        Credentials(user="u", password_file=tmp_path / "none").password()


@pytest.mark.timeout(10)
def test_t20_a_password_or_key_that_others_can_read_is_refused_and_a_pipe_holds_nobody_up(
    tmp_path: Path,
) -> None:
    path, pipe = tmp_path / "password", tmp_path / "pipe"
    path.write_text("secret\n")
    path.chmod(0o604)
    os.mkfifo(pipe)
    with pytest.raises(StorageError, match="others can read or change it") as caught:
        Credentials(user="u", password_file=path).password()
    assert caught.value.cause == "access"
    with pytest.raises(StorageError, match="no ordinary file"):
        Credentials(user="u", password_file=pipe).password()
    trustme.CA().issue_cert("me").private_key_and_cert_chain_pem.write_to_path(str(path))
    with pytest.raises(StorageError, match="it holds the key: others can read"):
        Credentials(cert=path).context()


@pytest.mark.timeout(10)
def test_a_key_for_etcd_that_is_encrypted_asks_nobody_for_a_password(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert", tmp_path / "key"
    issued = trustme.CA().issue_cert("me")
    issued.cert_chain_pems[0].write_to_path(str(cert))
    plain = load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = BestAvailableEncryption(b"locked")
    key.write_bytes(plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    key.chmod(0o600)
    with pytest.raises(StorageError, match="the key is encrypted"):
        Credentials(cert=cert, key=key).context()
