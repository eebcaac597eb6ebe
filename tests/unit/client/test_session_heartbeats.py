"""A session keeps its lease, notices a dead connection, and lets the server forget answers."""

import pytest

from rdzv_client.inflight import ACKNOWLEDGE_EVERY
from rdzv_client.session_events import State
from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Alive,
    AnyRequest,
    Error,
    Heartbeat,
    HelloAdmin,
    KvAdd,
    KvNumber,
    ServerStatus,
    Status,
)
from tests.unit.client.driver import FENCE, LEASE_S, Driver

ADD = KvAdd(fence=FENCE, key="n", delta=1)


def beats(sent: list[tuple[int, AnyRequest]]) -> list[tuple[int, int]]:
    """Heartbeats among what was sent: request id and what they acknowledge."""
    return [(i, m.acknowledged) for i, m in sent if isinstance(m, Heartbeat)]


def until_beat(driver: Driver) -> tuple[int, int]:
    """Let time pass until a heartbeat is due; returns it."""
    due = driver.session.next_deadline()
    assert due is not None
    driver.advance(due - driver.now)
    (beat,) = beats(driver.sent())
    return beat


def test_a_heartbeat_is_due_within_every_third_of_the_lease() -> None:
    driver = Driver()
    driver.welcome()
    last = driver.now
    for count in range(4):
        beat, _ = until_beat(driver)
        assert driver.now - last <= LEASE_S / 3
        if count:
            assert driver.now - last == pytest.approx(LEASE_S / 3)
        last = driver.now
        driver.say(beat, Alive())


def test_the_servers_lease_counts_not_the_one_that_was_asked_for() -> None:
    driver = Driver()
    driver.welcome(lease_ms=3000)
    until_beat(driver)
    assert driver.now - 100 <= 1.0


def test_an_answered_heartbeat_is_no_event() -> None:
    driver = Driver()
    driver.welcome()
    driver.events()
    beat, _ = until_beat(driver)
    driver.say(beat, Alive())
    assert driver.events() == []


def test_half_a_lease_without_an_answer_makes_the_session_hang_up() -> None:
    driver = Driver()
    driver.welcome()
    until_beat(driver)
    first = driver.now
    driver.advance(LEASE_S / 2 - 0.01)
    assert not driver.wants_out()
    driver.advance(0.01)
    assert driver.wants_out()
    assert driver.session.last_error == "no answer to a heartbeat for 7.5 s"
    assert driver.now - first == pytest.approx(LEASE_S / 2)
    driver.hang_up()
    assert driver.session.state is State.SUSPENDED
    assert driver.session.reconnect.attempt_at == driver.now


def test_patience_counts_from_the_first_heartbeat_without_an_answer() -> None:
    driver = Driver()
    driver.welcome()
    until_beat(driver)
    first = driver.now
    until_beat(driver)
    assert driver.session.next_deadline() == pytest.approx(first + LEASE_S / 2)


def test_an_answered_heartbeat_starts_the_patience_anew() -> None:
    driver = Driver()
    driver.welcome()
    for _ in range(5):
        beat, _ = until_beat(driver)
        driver.advance(LEASE_S / 6)
        driver.say(beat, Alive())
    driver.advance(0.01)
    assert not driver.wants_out()


def test_without_a_connection_there_are_no_heartbeats_and_after_it_there_are() -> None:
    driver = Driver()
    driver.welcome()
    until_beat(driver)
    driver.drop()
    driver.advance(LEASE_S)
    assert driver.sent() == []
    driver.welcome(resumed=True)
    driver.advance(0.01)
    assert not driver.wants_out(), "the lost answer is not waited for any more"
    until_beat(driver)


def test_a_heartbeat_acknowledges_everything_before_the_first_pending_request() -> None:
    driver = Driver()
    driver.welcome()
    first, second, third = (driver.ask(ADD) for _ in range(3))
    driver.sent()
    driver.say(first, KvNumber(value=1))
    driver.say(third, KvNumber(value=3))
    beat, acknowledged = until_beat(driver)
    assert acknowledged == first == second - 1
    driver.say(beat, Alive())
    driver.say(second, KvNumber(value=2))
    beat, acknowledged = until_beat(driver)
    assert acknowledged == beat - 1


def test_a_request_pending_over_a_break_is_never_acknowledged() -> None:
    driver = Driver()
    driver.welcome()
    pending = driver.ask()
    driver.drop()
    driver.welcome(resumed=True)
    for _ in range(3):
        request_id = driver.ask(ADD)
        driver.sent()
        driver.say(request_id, KvNumber(value=1))
        beat, acknowledged = until_beat(driver)
        assert acknowledged < pending
        driver.say(beat, Alive())


def test_many_answers_are_acknowledged_before_the_servers_window_is_full() -> None:
    driver = Driver()
    driver.welcome()
    sent: list[tuple[int, AnyRequest]] = []
    for count in range(ACKNOWLEDGE_EVERY):
        assert not beats(sent), f"too early, after {count} answers"
        request_id = driver.ask(ADD)
        driver.sent()
        driver.say(request_id, KvNumber(value=1))
        sent += driver.sent()
    assert [acknowledged for _, acknowledged in beats(sent)] == [request_id]
    assert ACKNOWLEDGE_EVERY * 2 <= limits.REPLIES_RECORDED_MAX


def test_the_count_of_answers_starts_anew_with_each_heartbeat() -> None:
    driver = Driver()
    driver.welcome()
    for _ in range(ACKNOWLEDGE_EVERY - 1):
        driver.say(driver.ask(ADD), KvNumber(value=1))
    driver.sent()
    until_beat(driver)
    driver.say(driver.ask(ADD), KvNumber(value=1))
    assert beats(driver.sent()) == []


def test_an_error_to_a_request_is_its_answer_and_counts_as_one() -> None:
    driver = Driver()
    driver.welcome()
    request_id = driver.ask(ADD)
    driver.events()
    error = Error(code=ErrorCode.NOT_A_NUMBER, message="no")
    driver.say(request_id, error)
    assert driver.answers() == {request_id: error}
    assert driver.session.connected_now
    assert until_beat(driver)[1] == request_id


def test_an_admin_may_ask_as_often_as_it_likes_on_one_connection() -> None:
    driver = Driver(HelloAdmin())
    driver.welcome(session=0, token=b"", lease_ms=60_000)
    status = ServerStatus(server="s", protocol=1, instance="i", epoch=1, state="memory")
    for _ in range(ACKNOWLEDGE_EVERY + 1):
        driver.say(driver.ask(Status()), status)
    driver.advance(0.001)
    assert beats(driver.sent()) == []
    assert not driver.wants_out()
