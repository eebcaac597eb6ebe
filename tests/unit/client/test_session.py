"""Opening a session, asking and being answered, and coming back after a break."""

import pytest
from msgspec.structs import replace

from rdzv_client.session_events import Answered, State, StateChanged
from rdzv_proto import codec, limits
from rdzv_proto.messages import (
    Ended,
    HelloWorker,
    KvAdd,
    KvGet,
    KvNumber,
    KvSet,
    KvValue,
    Leave,
    Notice,
    Progress,
    View,
    ViewChanged,
)
from tests.unit.client.driver import FENCE, HELLO, JOIN, TOKEN, Driver, joined

ADD = KvAdd(fence=FENCE, key="n", delta=1)
WORKER = HelloWorker(
    run="llama", node_id="node-1", fence=FENCE, rank=0, worker_token=TOKEN, incarnation=b"w" * 16
)


def test_the_preamble_and_the_hello_come_first() -> None:
    driver = Driver()
    driver.ask()
    assert driver.connect() == [(2, replace(HELLO, attempt=1))]
    assert driver.sent() == [], "a request waits until the server has welcomed the session"


def test_a_new_session_is_due_to_connect_at_once() -> None:
    driver = Driver()
    assert driver.session.reconnect.attempt_at == driver.now == driver.session.next_deadline()
    assert driver.session.state is State.SUSPENDED
    assert not driver.session.connected_now


def test_requests_made_before_the_welcome_are_sent_after_it_in_order() -> None:
    driver = Driver()
    early = [driver.ask(), driver.ask(ADD)]
    (hello_id, _), *_ = driver.connect()
    late = driver.ask(Leave(kind="drained"))
    sent = driver.greet(hello_id)
    assert [request_id for request_id, _ in sent] == [*early, late]
    assert [message for _, message in sent] == [JOIN, ADD, Leave(kind="drained")]
    assert driver.session.connected_now


def test_a_welcome_is_reported_with_the_server_and_no_absence() -> None:
    driver = Driver()
    driver.now += 20
    driver.welcome()
    assert driver.events() == [StateChanged(State.CONNECTED, "rdzv test", 0.0)]
    assert driver.session.welcome is not None
    assert driver.session.lease_s == 15.0


def test_a_request_on_a_standing_connection_is_sent_at_once() -> None:
    driver = Driver()
    driver.welcome()
    request_id = driver.ask(ADD)
    assert driver.sent() == [(request_id, ADD)]
    assert driver.sent() == [], "bytes are returned once"


def test_an_answer_goes_to_its_request_whatever_the_order() -> None:
    driver = Driver()
    driver.welcome()
    first, second = driver.ask(ADD), driver.ask(KvGet(fence=FENCE, key="k"))
    driver.events()
    driver.say(second, KvValue(value=b"v"))
    driver.say(first, KvNumber(value=1))
    assert driver.events() == [
        Answered(second, KvValue(value=b"v")),
        Answered(first, KvNumber(value=1)),
    ]


def test_a_second_answer_and_one_nobody_waits_for_are_ignored() -> None:
    driver = Driver()
    driver.welcome()
    request_id, forgotten = driver.ask(ADD), driver.ask(ADD)
    driver.session.forget(forgotten)
    driver.events()
    for answered in (request_id, request_id, forgotten, 999):
        driver.say(answered, KvNumber(value=1))
    assert list(driver.answers()) == [request_id]
    assert not driver.wants_out()


def test_answers_arrive_byte_by_byte() -> None:
    driver = Driver()
    driver.welcome()
    request_id = driver.ask()
    driver.events()
    for byte in codec.encode(request_id, joined()):
        assert driver.answers() == {}
        driver.session.received(driver.now, bytes([byte]))
    assert driver.answers() == {request_id: joined()}


def test_progress_and_notices_are_passed_on() -> None:
    driver = Driver()
    driver.welcome()
    driver.events()
    progress = Progress(joined=1, min_nodes=2, max_nodes=4)
    driver.say(0, progress)
    driver.say(0, Notice(message="hear"))
    assert driver.events() == [progress, Notice(message="hear")]


def test_a_view_is_an_event_only_when_it_changes_something() -> None:
    driver = Driver()
    driver.in_generation()
    view = View(fence=FENCE, waiting=1)
    for _ in range(2):
        driver.say(0, ViewChanged(view=view))
    assert driver.events() == [view]
    assert driver.session.watch.view == view


def test_an_assignment_is_the_first_view_of_its_generation() -> None:
    driver = Driver()
    driver.welcome()
    request_id = driver.ask()
    driver.events()
    driver.say(request_id, joined())
    assert driver.events() == [View(fence=FENCE), Answered(request_id, joined())]


def test_a_replayed_assignment_does_not_hide_an_end_that_was_pushed_before() -> None:
    driver = Driver()
    driver.welcome()
    request_id = driver.ask()
    ended = View(fence=FENCE, waiting=1, ended=Ended(kind="lost", reason="b is gone"))
    driver.say(0, ViewChanged(view=ended))
    driver.say(request_id, joined())
    assert driver.session.watch.view == ended
    assert driver.answers() == {request_id: joined()}


def test_a_request_too_large_for_a_frame_is_refused_before_it_is_sent() -> None:
    driver = Driver()
    driver.welcome()
    value = bytes(limits.FRAME_BYTES_MAX)
    with pytest.raises(ValueError, match=r"kv_set: \d+ bytes exceed the limit of \d+"):
        driver.ask(KvSet(fence=FENCE, key="k", value=value))
    assert driver.sent() == []
    driver.drop()
    assert driver.welcome() == [], "it is not pending either"


def test_the_largest_value_is_not_too_large() -> None:
    driver = Driver()
    driver.welcome()
    key = "k" * limits.KEY_CHARS_MAX
    driver.ask(KvSet(fence=FENCE, key=key, value=bytes(limits.VALUE_BYTES_MAX)))
    assert len(driver.sent()) == 1
