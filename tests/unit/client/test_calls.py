"""A thread that waits for the reply to its request."""

import pytest

from rdzv_client.calls import Calls, Waiter
from rdzv_client.errors import GenerationEnded, RequestTimeout
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Done, Error, KvGet, KvValue
from tests.unit.client.fake_server import FENCE, FakeServer
from tests.unit.client.inbox import engine_to

GET = KvGet(fence=FENCE, key="k")


def test_the_reply_is_returned(server: FakeServer) -> None:
    server.on(KvGet, lambda m: KvValue(value=b"v", revision=4))
    with engine_to(server.address) as made:
        assert Calls(made).ask(GET, KvValue, 10.0).value == b"v"


def test_a_refusal_is_raised(server: FakeServer) -> None:
    server.on(KvGet, lambda m: Error(code=ErrorCode.STALE_GENERATION, message="7.1 is over"))
    with engine_to(server.address) as made, pytest.raises(GenerationEnded, match="is over"):
        Calls(made).ask(GET, KvValue, 10.0)


def test_who_gave_up_is_not_answered_any_more(server: FakeServer) -> None:
    server.on(KvGet, None)
    with engine_to(server.address) as made:
        with pytest.raises(RequestTimeout, match="kv_get: no answer"):
            Calls(made).ask(GET, KvValue, 0.0)
        assert made.handout.callbacks == {}, "nothing is kept for it"


def test_a_reply_that_came_before_its_thread_waits_is_there_at_once() -> None:
    waiter = Waiter()
    waiter.take(Done())
    assert waiter.wait(0.0)
    assert waiter.reply == Done()


def test_a_waiter_gives_up_at_its_deadline() -> None:
    waiter = Waiter()
    assert not waiter.wait(0.0)
    assert waiter.reply is None
