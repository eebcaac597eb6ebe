"""How a client answers a challenge, and when it believes a server."""

import itertools
from collections.abc import Iterator

import pytest

from rdzv_client.proving import Prover, unauthenticated
from rdzv_proto import auth
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token, Transcript
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Authenticate, Welcome

TOKEN = Token(EVERYTHING, b"s" * 32).derive(Grant(Scope.JOIN, "llama"))
HELLO, CHALLENGE = b"hello body", b"c" * 32
ASKED = Welcome(server="rdzv", instance="", epoch=0, challenge=CHALLENGE)


def nonces() -> Iterator[bytes]:
    return (bytes([number]) * 32 for number in itertools.count(1))


def prover(**more: bytes) -> Prover:
    drawn = nonces()
    made = Prover(TOKEN, lambda: next(drawn), source="/run/token", **more)
    made.hello(HELLO)
    return made


def answer(of: Prover) -> Authenticate:
    found = of.answer(ASKED)
    assert found is not None
    return found


def welcome(proof: bytes | None = None) -> Welcome:
    return Welcome(server="rdzv 1", instance="i", epoch=7, proof=proof)


def transcript(nonce: bytes, hello: bytes = HELLO, certificate: bytes = b"") -> Transcript:
    return Transcript(hello, CHALLENGE, nonce, TOKEN.grant, certificate)


@pytest.mark.parametrize("certificate", [b"", b"d" * 32])
def test_the_answer_proves_the_token_without_showing_it(certificate: bytes) -> None:
    said = answer(prover(certificate=certificate))
    assert (said.key.hex(), said.scope, said.run) == (TOKEN.key, "join", "llama")
    assert said.nonce == b"\x01" * 32
    assert said.proof == transcript(said.nonce, certificate=certificate).client_proof(TOKEN.secret)
    assert TOKEN.secret not in repr(said).encode()


def test_a_server_that_proves_itself_is_believed() -> None:
    one = prover()
    proof = transcript(answer(one).nonce).server_proof(TOKEN.secret)
    assert one.doubt(welcome(proof), "host:1") is None


@pytest.mark.parametrize(
    "kind", ["missing", "wrong", "ours sent back", "of another hello", "challenge"]
)
def test_a_server_that_cannot_prove_itself_is_not(kind: str) -> None:
    one = prover()
    said = answer(one)
    claims = {
        "missing": welcome(),
        "wrong": welcome(b"x" * 32),
        "ours sent back": welcome(said.proof),
        "of another hello": welcome(
            transcript(said.nonce, hello=b"other").server_proof(TOKEN.secret)
        ),
        "challenge": ASKED,
    }
    doubt = one.doubt(claims[kind], "host:1")
    assert doubt is not None
    assert doubt.code == ErrorCode.UNAUTHENTICATED
    assert "host:1 could not prove that it knows the token in /run/token" in doubt.message


def test_a_server_that_does_not_ask_is_not_the_one_the_token_belongs_to() -> None:
    doubt = prover().doubt(welcome(), "host:1")
    assert doubt is not None
    assert "host:1 did not ask for proof of the token in /run/token" in doubt.message
    assert "runs without --token-file" in doubt.message


def test_a_second_challenge_is_not_answered() -> None:
    one = prover()
    answer(one)
    assert one.answer(ASKED) is None


def test_each_hello_is_proved_anew_with_another_nonce() -> None:
    one = prover()
    first = answer(one)
    one.hello(b"second hello")
    second = answer(one)
    assert first.nonce != second.nonce
    old = transcript(first.nonce).server_proof(TOKEN.secret)
    assert one.doubt(welcome(old), "host:1") is not None, "a proof of before counts no more"


def test_a_challenge_alone_is_no_welcome_for_a_client_without_a_token() -> None:
    nobody = Prover()
    nobody.hello(HELLO)
    assert not nobody.required
    assert nobody.answer(ASKED) is None
    doubt = nobody.doubt(ASKED, "host:1")
    assert doubt is not None
    assert doubt.message == "host:1 demands authentication; this client has no token"
    assert "--rdzv-conf=token_file" in doubt.action
    assert nobody.doubt(welcome(), "host:1") is None


def test_no_secret_is_in_what_a_prover_shows() -> None:
    assert TOKEN.secret.hex() not in repr(vars(prover())) + repr(prover())
    assert "\\x" not in repr(TOKEN)


def test_an_end_for_want_of_proof_says_what_to_do() -> None:
    assert unauthenticated("because").action
    assert unauthenticated("because", "do this").action == "do this"
    assert auth.NONCE_BYTES == 32
