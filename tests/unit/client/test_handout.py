"""To whom each event of a session goes."""

import logging

import pytest

from rdzv_client.endpoint import parse
from rdzv_client.handout import Handout
from rdzv_client.reports import Reports
from rdzv_client.session_events import Answered, State, StateChanged
from rdzv_client.targets import Targets
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import AnyReply, Done, Fence, NcclRevoked, Notice, View

VIEW = View(fence=Fence(7, 1), waiting=2)


class Heard:
    """A handout, and what its listeners heard."""

    def __init__(self) -> None:
        self.replies: list[AnyReply] = []
        self.views: list[View] = []
        targets = Targets(parse("127.0.0.1:29500"))
        self.handout = Handout(targets, self.views.append, Reports("llama", "127.0.0.1:29500"))
        self.handout.callbacks[3] = self.replies.append


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_an_answer_goes_to_who_asked_once(heard: Heard) -> None:
    heard.handout.give(Answered(3, Done()))
    heard.handout.give(Answered(3, Done()))
    assert heard.replies == [Done()]
    assert heard.handout.callbacks == {}


def test_an_answer_that_nobody_waits_for_any_more_is_dropped(heard: Heard) -> None:
    heard.handout.give(Answered(4, Done()))
    assert heard.replies == []
    assert list(heard.handout.callbacks) == [3], "who waits goes on waiting"


def test_a_view_goes_to_its_listener_and_to_the_log(
    heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rdzv")
    heard.handout.give(View(fence=Fence(7, 1), waiting=2, reason="b and c wait"))
    assert [view.waiting for view in heard.views] == [2]
    assert "b and c wait" in caplog.text


def test_what_a_listener_raises_is_raised(heard: Heard) -> None:
    def broken(view: View) -> None:
        raise ZeroDivisionError

    heard.handout.on_view = broken
    with pytest.raises(ZeroDivisionError):
        heard.handout.give(VIEW)


@pytest.mark.parametrize(
    ("state", "met"), [(State.CONNECTED, True), (State.OVER, True), (State.SUSPENDED, False)]
)
def test_a_welcome_or_an_end_is_what_a_first_contact_waits_for(
    heard: Heard, state: State, met: bool
) -> None:
    heard.handout.give(StateChanged(state, "so"))
    assert heard.handout.met.is_set() == met


def test_ids_that_were_taken_back_are_kept_for_who_asks_later(heard: Heard) -> None:
    heard.handout.give(
        NcclRevoked(
            fence=Fence(7, 1),
            group="dp",
            attempt=1,
            code=ErrorCode.ID_FAILED,
            message="node-2 is lost",
        )
    )
    told: list[str] = []
    heard.handout.revocations.listen((Fence(7, 1), "dp", 1), told.append)
    assert told == ["node-2 is lost"]
    assert heard.views == []


def test_a_notice_is_for_people_alone(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    heard.handout.give(Notice(message="b cannot reach rank 0"))
    assert "b cannot reach rank 0" in caplog.text
    assert (heard.replies, heard.views) == ([], [])
