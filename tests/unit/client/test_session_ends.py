"""How a session ends: lost by the server, refused, told goodbye, given up, closed."""

import pytest

from rdzv_client.session_events import Answered, State, StateChanged
from rdzv_proto.errors import ERRORS, ErrorCode, Retry, info
from rdzv_proto.messages import (
    Done,
    Ended,
    Error,
    Fence,
    Finished,
    HelloNode,
    HelloWorker,
    KvAdd,
    KvGet,
    Leave,
    View,
    ViewChanged,
)
from tests.unit.client.driver import FENCE, JOIN, TOKEN, Driver, changes, joined, only

WORKER = HelloWorker(
    run="llama", node_id="node-1", fence=FENCE, rank=0, worker_token=TOKEN, incarnation=b"w" * 16
)
GET = KvGet(fence=FENCE, key="k", timeout_ms=1000)
GONE = [
    (ErrorCode.SESSION_LOST, "session_lost"),
    (ErrorCode.UNKNOWN_EPOCH, "server_restarted"),
]


def error(code: int, message: str = "because") -> Error:
    return Error(code=code, message=message)


# --- the server lost the session --------------------------------------------------------------


@pytest.mark.parametrize(("code", "kind"), GONE)
def test_a_lost_session_says_hello_again_on_the_same_connection(code: ErrorCode, kind: str) -> None:
    driver = Driver()
    driver.in_generation()
    driver.drop()
    ((first_id, _),) = driver.connect()
    driver.say(first_id, error(code))
    ((second_id, hello),) = driver.sent()
    assert second_id > first_id
    assert isinstance(hello, HelloNode)
    assert (hello.resume, hello.attempt) == (None, 3)
    assert not driver.wants_out()
    driver.greet(second_id, session=9, epoch=8)
    assert driver.session.connected_now


@pytest.mark.parametrize(("code", "kind"), GONE)
def test_with_the_session_joins_go_on_leaves_are_done_and_the_rest_fails(
    code: ErrorCode, kind: str
) -> None:
    driver = Driver()
    driver.in_generation()
    join, get = driver.ask(), driver.ask(GET)
    leave, finished = driver.ask(Leave(kind="drained")), driver.ask(Finished(fence=FENCE))
    driver.drop()
    ((hello_id, _),) = driver.connect()
    why = error(code, "it is over")
    driver.say(hello_id, why)
    assert driver.answers() == {get: why, leave: Done(), finished: Done()}
    ((hello_id, _),) = driver.sent()
    assert driver.greet(hello_id, session=9) == [(join, JOIN)]


@pytest.mark.parametrize(
    "code", [code for code in ErrorCode if info(code).retry is not Retry.LATER]
)
def test_what_was_under_way_when_the_session_ended_may_have_been_done(code: ErrorCode) -> None:
    """Whatever it ended of. Its answer must not say otherwise: whoever does it anew then does it twice (chaos, and
    simulator, steady 87)."""
    driver = Driver()
    driver.in_generation()
    add = driver.ask(KvAdd(fence=None, key="k", delta=1))
    driver.sent()
    driver.drop()
    ((hello_id, _),) = driver.connect()
    driver.say(hello_id, error(code, "it is over"))
    told = driver.answers().get(add)
    if told is None:  # this refusal is not the end
        assert code in (ErrorCode.INTERNAL, ErrorCode.SUPERSEDED)
        return
    assert isinstance(told, Error)
    assert not info(told.code).definite
    assert told.message.startswith("it is over")


def test_a_training_process_is_told_to_join_again_and_that_it_may_have_been_done() -> None:
    driver = Driver(WORKER)
    driver.welcome()
    add, get = driver.ask(KvAdd(fence=FENCE, key="k", delta=1)), driver.ask(GET)
    driver.sent()
    driver.drop()
    later = driver.ask(KvAdd(fence=FENCE, key="k", delta=1))
    ((hello_id, _),) = driver.connect()
    why = error(ErrorCode.STALE_GENERATION, "generation 7.1 of run 'llama' is over")
    driver.say(hello_id, why)
    answers = driver.answers()
    told = answers[add]
    assert isinstance(told, Error)
    assert told.code == ErrorCode.SESSION_LOST
    assert told.message == f"{why.message}; `kv_add` had been sent before, and may have been done"
    assert told.action == info(ErrorCode.STALE_GENERATION).action
    assert answers[get] == why, "it changes nothing"
    assert answers[later] == why, "it was never sent"


