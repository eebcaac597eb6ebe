"""Coming back after a break, and hanging up on what is no rdzv server."""

import pytest
from msgspec.structs import replace

from rdzv_client.backoff import BACK_CAP_S
from rdzv_client.reconnect import HELLO_S
from rdzv_client.session_events import State, StateChanged
from rdzv_proto import codec
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Done,
    Ended,
    Fence,
    Goodbye,
    HelloAdmin,
    HelloWorker,
    KvAdd,
    KvNumber,
    KvSet,
    Leave,
    Notice,
    Resume,
    Status,
    View,
)
from tests.unit.client.driver import FENCE, HELLO, JOIN, TOKEN, Driver, changes, joined, only

ADD = KvAdd(fence=FENCE, key="n", delta=1)
WORKER = HelloWorker(
    run="llama", node_id="node-1", fence=FENCE, rank=0, worker_token=TOKEN, incarnation=b"w" * 16
)


def test_after_a_break_pending_requests_are_sent_again_under_their_ids_in_order() -> None:
    driver = Driver()
    driver.welcome()
    ids = [driver.ask(m) for m in (JOIN, ADD, KvSet(fence=FENCE, key="k", value=b"v"))]
    driver.sent()
    driver.say(ids[1], KvNumber(value=1))
    driver.drop()
    during = driver.ask(Leave(kind="drained"))
    driver.now += 0.5
    sent = driver.welcome(resumed=True)
    assert [request_id for request_id, _ in sent] == [ids[0], ids[2], during]
    assert [type(message).op for _, message in sent] == ["join", "kv_set", "leave"]


def test_the_next_hello_proves_the_session_and_counts_the_attempt() -> None:
    driver = Driver()
    driver.welcome()
    driver.drop()
    driver.drop("refused")
    ((_, hello),) = driver.connect()
    assert hello == replace(HELLO, attempt=2, resume=Resume(7, 3, TOKEN))


def test_request_ids_are_never_used_twice_hellos_and_heartbeats_included() -> None:
    driver = Driver()
    ids = [driver.ask()]
    for _ in range(3):
        ((hello_id, _),) = driver.connect()
        ids.append(hello_id)
        driver.greet(hello_id)
        ids.append(driver.ask(ADD))
        driver.sent()
        driver.advance(6)
        ids += [request_id for request_id, _ in driver.sent()]
        driver.drop()
    assert len(ids) == len(set(ids)) == 10
    assert ids == sorted(ids)


def test_a_break_is_reported_with_its_reason_and_the_return_with_its_length() -> None:
    driver = Driver()
    driver.welcome()
    driver.events()
    driver.drop("reset by peer")
    driver.now += 0.4
    driver.drop("refused")
    driver.now += 0.6
    driver.welcome(resumed=True)
    suspended, connected = changes(driver.events())
    assert suspended == StateChanged(State.SUSPENDED, "reset by peer")
    assert connected.state is State.CONNECTED
    assert connected.away_s == pytest.approx(1.0)


def test_an_attempt_that_fails_is_not_reported_as_a_change() -> None:
    driver = Driver()
    driver.session.connecting()
    driver.drop("refused")
    assert driver.events() == []
    assert driver.session.last_error == "refused"


def test_bytes_of_a_broken_connection_are_not_mixed_with_those_of_the_next() -> None:
    driver = Driver()
    driver.welcome()
    driver.session.received(driver.now, codec.encode(0, Notice(message="half"))[:9])
    driver.drop()
    driver.welcome(resumed=True)
    assert driver.session.connected_now
    assert not driver.wants_out()


def test_what_was_not_sent_when_the_connection_broke_is_not_sent_twice_after_it() -> None:
    driver = Driver()
    driver.welcome()
    request_id = driver.ask(ADD)
    driver.drop()
    assert [i for i, _ in driver.welcome(resumed=True)] == [request_id]


def test_a_push_that_was_lost_is_made_good_by_the_welcome() -> None:
    driver = Driver()
    driver.in_generation()
    driver.drop()
    ended = View(fence=FENCE, waiting=2, ended=Ended(kind="lost", reason="b is gone"))
    driver.welcome(resumed=True, view=ended)
    assert only(driver.events(), View) == ended


def test_a_welcome_to_another_generation_means_that_this_one_ended_meanwhile() -> None:
    driver = Driver()
    driver.in_generation()
    driver.drop()
    driver.welcome(resumed=True, view=View())
    view = only(driver.events(), View)
    assert view.fence == FENCE
    assert view.ended is not None
    assert view.ended.kind == "superseded"
    assert "7.1" in view.ended.reason
    assert view.waiting == 1


def test_a_newcomer_announced_while_the_assignment_was_lost_is_not_forgotten() -> None:
    driver = Driver()
    driver.in_generation()
    rejoin = driver.ask()
    driver.sent()
    driver.drop()  # the answer was on its way
    later = Fence(7, 2)
    driver.welcome(resumed=True, view=View(fence=later, waiting=1))
    driver.say(rejoin, joined(later))
    assert driver.session.watch.view == View(fence=later, waiting=1)


