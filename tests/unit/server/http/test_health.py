"""Whether the server serves, and why not."""

import pytest

from rdzv_server.http.health import REASON_CHARS_MAX, STATES, Health


def test_a_server_is_starting_until_it_says_otherwise() -> None:
    health = Health()
    assert health.state == "starting"
    assert health.reason.startswith("starting")


def test_a_server_that_serves_has_no_reason_not_to() -> None:
    health = Health()
    health.started = True
    assert (health.state, health.reason) == ("serving", "")


@pytest.mark.parametrize(
    ("what", "state", "words"),
    [
        ({"read_only": "no space left on device"}, "read_only", "no space left on device"),
        ({"standby": "10.0.0.7:29500"}, "standby", "10.0.0.7:29500 leads"),
        ({"stopping": True}, "shutting_down", "shutting down"),
        ({"started": False}, "starting", "starting"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_each_reason_is_told_and_goes_again(
    what: dict[str, str | bool], state: str, words: str
) -> None:
    health = Health()
    health.started = True
    for name, value in what.items():
        before = getattr(health, name)
        setattr(health, name, value)
        assert health.state == state
        assert words in health.reason
        setattr(health, name, before)
    assert health.reason == ""


def test_the_end_outdoes_everything_else_and_a_standby_need_not_be_writable() -> None:
    health = Health()
    health.started = True
    health.read_only, health.standby = "disk", "a:1"
    assert health.state == "standby"
    health.stopping = True
    assert health.state == "shutting_down"


def test_a_reason_is_one_short_line_whatever_an_error_says() -> None:
    health = Health()
    health.started = True
    health.read_only = "a\nb\u202e" + "x" * 1000
    assert "\n" not in health.reason
    assert "\u202e" not in health.reason
    assert len(health.reason) <= REASON_CHARS_MAX + 1


def test_every_state_has_its_name_in_the_list() -> None:
    assert len(set(STATES)) == len(STATES)
    assert Health().state in STATES
