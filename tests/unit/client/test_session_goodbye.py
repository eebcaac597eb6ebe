"""How a session ends: told goodbye, given up, closed."""

import pytest

from rdzv_client.session_events import Answered, State, StateChanged, Unreachable
from rdzv_proto.errors import ERRORS, ErrorCode
from rdzv_proto.messages import AnyReply, Error, Goodbye
from tests.unit.client.driver import Driver, changes


def error(code: int, message: str = "because") -> Error:
    return Error(code=code, message=message)


def test_l6_a_server_that_shuts_down_is_left_alone_for_the_time_it_asks() -> None:
    driver = Driver()
    driver.in_generation()
    join = driver.ask()
    driver.say(0, Goodbye(code=ErrorCode.SHUTTING_DOWN, message="going", retry_after_ms=2000))
    driver.hang_up()
    assert driver.session.state is State.SUSPENDED
    assert changes(driver.events()) == [StateChanged(State.SUSPENDED, "going")]
    attempt_at = driver.session.reconnect.attempt_at
    assert attempt_at is not None
    assert driver.now + 2 <= attempt_at <= driver.now + 3
    assert [i for i, _ in driver.welcome(resumed=True)] == [join]


def test_the_pause_is_for_the_next_connection_only() -> None:
    driver = Driver()
    driver.in_generation()
    driver.say(0, Goodbye(code=ErrorCode.SHUTTING_DOWN, message="going", retry_after_ms=60_000))
    driver.hang_up()
    driver.welcome(resumed=True)
    driver.drop()
    assert driver.session.reconnect.attempt_at == driver.now


def test_nothing_behind_a_goodbye_counts() -> None:
    driver = Driver()
    driver.in_generation()
    join = driver.ask()
    driver.say(0, Goodbye(code=ErrorCode.SHUTTING_DOWN, message="going"))
    driver.say(join, error(ErrorCode.SHUTTING_DOWN))
    assert driver.answers() == {}
    driver.hang_up()
    assert [i for i, _ in driver.welcome(resumed=True)] == [join], "it is asked again"


def stands_by(leader: str = "b:2") -> Goodbye:
    return Goodbye(code=ErrorCode.NOT_LEADER, message="b:2 leads", leader=leader)


def test_a_server_that_stands_by_sends_on_to_the_leader_at_once() -> None:
    driver = Driver()
    driver.connect()
    driver.say(0, stands_by())
    driver.hang_up()
    assert driver.session.reconnect.attempt_at == driver.now
    assert driver.session.reconnect.leader == "b:2"


def test_servers_that_send_a_client_to_each_other_do_not_keep_it_busy() -> None:
    driver = Driver()
    pauses = []
    for _ in range(8):
        driver.connect()
        driver.say(0, stands_by())
        driver.hang_up()
        at = driver.session.reconnect.attempt_at
        assert at is not None
        pauses.append(at - driver.now)
    assert pauses[0] == 0
    assert all(pauses[1:]), "every further one is an attempt that failed"


def test_without_a_leader_the_others_are_asked_after_a_pause() -> None:
    driver = Driver()
    driver.connect()
    driver.say(0, stands_by(leader=""))
    driver.hang_up()
    at = driver.session.reconnect.attempt_at
    assert at is not None
    assert at > driver.now
    assert driver.session.reconnect.leader == ""


@pytest.mark.parametrize(
    "code",
    [ErrorCode.SESSION_LOST, ErrorCode.SUPERSEDED, ErrorCode.INTERNAL, 999],
)
def test_a_goodbye_that_is_not_final_is_a_broken_connection(code: int) -> None:
    driver = Driver()
    driver.in_generation()
    driver.say(0, Goodbye(code=code, message="off you go"))
    driver.hang_up()
    assert driver.session.state is State.SUSPENDED
    assert driver.session.reconnect.attempt_at == driver.now


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED,
        ErrorCode.UNSUPPORTED,
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.FRAME_TOO_LARGE,
        ErrorCode.MALFORMED,
    ],
)
def test_l6_a_final_goodbye_ends_the_session(code: ErrorCode) -> None:
    driver = Driver()
    driver.in_generation()
    join = driver.ask()
    driver.events()
    driver.say(0, Goodbye(code=code, message="for good"))
    failure = Error(code=code, message="for good", action=ERRORS[code].action)
    assert driver.session.state is State.OVER
    assert driver.session.failure == failure
    assert driver.answers() == {join: failure}
    driver.hang_up()
    assert driver.session.reconnect.attempt_at is None


