"""A session whose server demands proof, and one that demands it of its server."""

import itertools
from typing import Any

import pytest

from rdzv_client.proving import Prover
from rdzv_client.reconnect import HELLO_S
from rdzv_client.session_events import Answered, State
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token, Transcript
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyPush,
    Authenticate,
    Done,
    Ended,
    Error,
    Goodbye,
    HelloNode,
    KvGet,
    Notice,
    Progress,
    View,
    ViewChanged,
    Welcome,
)
from tests.unit.client.driver import FENCE, JOIN, TOKEN, Driver, changes, joined

SECRET = Token(EVERYTHING, b"s" * 32).derive(Grant(Scope.JOIN, "llama"))
CHALLENGE = b"c" * 32


class Guarded(Driver):
    """A session with a token, and a server that knows it."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._nonces = (bytes([number]) * 32 for number in itertools.count(1))
        self.prover = self.fresh()

    def fresh(self) -> Prover:
        return Prover(SECRET, lambda: next(self._nonces), source="/run/token")

    def challenged(self, hello_id: int) -> tuple[int, Authenticate]:
        """The server asks for proof; returns what the session answers."""
        self.say(hello_id, Welcome(server="rdzv", instance="", epoch=0, challenge=CHALLENGE))
        ((request_id, answer),) = self.sent()
        assert isinstance(answer, Authenticate)
        return request_id, answer

    def proof(self, answer: Authenticate, challenge: bytes = CHALLENGE) -> bytes:
        """Of the server."""
        transcript = Transcript(self.hello_body, challenge, answer.nonce, SECRET.grant)
        assert answer.proof == transcript.client_proof(SECRET.secret), "the server would refuse it"
        return transcript.server_proof(SECRET.secret)

    def believed(self, **fields: Any) -> None:
        """The whole opening goes well."""
        ((hello_id, _),) = self.connect()
        request_id, answer = self.challenged(hello_id)
        self.greet(request_id, proof=self.proof(answer), **fields)
        assert self.session.connected_now


def refusal(driver: Driver) -> Error:
    assert driver.session.state is State.OVER
    assert driver.wants_out()
    assert driver.session.failure is not None
    assert driver.session.failure.code == ErrorCode.UNAUTHENTICATED
    return driver.session.failure


def test_a_challenge_is_answered_under_a_new_id_and_the_second_welcome_counts() -> None:
    driver = Guarded()
    ((hello_id, _),) = driver.connect()
    request_id, answer = driver.challenged(hello_id)
    assert request_id > hello_id
    assert changes(driver.events()) == [], "a challenge is no welcome"
    driver.greet(request_id, proof=driver.proof(answer), session=5)
    assert driver.session.connected_now
    assert driver.session.welcome is not None
    assert driver.session.welcome.session == 5


def test_the_proof_is_of_the_hello_as_it_was_sent_each_time() -> None:
    driver = Guarded()
    driver.believed()
    driver.drop()
    driver.prover = driver.fresh()
    ((hello_id, hello),) = driver.connect()
    assert isinstance(hello, HelloNode)
    assert hello.resume is not None
    request_id, answer = driver.challenged(hello_id)
    driver.greet(request_id, proof=driver.proof(answer))
    assert driver.session.connected_now


@pytest.mark.parametrize("kind", ["wrong", "missing", "ours", "of another connection"])
def test_a_server_without_the_right_proof_ends_the_session(kind: str) -> None:
    driver = Guarded()
    waiting = driver.ask()
    ((hello_id, _),) = driver.connect()
    request_id, answer = driver.challenged(hello_id)
    elsewhere = driver.proof(answer, CHALLENGE) if kind == "ours" else b""
    proofs = {
        "wrong": b"x" * 32,
        "missing": None,
        "ours": answer.proof,
        "of another connection": Transcript(
            driver.hello_body, b"d" * 32, answer.nonce, SECRET.grant
        ).server_proof(SECRET.secret),
    }
    assert proofs[kind] != elsewhere
    driver.say(request_id, Welcome(server="x", instance="x", epoch=9, session=1, proof=proofs[kind],
                                   token=TOKEN))  # fmt: skip
    why = refusal(driver)
    assert "could not prove that it knows the token in /run/token" in why.message
    assert driver.session.welcome is None, "nothing of it was believed"
    assert driver.answers() == {waiting: why}
    assert driver.sent() == [], "no request goes to it"


def test_a_server_that_does_not_ask_for_proof_ends_the_session() -> None:
    driver = Guarded()
    ((hello_id, _),) = driver.connect()
    driver.say(hello_id, Welcome(server="x", instance="x", epoch=9, session=1, token=TOKEN))
    assert "did not ask for proof of the token" in refusal(driver).message
    assert driver.session.welcome is None


def test_a_downgrade_is_refused_at_a_reconnect_too() -> None:
    driver = Guarded()
    driver.believed()
    driver.drop()
    driver.prover = driver.fresh()
    ((hello_id, _),) = driver.connect()
    driver.say(hello_id, Welcome(server="x", instance="x", epoch=9, session=1, token=TOKEN))
    assert "did not ask for proof" in refusal(driver).message


def test_a_challenge_without_a_token_names_what_is_missing() -> None:
    driver = Driver()
    ((hello_id, _),) = driver.connect()
    driver.say(hello_id, Welcome(server="rdzv", instance="", epoch=0, challenge=CHALLENGE))
    why = refusal(driver)
    assert "demands authentication; this client has no token" in why.message
    assert "RDZV_TOKEN_FILE" in why.action


def test_a_refused_proof_is_final() -> None:
    driver = Guarded()
    ((hello_id, _),) = driver.connect()
    request_id, _ = driver.challenged(hello_id)
    driver.say(request_id, Error(code=ErrorCode.UNAUTHENTICATED, message="unknown key"))
    assert refusal(driver).message == "unknown key"


@pytest.mark.parametrize("code", [ErrorCode.SERVER_BUSY, ErrorCode.SHUTTING_DOWN])
def test_a_server_that_has_no_time_for_a_proof_is_asked_again(code: ErrorCode) -> None:
    driver = Guarded()
    ((hello_id, _),) = driver.connect()
    request_id, _ = driver.challenged(hello_id)
    driver.say(request_id, Error(code=code, message="later", retry_after_ms=10))
    driver.hang_up()
    assert driver.session.state is State.SUSPENDED
    assert driver.session.reconnect.attempt_at is not None


def test_the_deadline_of_a_hello_covers_the_answer_to_its_challenge() -> None:
    driver = Guarded()
    ((hello_id, _),) = driver.connect()
    driver.advance(HELLO_S * 0.6)
    driver.challenged(hello_id)
    driver.advance(HELLO_S * 0.3)
    assert not driver.wants_out()
    driver.advance(HELLO_S * 0.2)
    assert driver.wants_out()
    assert "no answer to the hello" in driver.session.last_error


def test_the_deadline_ends_with_the_welcome() -> None:
    driver = Guarded()
    driver.believed()
    driver.advance(HELLO_S)
    assert not driver.wants_out()


@pytest.mark.parametrize(
    "push",
    [
        ViewChanged(view=View(fence=FENCE, ended=Ended(kind="lost", reason="x"))),
        Notice(message="x"),
        Progress(joined=1, min_nodes=2, max_nodes=2),
    ],
)
def test_what_is_said_before_the_proof_is_not_believed(push: AnyPush) -> None:
    driver = Guarded()
    get = driver.ask(KvGet(fence=FENCE, key="k", timeout_ms=1))
    ((hello_id, _),) = driver.connect()
    before = driver.session.watch.view
    for request_id in (0, hello_id):
        driver.say(request_id, push)
    driver.say(get, Done())
    assert driver.events() == []
    assert driver.session.watch.view == before
    request_id, answer = driver.challenged(hello_id)
    driver.say(get, Done())
    assert driver.events() == []
    assert len(driver.greet(request_id, proof=driver.proof(answer))) == 1, "it is still to be asked"
    driver.say(get, Done())
    assert [e for e in driver.events() if isinstance(e, Answered)] == [Answered(get, Done())]


def test_a_goodbye_before_the_proof_only_ends_the_connection() -> None:
    driver = Guarded()
    driver.connect()
    driver.say(0, Goodbye(code=ErrorCode.SERVER_BUSY, message="full", retry_after_ms=5))
    driver.hang_up()
    assert driver.session.state is State.SUSPENDED
    assert driver.session.last_error == "full"


def test_a_lost_session_is_opened_anew_with_a_proof_of_its_own() -> None:
    driver = Guarded()
    driver.believed()
    join = driver.ask()
    driver.sent()
    driver.drop()
    driver.prover = driver.fresh()
    ((hello_id, _),) = driver.connect()
    request_id, first = driver.challenged(hello_id)
    driver.say(request_id, Error(code=ErrorCode.SESSION_LOST, message="gone"))
    ((hello_id, _),) = driver.sent()
    request_id, second = driver.challenged(hello_id)
    assert first.nonce != second.nonce
    assert driver.greet(request_id, proof=driver.proof(second), session=9) == [(join, JOIN)]
    driver.say(join, joined())
    assert driver.answers()[join] == joined()


@pytest.mark.parametrize("met", [False, True])
def test_a_certificate_that_is_refused_ends_a_session_only_before_the_first_contact(
    met: bool,
) -> None:
    driver = Guarded()
    if met:
        driver.believed()
        driver.drop()
    driver.session.connecting()
    driver.session.distrusted(driver.now, "host:1: it has expired", "renew it")
    if met:
        assert driver.session.state is State.SUSPENDED
        assert driver.session.last_error == "host:1: it has expired"
        assert driver.session.reconnect.attempt_at is not None
    else:
        assert driver.session.state is State.OVER
        assert driver.session.failure == Error(
            code=ErrorCode.UNAUTHENTICATED, message="host:1: it has expired", action="renew it"
        )


def test_a_session_that_is_over_stays_so_whatever_a_certificate_is() -> None:
    driver = Guarded()
    driver.session.close("done")
    failure = driver.session.failure
    driver.session.distrusted(driver.now, "it has expired", "renew it")
    assert driver.session.failure == failure


def test_a_tls_server_is_recognized_by_how_it_turns_a_plain_client_away() -> None:
    driver = Driver()
    driver.connect()
    driver.session.received(driver.now, b"\x15\x03\x01\x00\x02\x02\x46")
    assert driver.wants_out()
    assert (
        driver.session.last_error == "host:29500 speaks TLS; this client was not told to (tls_ca)"
    )
