"""The cached view: newer ones replace older ones, and an end stays."""

from hypothesis import given
from hypothesis import strategies as st

from rdzv_client.watch import Watch
from rdzv_proto import limits
from rdzv_proto.messages import Ended, Fence, View
from tests.unit.proto.strategies import often

OLD, NOW, NEXT = Fence(7, 1), Fence(7, 2), Fence(8, 1)
LOST = Ended(kind="lost", reason="b was lost")


def at(view: View) -> Watch:
    watch = Watch()
    watch.take(view)
    return watch


def test_at_first_there_is_no_generation() -> None:
    assert Watch().view == View()


def test_a_view_is_taken_and_says_whether_it_changed_anything() -> None:
    watch = Watch()
    assert watch.take(View(fence=NOW))
    assert not watch.take(View(fence=NOW))
    assert watch.take(View(fence=NOW, waiting=2))
    assert watch.view == View(fence=NOW, waiting=2)


def test_the_waiting_count_may_fall_again_while_the_generation_lives() -> None:
    watch = at(View(fence=NOW, waiting=2))
    assert watch.take(View(fence=NOW))
    assert watch.view.waiting == 0


def test_views_of_older_generations_are_dropped() -> None:
    watch = at(View(fence=NOW))
    for older in (View(fence=OLD, waiting=1, ended=LOST), View(), View(waiting=5)):
        assert not watch.take(older)
    assert watch.view == View(fence=NOW)


def test_a_later_generation_replaces_an_ended_one() -> None:
    watch = at(View(fence=NOW, waiting=1, ended=LOST))
    assert watch.take(View(fence=NEXT))
    assert watch.view == View(fence=NEXT)


def test_an_end_stays_for_its_generation() -> None:
    ended = View(fence=NOW, waiting=1, ended=LOST)
    watch = at(ended)
    assert not watch.take(View(fence=NOW))
    assert not watch.take(View(fence=NOW, waiting=3))
    assert watch.view == ended


def test_the_waiting_count_of_an_ended_generation_is_kept_current() -> None:
    watch = at(View(fence=NOW, waiting=1, ended=LOST))
    assert watch.take(View(fence=NOW, waiting=3, ended=LOST))
    assert watch.view.waiting == 3


def test_an_assignment_begins_a_generation() -> None:
    watch = at(View(fence=OLD, waiting=1, ended=LOST))
    assert watch.joined(NOW)
    assert watch.view == View(fence=NOW)


def test_a_replayed_assignment_changes_nothing_that_is_known() -> None:
    for known in (View(fence=NOW, waiting=1, ended=LOST), View(fence=NOW, waiting=2)):
        watch = at(known)
        assert not watch.joined(NOW)
        assert not watch.joined(OLD)
        assert watch.view == known


def test_an_end_seen_from_this_side_asks_for_a_rejoin() -> None:
    watch = at(View(fence=NOW))
    assert watch.end("session_lost", "silent too long")
    assert watch.view == View(
        fence=NOW, waiting=1, ended=Ended(kind="session_lost", reason="silent too long")
    )


def test_the_first_end_is_the_only_one() -> None:
    watch = at(View(fence=NOW, waiting=1, ended=LOST))
    assert not watch.end("disconnected", "later")
    assert watch.view.ended == LOST


def test_there_is_no_end_without_a_generation() -> None:
    watch = Watch()
    assert not watch.end("disconnected", "no server")
    assert watch.view == View()


def test_a_reason_too_long_for_the_protocol_is_cut() -> None:
    watch = at(View(fence=NOW))
    watch.end("disconnected", "x" * 5000)
    assert watch.view.ended is not None
    assert watch.view.ended.reason == "x" * limits.TEXT_CHARS_MAX


def test_a_welcome_brings_the_same_generation_up_to_date() -> None:
    watch = at(View(fence=NOW))
    assert watch.catch_up(View(fence=NOW, waiting=1, ended=LOST))
    assert watch.view.ended == LOST
    assert not watch.catch_up(View(fence=NOW))
    assert watch.view.ended == LOST


def test_a_welcome_is_the_first_view_of_a_session_without_one() -> None:
    watch = Watch()
    assert watch.catch_up(View(fence=NOW, waiting=1))
    assert watch.view == View(fence=NOW, waiting=1)


def test_a_welcome_that_does_not_know_this_generation_ends_it() -> None:
    for view in (View(), View(fence=OLD), View(fence=NEXT)):
        watch = at(View(fence=NOW))
        assert watch.catch_up(view)
        assert watch.view.waiting >= 1 or watch.view.fence == NEXT


def test_a_welcome_does_not_overwrite_the_reason_of_an_end() -> None:
    watch = at(View(fence=NOW, waiting=1, ended=LOST))
    assert not watch.catch_up(View())
    assert watch.view.ended == LOST


VIEWS = st.builds(
    View,
    fence=st.none() | st.builds(Fence, st.integers(0, 2), st.integers(0, 2)),
    waiting=st.integers(0, 2),
    ended=st.none() | st.just(LOST),
)


@often
@given(st.lists(st.one_of(VIEWS, st.tuples(VIEWS), st.just("end")), max_size=20))
def test_the_fence_never_falls_and_an_end_is_never_taken_back(
    steps: list[View | tuple[View] | str],
) -> None:
    watch = Watch()
    for step in steps:
        before = watch.view
        match step:
            case View():
                changed = watch.take(step)
            case (View(fence=Fence()) as view,):
                assert view.fence is not None
                changed = watch.joined(view.fence)
            case (View() as view,):
                changed = watch.catch_up(view)
            case _:
                changed = watch.end("lost", "b")
        assert changed == (watch.view != before)
        if before.fence is not None:
            assert watch.view.fence is not None
            assert watch.view.fence >= before.fence
            if watch.view.fence == before.fence and before.ended is not None:
                assert watch.view.ended is not None


def test_s31_after_a_server_without_memory_the_next_generation_counts_though_its_clock_was_behind() -> (
    None
):
    watch = at(View(fence=NOW))
    behind = Fence(6, 1)
    assert not watch.joined(behind)
    watch.new_epoch()
    assert watch.joined(behind)
    assert watch.view == View(fence=behind)
    assert not watch.take(View(fence=Fence(5, 9)))  # only the next one
    assert watch.take(View(fence=behind, ended=LOST))


def test_s31_a_view_of_an_older_generation_of_the_epoch_that_is_over_is_none() -> None:
    watch = at(View(fence=NOW))
    watch.new_epoch()
    assert not watch.joined(OLD)
    assert not watch.take(View(fence=OLD))
    assert watch.take(View(fence=Fence(6, 2), waiting=1))


def test_s31_for_whoever_was_in_no_generation_a_new_epoch_changes_nothing() -> None:
    watch = Watch()
    watch.new_epoch()
    assert watch.joined(OLD)
    assert not watch.take(View(fence=Fence(6, 1)))