def test_a_worker_resumes_too_and_an_admin_never_does() -> None:
    worker = Driver(WORKER)
    worker.welcome()
    worker.drop()
    ((_, hello),) = worker.connect()
    assert isinstance(hello, HelloWorker)
    assert (hello.attempt, hello.resume) == (2, Resume(7, 3, TOKEN))

    admin = Driver(HelloAdmin(client="test"))
    admin.welcome(session=0, token=b"", lease_ms=0)
    admin.ask(Status())
    admin.drop()
    ((_, again),) = admin.connect()
    assert again == HelloAdmin(client="test")


def test_a_hello_that_is_not_answered_in_time_makes_the_session_hang_up() -> None:
    driver = Driver()
    driver.connect()
    driver.advance(HELLO_S - 0.1)
    assert not driver.wants_out()
    assert driver.session.next_deadline() is not None
    driver.advance(0.1)
    assert driver.wants_out()
    assert "no answer to the hello within 5 s" in driver.session.last_error
    driver.hang_up()
    assert driver.session.reconnect.attempt_at is not None


@pytest.mark.parametrize("how", ["no answer in time", "broken"])
def test_s33_after_a_hello_that_had_no_answer_the_next_attempt_is_within_the_grace(
    how: str,
) -> None:
    """The server may have read it: then its grace of a second runs."""
    for seed in range(20):
        driver = Driver()
        driver.session.reconnect._rng.seed(seed)
        driver.welcome()
        driver.drop()
        for _ in range(10):  # the server was away before, so that pauses are long
            driver.session.connecting()
            driver.drop("connection refused")
        driver.connect()
        if how == "broken":
            driver.drop("connection reset")
        else:
            driver.advance(HELLO_S)
            driver.hang_up()
        attempt_at = driver.session.reconnect.attempt_at
        assert attempt_at is not None
        assert attempt_at - driver.now <= BACK_CAP_S


def test_a_hello_that_was_answered_does_not_shorten_the_pause() -> None:
    """Thousands may wait at a server that stands by: their pauses are as after any attempt."""
    answered, refused = Driver(), Driver()
    for driver in (answered, refused):
        driver.welcome()
        driver.drop()
        for _ in range(10):
            driver.session.connecting()
            driver.drop("connection refused")
        driver.session.reconnect._rng.seed(3)
    answered.connect()
    answered.say(0, Goodbye(code=ErrorCode.NOT_LEADER, message="standing by"))
    answered.hang_up()
    refused.session.connecting()
    refused.drop("connection refused")
    assert answered.session.reconnect.attempt_at == refused.session.reconnect.attempt_at


def test_a_connection_that_is_closed_before_its_welcome_names_the_likely_cause() -> None:
    driver = Driver()
    driver.connect()
    assert driver.session.last_error == (
        "host:29500 accepted the connection but does not answer: is it rdzv?"
    )


def test_a_hello_answered_by_something_else_makes_the_session_hang_up() -> None:
    driver = Driver()
    ((hello_id, _),) = driver.connect()
    driver.say(hello_id, Done())
    assert driver.wants_out()
    assert driver.session.last_error == "host:29500 answered a hello with done"
    assert driver.session.state is State.SUSPENDED


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x01\x00\x02\x02\x0a" + b"\0" * 20,
        b"\0\0\0\x05hello",
        b"\0\0\0\0",
        b"\xff" * 64,
    ],
)
def test_a_foreign_server_is_hung_up_on_and_named(data: bytes) -> None:
    driver = Driver()
    driver.connect()
    driver.session.received(driver.now, data)
    if data[:1] != b"\x15":  # a TLS alert reads as the start of a long frame: the hello times out
        assert driver.wants_out()
        assert "host:29500 does not speak the rdzv protocol" in driver.session.last_error
    driver.advance(HELLO_S)
    assert driver.wants_out()
    driver.hang_up()
    assert driver.session.state is State.SUSPENDED, "it may be rdzv next time"


def test_nothing_behind_rubbish_is_believed() -> None:
    driver = Driver()
    ((hello_id, _),) = driver.connect()
    rubbish = b"\0\0\0\x05hello" + codec.encode(0, Notice(message="boo"))
    driver.session.received(driver.now, rubbish)
    assert driver.events() == []
    assert hello_id == 1


@pytest.mark.parametrize(("lease_ms", "patience_s"), [(3000, 1.0), (15_000, 2.5)])
def test_a_server_that_fell_silent_gets_a_sixth_of_the_lease_for_the_hello(
    lease_ms: int, patience_s: float
) -> None:
    driver = Driver()
    driver.welcome(lease_ms=lease_ms)
    driver.drop()
    driver.connect(doubtful=True)
    driver.advance(patience_s - 0.01)
    assert not driver.wants_out()
    driver.advance(0.01)
    assert driver.wants_out()
    assert driver.session.last_error == f"no answer to the hello within {patience_s:g} s"
    driver.hang_up()
    driver.connect()
    driver.advance(HELLO_S - 0.01)
    assert not driver.wants_out(), "the next server has the usual time"
