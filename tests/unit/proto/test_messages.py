"""The table of messages itself: what codec, page and tests rely on."""

import itertools

import pytest
from msgspec import inspect

from rdzv_proto.messages import (
    PUSHES,
    REPLIES,
    REQUESTS,
    AnyPush,
    AnyReply,
    AnyRequest,
    Authenticate,
    Fence,
    HelloAdmin,
    HelloNode,
    HelloWorker,
    Message,
    Push,
    Reply,
    Request,
)
from tests.unit.proto.strategies import ALL


def all_subclasses(of: type[Message]) -> set[type[Message]]:
    return set(of.__subclasses__())


def test_every_message_class_is_in_its_table_under_its_op() -> None:
    assert all_subclasses(Request) == set(AnyRequest.__args__) == set(REQUESTS.values())
    assert all_subclasses(Reply) == set(AnyReply.__args__) == set(REPLIES.values())
    assert all_subclasses(Push) == set(AnyPush.__args__) == set(PUSHES.values())
    assert all(kind.op == op for op, kind in ALL.items())


def test_no_two_messages_share_an_op() -> None:
    assert len(ALL) == len(REQUESTS) + len(REPLIES) + len(PUSHES)


@pytest.mark.parametrize("kind", REQUESTS.values(), ids=REQUESTS)
def test_every_request_is_answered_by_a_reply_of_the_table(kind: type[Request]) -> None:
    assert kind.answer in REPLIES
    assert kind.answer != "error"


def test_exactly_the_requests_that_change_something_are_recorded() -> None:
    recorded = {op for op, kind in REQUESTS.items() if kind.recorded}
    assert recorded == {
        "join", "finished", "leave", "close_run", "kv_set", "kv_add", "kv_multi_set",
        "kv_cas", "kv_append", "kv_delete", "barrier", "nccl_put", "nccl_ready", "nccl_fail",
        "master_probe", "workers_started",
    }  # fmt: skip


def test_messages_are_frozen_and_leave_defaults_out() -> None:
    for kind in ALL.values():
        assert kind.__struct_config__.frozen
        assert kind.__struct_config__.omit_defaults
        assert not kind.__struct_config__.forbid_unknown_fields, "newer fields must be ignored"


def test_every_message_is_documented() -> None:
    assert all((kind.__doc__ or "").strip().endswith(".") for kind in ALL.values())


@pytest.mark.parametrize("kind", REQUESTS.values(), ids=REQUESTS)
def test_everything_of_variable_length_in_a_request_is_bounded(kind: type[Request]) -> None:
    """A server must be able to say what the largest request of each kind is."""
    unbounded = [path for path, of in walk(inspect.type_info(kind), kind.op) if not bounded(of)]
    assert not unbounded


@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_no_message_holds_a_float_or_a_free_form(kind: type[Message]) -> None:
    simple = (inspect.IntType, inspect.StrType, inspect.BytesType, inspect.BoolType,
              inspect.NoneType, inspect.ListType, inspect.LiteralType)  # fmt: skip
    for path, of in walk(inspect.type_info(kind), kind.op):
        assert isinstance(of, simple), path


def walk(of: inspect.Type, path: str) -> list[tuple[str, inspect.Type]]:
    """All leaves and lists of a type."""
    match of:
        case inspect.Metadata(type=inner):
            return walk(inner, path)
        case inspect.UnionType(types=types):
            return [found for one in types for found in walk(one, path)]
        case inspect.StructType(fields=fields):
            return [found for f in fields for found in walk(f.type, f"{path}.{f.name}")]
        case inspect.ListType(item_type=item):
            return [(path, of), *walk(item, f"{path}[]")]
        case _:
            return [(path, of)]


def bounded(of: inspect.Type) -> bool:
    match of:
        case inspect.StrType(max_length=high) | inspect.BytesType(max_length=high):
            return high is not None
        case inspect.ListType(max_length=high):
            return high is not None
        case _:
            return True


def test_later_fences_compare_greater() -> None:
    fences = [Fence(1, 1), Fence(1, 2), Fence(1, 10), Fence(2, 1), Fence(10, 0)]
    assert all(a < b for a, b in itertools.pairwise(fences))
    assert Fence(1, 2) == Fence(1, 2) != Fence(2, 1)
    assert len({Fence(1, 2), Fence(1, 2)}) == 1


def test_a_fence_is_shown_as_epoch_and_generation() -> None:
    assert str(Fence(1000, 3)) == "1000.3"


def test_hellos_and_their_proof_are_the_only_requests_that_open_a_session() -> None:
    welcomed = {kind for kind in REQUESTS.values() if kind.answer == "welcome"}
    assert welcomed == {HelloNode, HelloWorker, HelloAdmin, Authenticate}
