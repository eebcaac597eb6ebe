"""Tokens and certificates as the configuration names them; what cannot be used is one line for the operator."""

from pathlib import Path

import pytest
import trustme

from rdzv_proto.auth import EVERYTHING, Token
from rdzv_server.config import Config
from rdzv_server.shell import log
from rdzv_server.shell.access import Access, AccessError

SECRET = b"s" * 32
TOKEN = Token(EVERYTHING, SECRET)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    return write(tmp_path / "token", TOKEN.text() + "\n")


@pytest.fixture
def cert(tmp_path: Path, authority: trustme.CA) -> Path:
    """Chain and key in one file."""
    path = tmp_path / "server.pem"
    authority.issue_cert("server").private_key_and_cert_chain_pem.write_to_path(str(path))
    path.chmod(0o600)
    return path


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, object]]]:
    seen: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(log, "event", lambda name, level="info", **more: seen.append((name, more)))
    return seen


def test_without_anything_named_everybody_comes_in() -> None:
    access = Access(Config())
    assert access.tokens is None
    assert access.tls is None


def test_a_token_file(token: Path) -> None:
    access = Access(Config(token_file=str(token)))
    assert access.tokens is not None
    assert access.tokens.keys == [TOKEN.key]
    assert access.tls is None


def test_a_certificate_with_its_key_in_the_same_file(cert: Path) -> None:
    access = Access(Config(tls_cert=str(cert)))
    assert access.tls is not None
    assert access.tls.paths == [cert]
    assert access.tokens is None


def test_certificate_key_and_authority_in_three_files(
    tmp_path: Path, authority: trustme.CA
) -> None:
    leaf = authority.issue_cert("server")
    names = [str(tmp_path / name) for name in ("c.pem", "k.pem", "ca.pem")]
    leaf.cert_chain_pems[0].write_to_path(names[0])
    leaf.private_key_pem.write_to_path(names[1])
    authority.cert_pem.write_to_path(names[2])
    Path(names[1]).chmod(0o600)
    access = Access(Config(tls_cert=names[0], tls_key=names[1], tls_client_ca=names[2]))
    assert access.tls is not None
    assert [str(path) for path in access.tls.paths] == names


def test_a_token_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "missing"
    with pytest.raises(AccessError, match="cannot read token file") as caught:
        Access(Config(token_file=str(path)))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n\n", "no token\n", "rdzv1:"])
def test_a_token_file_without_a_token_is_one_line(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "token", text)
    with pytest.raises(AccessError) as caught:
        Access(Config(token_file=str(path)))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_token_file_that_others_can_read_is_refused_and_its_secret_not_shown(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "token", TOKEN.text(), mode=0o644)
    with pytest.raises(AccessError) as caught:
        Access(Config(token_file=str(path)))
    text = str(caught.value)
    assert str(path) in text
    assert TOKEN.text() not in text
    assert SECRET.decode() not in text
    assert SECRET.hex() not in text


def test_a_certificate_that_is_none_is_one_line_and_named(tmp_path: Path) -> None:
    path = write(tmp_path / "c.pem", "no certificate")
    with pytest.raises(AccessError, match="TLS certificate") as caught:
        Access(Config(tls_cert=str(path)))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_that_is_not_there_is_the_one_that_is_named(cert: Path, tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="TLS key") as caught:
        Access(Config(tls_cert=str(cert), tls_key=str(tmp_path / "k.pem")))
    assert "k.pem" in str(caught.value)


def test_a_key_that_others_can_read_is_refused(cert: Path) -> None:
    cert.chmod(0o644)
    with pytest.raises(AccessError):
        Access(Config(tls_cert=str(cert)))


def test_a_good_token_does_not_make_up_for_a_bad_certificate(token: Path, tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="TLS certificate"):
        Access(Config(token_file=str(token), tls_cert=str(tmp_path / "missing.pem")))


def test_tokens_and_certificate_are_kept_current(
    token: Path, cert: Path, authority: trustme.CA, lines: list[tuple[str, dict[str, object]]]
) -> None:
    access = Access(Config(token_file=str(token), tls_cert=str(cert)))
    assert access.tokens is not None
    assert access.tls is not None
    reloads, old_context = access.reloads(), access.tls.context
    other = Token(EVERYTHING, b"o" * 32)
    write(token, f"{TOKEN.text()}\n{other.text()}\n")
    reloads.changed()
    assert access.tokens.keys == [TOKEN.key, other.key]
    assert access.tls.context is old_context
    authority.issue_cert("server", "more").private_key_and_cert_chain_pem.write_to_path(str(cert))
    reloads.changed()
    assert access.tls.context is not old_context
    assert [(event, more["what"]) for event, more in lines] == [
        ("reloaded", "tokens"),
        ("reloaded", "certificate"),
    ]


def test_a_token_file_that_became_unusable_changes_nothing(
    token: Path, lines: list[tuple[str, dict[str, object]]]
) -> None:
    access = Access(Config(token_file=str(token)))
    assert access.tokens is not None
    reloads = access.reloads()
    write(token, "rubbish")
    reloads.all()
    assert access.tokens.keys == [TOKEN.key]
    assert [event for event, _ in lines] == ["reload_failed"]
    assert TOKEN.text() not in str(lines)


def test_without_anything_named_there_is_nothing_to_keep_current(
    lines: list[tuple[str, dict[str, object]]],
) -> None:
    reloads = Access(Config()).reloads()
    reloads.start()  # no timer, so no loop is needed
    reloads.all()
    reloads.stop()
    assert lines == []
