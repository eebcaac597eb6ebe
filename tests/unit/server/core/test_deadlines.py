"""Deadlines against the simplest implementation there is: a dict."""

from hypothesis import given
from hypothesis import strategies as st

from rdzv_server.core.deadlines import Deadlines

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 20)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("pop"), st.integers(0, 7), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(_STEPS)
def test_it_behaves_as_a_dict_of_times(steps: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    plain: dict[int, int] = {}
    for action, key, at in steps:
        if action == "set":
            deadlines.set(key, at)
            plain[key] = at
        elif action == "cancel":
            deadlines.cancel(key)
            plain.pop(key, None)
        else:
            most = key
            popped = deadlines.pop_due(at, most)
            due = sorted(v for v in plain.values() if v <= at)
            assert len(set(popped)) == len(popped)
            assert [plain[k] for k in popped] == due[:most]
            for k in popped:
                del plain[k]
        assert deadlines.next() == min(plain.values(), default=None)
        assert len(deadlines) == len(plain)


def test_moving_a_deadline_later_does_not_grow_the_heap() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for at in range(1000):
        deadlines.set("lease", at)
    assert len(deadlines._heap) == 1
    assert deadlines.next() == 999


def test_none_before_is_certain_but_may_know_less_than_next() -> None:
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.none_before(1e9)
    deadlines.set("a", 5.0)
    assert deadlines.none_before(5.0)
    assert not deadlines.none_before(5.1)
    deadlines.set("a", 9.0)
    assert not deadlines.none_before(6.0), "the old time is still in the heap"
    assert deadlines.next() == 9.0
    assert deadlines.none_before(6.0)
