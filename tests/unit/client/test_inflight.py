"""Request ids, what is unanswered, and what may be acknowledged."""

from rdzv_client.inflight import ACKNOWLEDGE_BYTES, ACKNOWLEDGE_EVERY, InFlight
from rdzv_proto.messages import ListRuns, Status


def test_ids_start_at_one_and_only_grow() -> None:
    in_flight = InFlight()
    assert [in_flight.next_id() for _ in range(3)] == [1, 2, 3]


def test_requests_are_kept_in_the_order_in_which_they_were_made() -> None:
    in_flight = InFlight()
    for request_id in (3, 5, 9):
        in_flight.add(request_id, Status())
    in_flight.take(5)
    assert [request_id for request_id, _ in in_flight] == [3, 9]


def test_a_request_is_taken_once() -> None:
    in_flight = InFlight()
    in_flight.add(1, ListRuns(only="llama"))
    assert in_flight.take(1) == ListRuns(only="llama")
    assert in_flight.take(1) is None
    assert in_flight.take(2) is None


def test_requests_may_be_taken_while_going_through_them() -> None:
    in_flight = InFlight()
    for _ in range(4):
        in_flight.add(in_flight.next_id(), Status())
    for request_id, _ in in_flight:
        in_flight.take(request_id)
    assert list(in_flight) == []


def test_nothing_from_the_oldest_unanswered_request_on_is_acknowledged() -> None:
    in_flight = InFlight()
    assert in_flight.acknowledge() == 0
    for _ in range(4):
        in_flight.add(in_flight.next_id(), Status())
    in_flight.take(1)
    in_flight.take(3)
    assert in_flight.acknowledge() == 1
    in_flight.take(2)
    assert in_flight.acknowledge() == 3
    in_flight.take(4)
    assert in_flight.acknowledge() == 4


def test_an_acknowledgement_is_due_after_many_answers_and_not_again_after_it() -> None:
    in_flight = InFlight()
    for count in range(ACKNOWLEDGE_EVERY):
        assert not in_flight.acknowledgement_due, count
        in_flight.add(in_flight.next_id(), Status())
        in_flight.take(count + 1)
    assert in_flight.acknowledgement_due
    assert in_flight.acknowledge() == ACKNOWLEDGE_EVERY
    assert not in_flight.acknowledgement_due


def test_an_answer_nobody_waits_for_does_not_count() -> None:
    in_flight = InFlight()
    for _ in range(ACKNOWLEDGE_EVERY):
        in_flight.take(7)
    assert not in_flight.acknowledgement_due


def test_an_acknowledgement_is_due_after_few_large_answers() -> None:
    in_flight = InFlight()
    due = []
    for frame_bytes in (ACKNOWLEDGE_BYTES - 1, 1):
        in_flight.received(frame_bytes)
        due.append(in_flight.acknowledgement_due)
    in_flight.acknowledge()
    assert [*due, in_flight.acknowledgement_due] == [False, True, False]
