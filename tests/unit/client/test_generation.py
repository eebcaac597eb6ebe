"""What a member knows of a generation, and how it learns of the end."""

import threading

import pytest
from msgspec.structs import replace

from rdzv_client.generation import (
    EndedFlag,
    GenerationState,
    Member,
    fields_of,
    participants,
)
from rdzv_proto.messages import Address, Ended, Fence, MemberStatus, View
from tests.unit.client.driver import joined

LOST = Ended(kind="lost", reason="node b was lost")
FENCE = Fence(7, 2)


def generation() -> GenerationState:
    return GenerationState(run="llama", rank=0, world_size=2, fence=FENCE)


def test_a_living_generation_has_no_end() -> None:
    flag = EndedFlag()
    assert not flag
    assert not flag.is_set()
    assert not flag.wait(0)
    assert (flag.kind, flag.reason) == ("", "")


def test_the_end_has_one_kind_and_reason_the_first() -> None:
    flag = EndedFlag()
    flag.set(LOST)
    flag.set(Ended(kind="closed", reason="later"))
    assert flag
    assert flag.is_set()
    assert (flag.kind, flag.reason) == ("lost", "node b was lost")


def test_the_end_wakes_a_thread_that_waits() -> None:
    flag = EndedFlag()
    woken: list[bool] = []
    waiting = threading.Thread(target=lambda: woken.append(flag.wait(30)))
    waiting.start()
    flag.set(LOST)
    waiting.join(30)
    assert woken == [True]


def test_listeners_are_called_once_when_the_reason_is_known() -> None:
    flag = EndedFlag()
    heard: list[str] = []
    for name in "ab":
        flag.when_set(lambda name=name: heard.append(f"{name}: {flag.reason}"))  # type: ignore[misc]
    assert heard == []
    flag.set(LOST)
    flag.set(LOST)
    assert heard == ["a: node b was lost", "b: node b was lost"]


def test_a_listener_that_comes_late_is_called_at_once() -> None:
    flag = EndedFlag()
    flag.set(LOST)
    heard: list[str] = []
    flag.when_set(lambda: heard.append(flag.kind))
    assert heard == ["lost"]


def test_a_listener_may_look_at_the_flag_and_add_another() -> None:
    """No lock is held while listeners run."""
    flag = EndedFlag()
    heard: list[str] = []
    flag.when_set(lambda: flag.when_set(lambda: heard.append(flag.reason)))
    flag.set(LOST)
    assert heard == ["node b was lost"]


def test_a_listener_that_raises_harms_neither_the_others_nor_the_library() -> None:
    flag = EndedFlag()
    heard: list[str] = []
    flag.when_set(lambda: heard.append(str(1 / 0)))
    flag.when_set(lambda: heard.append(flag.kind))
    flag.set(LOST)
    assert heard == ["lost"]


def test_a_view_of_this_generation_brings_the_waiting_count_and_the_end() -> None:
    g = generation()
    g.see(View(fence=FENCE, waiting=2))
    assert g.waiting == 2
    assert not g.ended
    g.see(View(fence=FENCE, waiting=1, ended=LOST))
    assert g.waiting == 1
    assert g.ended.reason == "node b was lost"


@pytest.mark.parametrize("fence", [None, Fence(7, 1), Fence(6, 99)])
def test_views_of_older_generations_and_of_none_say_nothing(fence: Fence | None) -> None:
    g = generation()
    g.see(View(fence=fence, waiting=3, ended=LOST))
    assert g.waiting == 0
    assert not g.ended


@pytest.mark.parametrize("later", [Fence(7, 3), Fence(8, 1)])
def test_a_view_of_a_later_generation_means_that_this_one_is_over(later: Fence) -> None:
    g = generation()
    g.see(View(fence=later))
    assert g.ended.kind == "superseded"
    assert str(later) in g.ended.reason
    assert g.waiting >= 1, "who polls the waiting count must notice"


def test_the_end_of_a_later_generation_is_not_taken_for_the_own_reason() -> None:
    g = generation()
    g.see(View(fence=Fence(7, 3), waiting=1, ended=LOST))
    assert g.ended.kind == "superseded"


def test_an_assignment_becomes_a_generation() -> None:
    told = joined(
        FENCE,
        group_rank=1,
        master=Address(host="10.0.0.1", port=4321),
        master_reason="first",
        worker_token=b"w" * 32,
    )
    g = GenerationState(**fields_of("llama", told))  # type: ignore[arg-type]
    assert (g.run, g.rank, g.world_size, g.number) == ("llama", 1, 2, 2)
    assert (g.fence, g.reason, g.digest) == (FENCE, "all in", b"d")
    assert (g.master.port, g.master_reason, g.worker_token) == (4321, "first", b"w" * 32)


def test_the_worker_token_is_not_shown() -> None:
    g = GenerationState(run="r", rank=0, world_size=1, fence=FENCE, worker_token=b"secret")
    assert "secret" not in repr(g)
    assert "secret" not in str(g)


def test_participants_are_the_members_with_a_rank() -> None:
    address = Address(host="h", port=1)
    rows = [
        MemberStatus(node_id="a-1", name="a", state="participant", group_rank=0, address=address),
        MemberStatus(node_id="c-1", name="c", state="standby"),
        MemberStatus(node_id="b-1", name="b", state="suspect", group_rank=1),
    ]
    assert participants(rows) == [
        Member("a-1", "a", 0, address),
        Member("b-1", "b", 1, Address()),
    ]


def test_reasons_are_escaped_before_they_get_into_logs() -> None:
    fields = fields_of("llama", replace(joined(), reason="a\u202eb", master_reason="c\u202ed"))
    assert (fields["reason"], fields["master_reason"]) == ("a\\u202eb", "c\\u202ed")
    state = GenerationState(run="llama", rank=0, world_size=2, fence=FENCE)
    state.see(View(fence=FENCE, ended=Ended(kind="lost", reason="e\u202ef")))
    assert state.ended.reason == "e\\u202ef"
