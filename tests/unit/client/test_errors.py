"""What the client library raises: texts, kinds, and the way through a pickle."""

import copy
import pickle

import pytest

from rdzv_client import errors
from rdzv_client.errors import (
    ConnectionLost,
    Fenced,
    Final,
    GenerationEnded,
    InternalServerError,
    JoinTimeout,
    RdzvError,
    SessionLost,
    Timeout,
    UnknownEpoch,
    Unreachable,
    from_reply,
)
from rdzv_proto.errors import ERRORS, ErrorCode
from rdzv_proto.messages import Error

EACH = pytest.mark.parametrize("code", ErrorCode, ids=[code.name for code in ErrorCode])


def raised(code: int, message: str = "node b is missing", action: str = "") -> RdzvError:
    return from_reply(Error(code=code, message=message, action=action))


@EACH
def test_the_text_says_what_happened_what_to_do_and_a_label_to_search_for(code: ErrorCode) -> None:
    error = raised(code, action="Start node b.")
    assert str(error) == f"node b is missing. Start node b. [{ERRORS[code].label}]"
    assert (error.message, error.action) == ("node b is missing", "Start node b.")
    assert error.info is ERRORS[code]


@EACH
def test_without_an_action_the_tables_own_is_used(code: ErrorCode) -> None:
    error = raised(code)
    assert error.action == ERRORS[code].action
    assert ERRORS[code].action in str(error)


def test_a_message_that_is_a_sentence_already_gets_no_second_full_stop() -> None:
    error = Fenced("a newer process came.", "Stop this one.")
    assert str(error) == "a newer process came. Stop this one. [RDZV-E006]"


@EACH
def test_every_error_survives_pickle_and_copy(code: ErrorCode) -> None:
    error = raised(code, action="Do this.")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is type(error)
        assert (other.message, other.action) == (error.message, error.action)
        assert str(other) == str(error)


@EACH
def test_each_code_has_an_exception_of_its_own(code: ErrorCode) -> None:
    assert type(raised(code)).code == code


@pytest.mark.parametrize("code", [0, 777, -3])
def test_a_code_of_a_newer_server_reads_as_a_fault_of_the_server(code: int) -> None:
    error = raised(code)
    assert type(error) is InternalServerError
    assert error.message == "node b is missing"


def test_a_generation_that_ended_is_caught_however_it_ended() -> None:
    assert {type(raised(c)) for c in ErrorCode if isinstance(raised(c), GenerationEnded)} == {
        GenerationEnded,
        SessionLost,
        UnknownEpoch,
    }


@pytest.mark.parametrize(
    ("code", "builtin"),
    [
        (ErrorCode.JOIN_TIMEOUT, TimeoutError),
        (ErrorCode.WAIT_TIMEOUT, TimeoutError),
        (ErrorCode.REQUEST_TIMEOUT, TimeoutError),
        (ErrorCode.CONNECTION_LOST, ConnectionError),
        (ErrorCode.SHUTTING_DOWN, ConnectionError),
        (ErrorCode.SUPERSEDED, ConnectionError),
    ],
)
def test_timeouts_and_lost_connections_are_those_of_python_too(
    code: ErrorCode, builtin: type[Exception]
) -> None:
    error = raised(code)
    assert isinstance(error, builtin)
    assert isinstance(error, Timeout if builtin is TimeoutError else Unreachable)


def test_kinds_do_not_overlap() -> None:
    kinds = (Final, GenerationEnded, Timeout, Unreachable)
    for code in ErrorCode:
        assert sum(isinstance(raised(code), kind) for kind in kinds) <= 1


def test_the_docstring_names_every_class() -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, RdzvError):
            assert kind.__name__ in (errors.__doc__ or "")


def test_an_error_raised_by_hand_reads_like_one_of_the_server() -> None:
    assert str(JoinTimeout("only 1 of 2 came")).startswith("only 1 of 2 came. Start the missing")
    assert "[RDZV-E101]" in str(ConnectionLost("gone"))


def test_what_a_server_says_is_escaped() -> None:
    error = from_reply(Error(code=ErrorCode.INTERNAL, message="a\u202eb", action="do\u2066it"))
    assert error.message == "a\\u202eb"
    assert str(error).startswith("a\\u202eb. do\\u2066it [")


def test_a_question_needs_no_full_stop() -> None:
    error = from_reply(Error(code=ErrorCode.INTERNAL, message="is it on?", action="look"))
    assert str(error).startswith("is it on? look [")
