"""What a client shows at each attempt."""

import socket
from pathlib import Path

import pytest

from rdzv_client.access import Access
from rdzv_client.credentials import Credentials
from rdzv_client.tls import DistrustError
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token
from rdzv_proto.messages import Welcome
from tests.unit.client.certificates import Authority

WANTED = Grant(Scope.JOIN, "llama")
TOKEN = Token(EVERYTHING, b"s" * 32).derive(WANTED)
ASKED = Welcome(server="rdzv", instance="", epoch=0, challenge=b"c" * 32)


@pytest.fixture
def given(tmp_path: Path) -> Credentials:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(TOKEN.text())
    return Credentials(token_file=str(path))


def test_without_credentials_nothing_is_shown_and_nothing_demanded() -> None:
    access = Access(Credentials(), WANTED)
    assert (access.token(), access.tls) == (None, None)
    with socket.socket() as sock:
        assert not access.prover(None, sock).required


def test_a_token_that_does_not_fit_is_refused_at_once(given: Credentials) -> None:
    with pytest.raises(ValueError, match="no token in it allows join for run bert"):
        Access(given, Grant(Scope.JOIN, "bert"))


def test_certificates_are_looked_at_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        Access(Credentials(tls_ca=str(tmp_path / "none")), WANTED)


def test_each_connection_gets_nonces_of_its_own(given: Credentials) -> None:
    access = Access(given, WANTED)
    nonces = set()
    for _ in range(3):
        with socket.socket() as sock:
            prover = access.prover(access.token(), sock)
        assert prover.required
        for hello in (b"1", b"2"):
            prover.hello(hello)
            answer = prover.answer(ASKED)
            assert answer is not None
            nonces.add(answer.nonce)
    assert len(nonces) == 6


def test_what_may_be_wrong_is_guessed_from_what_is_given(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    end = ConnectionResetError()
    plain = Access(Credentials(), WANTED)
    assert plain.hint("it closed", end) == "it closed during the hello; does it want TLS (tls_ca)?"
    checked = Access(Credentials(tls_ca=ca.file), WANTED)
    assert "require a client certificate (tls_cert)?" in checked.hint("it closed", end)
    own = ca.client()
    assert f"accept the certificate {own.tls_cert}?" in Access(own, WANTED).hint("it closed", end)
    assert checked.hint("it has expired", DistrustError()) == "it has expired"