def test_a_goodbye_before_the_hello_is_answered_counts_too() -> None:
    driver = Driver()
    driver.connect()
    driver.say(0, Goodbye(code=ErrorCode.UNSUPPORTED, message="version 9 only"))
    assert driver.session.failure is not None
    assert driver.session.failure.message == "version 9 only"


# --- giving up --------------------------------------------------------------------------------


def test_before_the_first_contact_it_gives_up_after_connect_timeout() -> None:
    driver = Driver(connect_timeout_s=60, reconnect_timeout_s=30)
    join = driver.ask()
    driver.session.connecting()
    driver.drop("Connection refused")
    driver.advance(59.9)
    assert driver.session.state is State.SUSPENDED
    driver.events()
    driver.advance(0.1)
    failure = driver.session.failure
    assert failure is not None
    assert failure.code == ErrorCode.CONNECTION_LOST
    assert failure.message == (
        "cannot reach rdzv-server at host:29500 for 60.0 s (limit 60 s); last error: "
        "Connection refused"
    )
    assert failure.action == ERRORS[ErrorCode.CONNECTION_LOST].action
    assert driver.answers() == {join: failure}


def test_after_a_contact_it_gives_up_after_reconnect_timeout() -> None:
    driver = Driver(connect_timeout_s=60, reconnect_timeout_s=30)
    driver.in_generation()
    driver.now += 1000
    driver.drop("reset by peer")
    driver.advance(29.9)
    assert driver.session.state is State.SUSPENDED
    driver.advance(0.1)
    assert driver.session.failure is not None
    assert driver.session.failure.message == (
        "lost contact with rdzv-server at host:29500 for 30.0 s (limit 30 s); last error: "
        "reset by peer"
    )
    view = driver.session.watch.view
    assert view.ended is not None
    assert view.ended.kind == "disconnected"


def test_it_gives_up_also_while_an_attempt_hangs() -> None:
    driver = Driver(connect_timeout_s=3)
    driver.connect()
    driver.advance(3)
    assert driver.session.state is State.OVER
    assert driver.wants_out()


def test_the_time_to_give_up_is_a_deadline() -> None:
    driver = Driver(connect_timeout_s=3)
    driver.session.connecting()
    assert driver.session.next_deadline() == driver.now + 3


def test_while_it_is_away_it_complains_every_five_seconds() -> None:
    driver = Driver(connect_timeout_s=300)
    start = driver.now
    complaints = []
    driver.session.connecting()
    driver.drop("name lookup failed")
    while driver.now < start + 21:
        driver.advance(0.25)
        if driver.session.reconnect.attempt_at is not None:
            driver.session.connecting()
            driver.drop("name lookup failed")
        complaints += [(driver.now - start, e) for e in driver.events()]
    assert [at for at, _ in complaints] == [5, 10, 15, 20]
    assert complaints[1][1] == Unreachable(10, 300, "name lookup failed")


# --- closing ----------------------------------------------------------------------------------


def test_close_fails_what_is_pending_and_hangs_up() -> None:
    driver = Driver()
    driver.in_generation()
    join = driver.ask()
    driver.sent()
    driver.session.close("closed by this process")
    events = driver.events()
    assert driver.session.state is State.OVER
    assert driver.wants_out()
    answers: dict[int, AnyReply] = {
        e.request_id: e.reply for e in events if isinstance(e, Answered)
    }
    assert answers == {
        join: Error(code=ErrorCode.CONNECTION_LOST, message="closed by this process")
    }
    assert changes(events) == [StateChanged(State.OVER, "closed by this process")]


def test_close_twice_and_after_the_end_changes_nothing() -> None:
    driver = Driver()
    driver.in_generation()
    driver.session.close()
    driver.events()
    driver.session.close("again")
    assert driver.events() == []
    assert driver.session.failure is not None
    assert driver.session.failure.message == "closed by this process"


def test_after_close_neither_time_nor_the_network_brings_it_back() -> None:
    driver = Driver()
    driver.in_generation()
    driver.session.close()
    driver.hang_up()
    driver.events()
    driver.advance(1000)
    driver.drop()
    assert driver.events() == []
    assert driver.session.next_deadline() is None
    assert driver.session.reconnect.attempt_at is None