@pytest.mark.parametrize(("code", "kind"), GONE)
def test_with_the_session_its_generation_ends_on_this_side(code: ErrorCode, kind: str) -> None:
    driver = Driver()
    driver.in_generation()
    driver.drop()
    ((hello_id, _),) = driver.connect()
    driver.events()
    driver.say(hello_id, error(code, "it is over"))
    view = only(driver.events(), View)
    assert view.fence == FENCE
    assert view.waiting == 1, "an agent that polls the waiting count must rejoin"
    assert view.ended is not None
    assert (view.ended.kind, view.ended.reason) == (kind, "it is over")


def test_the_generation_after_a_lost_session_is_seen() -> None:
    driver = Driver()
    driver.in_generation()
    driver.drop()
    join = driver.ask()
    ((hello_id, _),) = driver.connect()
    driver.say(hello_id, error(ErrorCode.SESSION_LOST))
    ((hello_id, _),) = driver.sent()
    driver.greet(hello_id, session=9, view=View())
    later = joined(Fence(7, 2))
    driver.say(join, later)
    assert driver.session.watch.view == View(fence=later.fence)
    assert driver.answers()[join] == later


@pytest.mark.parametrize(("code", "kind"), GONE)
@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("resumed", [False, True])
def test_s31_after_a_lost_session_a_server_whose_clock_is_behind_is_believed(
    code: ErrorCode, kind: str, breaks: bool, resumed: bool
) -> None:
    """Also if the connection breaks behind the refusal: then nobody refuses the next hello, which names no session
    (simulator, crashes 10412); and if the first welcome of the new session is lost, so that the second one
    resumes it (20806)."""
    driver = Driver()
    driver.in_generation()
    driver.drop()
    join = driver.ask()
    ((hello_id, _),) = driver.connect()
    driver.say(hello_id, error(code))
    ((hello_id, _),) = driver.sent()
    if breaks:
        driver.drop()
        ((hello_id, _),) = driver.connect()
    driver.greet(hello_id, session=1, epoch=FENCE.epoch - 1, resumed=resumed, view=View())
    behind = joined(Fence(FENCE.epoch - 1, 1))
    driver.say(join, behind)
    assert driver.session.watch.view == View(fence=behind.fence)


LOST = Ended(kind="lost", reason="node-2 was lost")


@pytest.mark.parametrize("ended", [None, LOST])
def test_s9_a_worker_that_lost_its_session_is_told_by_the_welcome_whether_its_generation_lives(
    ended: Ended | None,
) -> None:
    """It stood still for longer than its lease; for its agent and for everybody else nothing has happened
    (simulator, crashes 73)."""
    driver = Driver(WORKER)
    driver.welcome(view=View(fence=FENCE))
    get = driver.ask(GET)
    driver.sent()
    driver.events()
    driver.drop()
    ((hello_id, _),) = driver.connect()
    why = error(ErrorCode.SESSION_LOST, "session 3 is over")
    driver.say(hello_id, why)
    assert driver.answers() == {get: why}
    assert driver.session.watch.view == View(fence=FENCE)
    ((hello_id, _),) = driver.sent()
    view = View(fence=FENCE, waiting=0 if ended is None else 1, ended=ended)
    driver.greet(hello_id, session=9, view=view)
    assert driver.session.watch.view == view


def test_a_worker_of_a_server_that_forgot_everything_is_in_a_dead_generation() -> None:
    driver = Driver(WORKER)
    driver.welcome(view=View(fence=FENCE))
    driver.drop()
    ((hello_id, _),) = driver.connect()
    driver.say(hello_id, error(ErrorCode.UNKNOWN_EPOCH))
    ended = driver.session.watch.view.ended
    assert ended is not None
    assert ended.kind == "server_restarted"


