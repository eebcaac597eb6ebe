import random

from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token, Transcript
from rdzv_proto.messages import Authenticate, HelloAdmin
from rdzv_server.shell.gate import (
    ADDRESSES_MAX,
    DELAY_S,
    DELAY_S_MAX,
    FORGOTTEN_S,
    Challenge,
    Delays,
    Gate,
)

MASTER = Token(EVERYTHING, b"m" * 32)
BODY = b"the hello as it was sent"
CERTIFICATE = b"d" * 32


class Book:
    """Tokens in force, without a file."""

    def __init__(self, *tokens: Token) -> None:
        self._tokens = tokens

    def secret(self, key: str, grant: Grant) -> tuple[bytes, bool]:
        for token in self._tokens:
            if token.key == key:
                return token.derive(grant).secret, True
        return b"?" * 32, False


def gate() -> Gate:
    return Gate(Book(MASTER))  # type: ignore[arg-type]


def answer(asked: Challenge, token: Token, **changed: object) -> Authenticate:
    fields = {"body": BODY, "certificate": CERTIFICATE, "grant": token.grant, "nonce": b"n" * 32}
    fields |= changed
    transcript = Transcript(
        fields["body"], asked.nonce, b"n" * 32, fields["grant"], fields["certificate"],  # type: ignore[arg-type]
    )  # fmt: skip
    return Authenticate(
        key=bytes.fromhex(token.key), scope=token.grant.scope.value, run=token.grant.run,
        nonce=fields["nonce"], proof=transcript.client_proof(token.secret),  # type: ignore[arg-type]
    )  # fmt: skip


def test_t2_who_knows_the_token_passes_and_gets_a_proof_of_the_server() -> None:
    token = MASTER.derive(Grant(Scope.JOIN, "llama"))
    asked = gate().challenge(HelloAdmin(), BODY)
    passed = gate().check(asked, answer(asked, token), CERTIFICATE)
    assert passed is not None
    assert passed.grant == token.grant
    assert passed.hello == HelloAdmin()
    expected = Transcript(BODY, asked.nonce, b"n" * 32, token.grant, CERTIFICATE)
    assert passed.proof == expected.server_proof(token.secret)


def test_t2_challenges_are_never_the_same() -> None:
    assert len({gate().challenge(HelloAdmin(), BODY).nonce for _ in range(1000)}) == 1000


def test_t21_a_changed_hello_does_not_pass() -> None:
    asked = gate().challenge(HelloAdmin(), BODY)
    assert gate().check(asked, answer(asked, MASTER, body=BODY + b"!"), CERTIFICATE) is None


def test_t4_a_proof_for_another_certificate_does_not_pass() -> None:
    asked = gate().challenge(HelloAdmin(), BODY)
    assert gate().check(asked, answer(asked, MASTER, certificate=b"x" * 32), CERTIFICATE) is None
    assert gate().check(asked, answer(asked, MASTER, certificate=b""), CERTIFICATE) is None


def test_t6_a_proof_for_another_challenge_does_not_pass() -> None:
    first, second = (gate().challenge(HelloAdmin(), BODY) for _ in range(2))
    assert gate().check(second, answer(first, MASTER), CERTIFICATE) is None


def test_t3_a_token_claims_no_more_than_it_is_for() -> None:
    token = MASTER.derive(Grant(Scope.JOIN, "llama"))
    asked = gate().challenge(HelloAdmin(), BODY)
    for grant in (Grant(Scope.ADMIN, "llama"), Grant(Scope.JOIN, "other"), EVERYTHING):
        raised = Token(grant, token.secret, token.key)
        assert gate().check(asked, answer(asked, raised), CERTIFICATE) is None


def test_t2_unknown_tokens_do_not_pass_even_with_the_secret_of_nobody() -> None:
    asked = gate().challenge(HelloAdmin(), BODY)
    for secret in (b"w" * 32, b"?" * 32):
        assert gate().check(asked, answer(asked, Token(EVERYTHING, secret)), CERTIFICATE) is None


# --- delays -----------------------------------------------------------------------------------


def test_t19_refusals_are_late_and_later_the_more_there_are() -> None:
    delays = Delays(random.Random(1))
    seen = [delays.next_s("10.0.0.1", 100.0) for _ in range(200)]
    assert DELAY_S[0] <= seen[0] <= DELAY_S[1]
    assert sum(seen[:10]) < sum(seen[10:20]) < sum(seen[20:30])
    assert max(seen) == DELAY_S_MAX


def test_t19_other_addresses_do_not_wait_longer() -> None:
    delays = Delays(random.Random(1))
    for _ in range(200):
        delays.next_s("10.0.0.1", 100.0)
    assert delays.next_s("10.0.0.2", 100.0) <= DELAY_S[1]


def test_t19_wrong_proofs_are_forgotten_after_a_while() -> None:
    delays = Delays(random.Random(1))
    for _ in range(200):
        delays.next_s("10.0.0.1", 100.0)
    assert delays.next_s("10.0.0.1", 100.1 + FORGOTTEN_S) <= DELAY_S[1]


def test_addresses_are_counted_within_a_bound() -> None:
    delays = Delays(random.Random(1))
    for n in range(ADDRESSES_MAX * 2):
        delays.next_s(str(n), 100.0)
    assert len(delays._failures) == ADDRESSES_MAX
