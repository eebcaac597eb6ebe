"""Who may come in: limits, and who goes first when there are too many."""

import pytest

from rdzv_server.shell.admission import (
    EVICT_AFTER_S,
    OPENINGS_MAX,
    OPENINGS_PER_HOST,
    RESERVE,
    Admission,
    capacity,
)

LATE = EVICT_AFTER_S + 0.1


class Entry:
    """A connection that knows whether it was cut."""

    def __init__(self) -> None:
        self.cut = 0

    def abort(self) -> None:
        self.cut += 1


def filled(admission: Admission, count: int, host: str = "10.0.0.1", at: float = 0) -> list[Entry]:
    """That many openings."""
    entries = [Entry() for _ in range(count)]
    for entry in entries:
        admission.opened(entry, host, at)
    return entries


def cut(entries: list[Entry]) -> list[int]:
    """Which of them were cut."""
    return [i for i, entry in enumerate(entries) if entry.cut]


@pytest.mark.parametrize(
    ("nofile", "connections"),
    [(20_000, 20_000 - RESERVE), (256, 192), (RESERVE, 1), (0, 1), (-1, (1 << 20) - RESERVE)],
)
def test_a_reserve_of_descriptors_is_kept_and_one_connection_is_always_possible(
    nofile: int, connections: int
) -> None:
    assert capacity(nofile) == connections


@pytest.mark.parametrize(("most", "openings"), [(20_000, OPENINGS_MAX), (192, 48), (3, 1), (1, 1)])
def test_strangers_get_a_quarter_at_most(most: int, openings: int) -> None:
    assert Admission(most).openings_max == openings


def test_a_good_hello_makes_room_for_the_next_opening() -> None:
    admission = Admission(8, 2)
    first, _ = filled(admission, 2)
    assert admission.crowded
    admission.greeted(first)
    assert (admission.connections, admission.openings, admission.crowded) == (2, 1, False)
    admission.greeted(first)
    assert admission.openings == 1


def test_openings_and_members_count_up_to_the_limit_together() -> None:
    admission = Admission(4, 4)
    members = filled(admission, 3)
    for member in members:
        admission.greeted(member)
    assert (admission.full, admission.openings) == (False, 0)
    (opening,) = filled(admission, 1)
    assert (admission.full, admission.openings) == (True, 1)
    for entry in (opening, opening, members[0], Entry()):
        admission.closed(entry)
    assert (admission.connections, admission.openings) == (2, 0)


def test_the_oldest_goes_first_and_nobody_within_its_time() -> None:
    admission = Admission(8)
    entries = filled(admission, 1) + filled(admission, 1, at=1)
    assert not admission.evict(EVICT_AFTER_S)
    assert admission.evict(LATE)
    assert not admission.evict(LATE)
    assert cut(entries) == [0]
    assert admission.evict(1 + LATE)
    assert cut(entries) == [0, 1]
    assert not admission.evict(99)
    assert admission.evicted == 2


def test_an_evicted_one_holds_its_descriptor_until_it_is_closed() -> None:
    admission = Admission(1)
    (entry,) = filled(admission, 1)
    admission.evict(LATE)
    assert (admission.full, admission.crowded) == (True, False)
    admission.greeted(entry)  # its hello was on the way
    admission.closed(entry)
    assert (admission.connections, admission.openings) == (0, 0)


def test_a_member_is_never_evicted() -> None:
    admission = Admission(2)
    (member,) = filled(admission, 1)
    admission.greeted(member)
    assert not admission.evict(99)
    assert not member.cut


def test_t11_an_address_with_too_many_has_its_own_evicted_before_older_ones_of_others() -> None:
    admission = Admission(1000)
    honest = filled(admission, OPENINGS_PER_HOST, "10.0.0.1", at=0)
    hostile = filled(admission, OPENINGS_PER_HOST + 2, "10.0.0.2", at=1)
    for _ in range(2):
        assert admission.evict(1 + LATE)
    assert (cut(honest), cut(hostile)) == ([], [0, 1])
    assert admission.evict(1 + LATE)
    assert (cut(honest), cut(hostile)) == ([0], [0, 1])


def test_the_one_with_too_many_is_left_alone_while_its_openings_are_young() -> None:
    admission = Admission(1000)
    honest = filled(admission, 1, "10.0.0.1", at=0)
    hostile = filled(admission, OPENINGS_PER_HOST + 1, "10.0.0.2", at=1)
    assert admission.evict(LATE)
    assert (cut(honest), cut(hostile)) == ([0], [])


def test_only_the_named_ones_are_looked_at() -> None:
    admission = Admission(1000)
    entries = filled(admission, 3)
    assert not admission.evict(LATE, among=())
    assert admission.evict(LATE, among=entries[1:])
    assert cut(entries) == [1]


def test_an_opening_may_be_cut_in_another_way_than_a_connection() -> None:
    admission, ways = Admission(8), []
    entry = Entry()
    admission.opened(entry, "10.0.0.1", 0, lambda: ways.append("handshake"))
    admission.evict(LATE)
    assert (ways, entry.cut) == (["handshake"], 0)


def test_a_connection_that_is_handed_over_counts_once_and_is_no_opening() -> None:
    admission = Admission(8)
    (old,) = filled(admission, 1)
    new = Entry()
    admission.handed_over(old, new)
    admission.handed_over(old, Entry())
    assert (admission.connections, admission.openings) == (1, 0)
    admission.closed(old)
    assert admission.connections == 1
    admission.closed(new)
    assert admission.connections == 0


def test_a_port_of_a_store_takes_a_descriptor_but_no_opening() -> None:
    admission = Admission(1)
    port = Entry()
    admission.hold(port)
    assert (admission.full, admission.openings) == (True, 0)
    assert not admission.evict(99)
    admission.closed(port)
    assert not admission.full


def test_who_waits_is_told_once_and_only_when_there_is_room() -> None:
    admission, told = Admission(4, 2), []
    members = filled(admission, 2)
    for member in members:
        admission.greeted(member)
    openings = filled(admission, 2)

    def room() -> None:
        told.append(admission.connections)

    admission.when_room(room)
    admission.when_room(room)
    admission.greeted(openings[0])
    assert told == [], "no opening too many, but no descriptor either"
    admission.closed(members[0])
    admission.closed(members[1])
    assert told == [3]
    admission.when_room(room)
    admission.forget(room)
    admission.forget(room)
    admission.closed(openings[0])
    assert told == [3]