def test_s2_a_session_that_is_resumed_believes_in_no_older_generation() -> None:
    driver = Driver()
    driver.in_generation()
    driver.drop()
    ((hello_id, _),) = driver.connect()
    driver.greet(hello_id, resumed=True, view=View(fence=FENCE))
    driver.say(0, ViewChanged(view=View(fence=Fence(FENCE.epoch - 1, 1))))
    assert driver.session.watch.view == View(fence=FENCE)


def test_a_first_hello_refused_like_a_lost_session_is_not_repeated_for_ever() -> None:
    driver = Driver()
    ((hello_id, _),) = driver.connect()
    driver.say(hello_id, error(ErrorCode.UNKNOWN_EPOCH))
    assert driver.session.state is State.OVER
    assert driver.sent() == []


# --- refused for good -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED,
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.UNSUPPORTED,
        ErrorCode.MALFORMED,
        ErrorCode.LIMIT_EXCEEDED,
        ErrorCode.STALE_GENERATION,
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_l6_a_final_refusal_ends_the_session_and_everything_it_waits_for(
    code: ErrorCode, again: bool
) -> None:
    driver = Driver()
    if again:
        driver.in_generation()
        driver.drop()
    join, get = driver.ask(), driver.ask(GET)
    ((hello_id, _),) = driver.connect()
    driver.events()
    why = error(code, "never again")
    driver.say(hello_id, why)
    events = driver.events()
    assert driver.session.state is State.OVER
    assert driver.session.failure == why
    assert driver.wants_out()
    assert [e for e in events if isinstance(e, Answered)] == [
        Answered(join, why),
        Answered(get, why),
    ]
    assert changes(events) == [StateChanged(State.OVER, "never again")]
    if again:
        view = only(events, View)
        assert view.ended is not None
        assert view.ended.kind == ("fenced" if code is ErrorCode.FENCED else "disconnected")
    driver.hang_up()
    assert driver.session.reconnect.attempt_at is None
    assert driver.session.next_deadline() is None


def test_a_session_that_is_over_answers_at_once_and_sends_nothing() -> None:
    driver = Driver()
    ((hello_id, _),) = driver.connect()
    driver.say(hello_id, error(ErrorCode.FENCED, "a newer process"))
    driver.hang_up()
    driver.events()
    request_id = driver.ask()
    assert driver.events() == [Answered(request_id, error(ErrorCode.FENCED, "a newer process"))]
    assert driver.sent() == []


@pytest.mark.parametrize("code", [ErrorCode.SUPERSEDED, ErrorCode.SHUTTING_DOWN])
def test_a_hello_refused_for_now_is_tried_again_on_a_new_connection(code: ErrorCode) -> None:
    driver = Driver()
    join = driver.ask()
    ((hello_id, _),) = driver.connect()
    driver.say(hello_id, error(code, "not now"))
    driver.hang_up()
    assert driver.session.state is State.SUSPENDED
    assert driver.session.last_error == "not now"
    assert driver.session.reconnect.attempt_at is not None
    assert driver.welcome() == [(join, JOIN)]


def test_l6_a_hello_refused_for_a_time_is_not_repeated_before_that_time() -> None:
    driver = Driver()
    ((hello_id, _),) = driver.connect()
    driver.say(hello_id, Error(code=ErrorCode.SHUTTING_DOWN, message="bye", retry_after_ms=4000))
    driver.hang_up()
    attempt_at = driver.session.reconnect.attempt_at
    assert attempt_at is not None
    assert attempt_at >= driver.now + 4


def test_a_challenge_is_answered_by_giving_up_with_a_word_on_the_token() -> None:
    driver = Driver()
    join = driver.ask()
    ((hello_id, _),) = driver.connect()
    assert driver.greet(hello_id, challenge=b"nonce") == []
    failure = driver.session.failure
    assert failure is not None
    assert failure.code == ErrorCode.UNAUTHENTICATED
    assert failure.message == "host:29500 demands authentication; this client has no token"
    assert failure.action == ERRORS[ErrorCode.UNAUTHENTICATED].action
    assert driver.answers() == {join: failure}
    assert driver.wants_out()
    assert driver.session.welcome is None
