"""The checker itself: a broken state must be found, and its rule named."""

from collections.abc import Callable

import pytest

from rdzv_proto.messages import Ended, Fence, Joined
from rdzv_server.core.events import Release, Send
from rdzv_server.core.invariants import Monitor, check, check_effects
from rdzv_server.core.model import Phase, Run
from tests.lab import Lab, policy


def two_of_two(lab: Lab) -> Run:
    lab.world("a", "b", rules=policy(2))
    return lab.run()


def _drop_session(lab: Lab, run: Run) -> None:
    del lab.core.tables.sessions[run.members["a"].session.id]


def _same_rank(lab: Lab, run: Run) -> None:
    assert run.generation is not None
    run.generation.rank_of = dict.fromkeys(run.generation.rank_of, 0)


def _wrong_tally(lab: Lab, run: Run) -> None:
    run.tally[0] += 1


def _phase(lab: Lab, run: Run) -> None:
    run.phase = Phase.FORMING


def _announce(lab: Lab, run: Run) -> None:
    run.announced = 1


def _all_finished(lab: Lab, run: Run) -> None:
    assert run.generation is not None
    run.generation.finished = set(run.generation.rank_of)


def _future(lab: Lab, run: Run) -> None:
    run.number = 0


def _ghost_connection(lab: Lab, run: Run) -> None:
    session = run.members["a"].session
    assert session.connection is not None
    del lab.core.tables.connections[session.connection.id]


def _lost_hint(lab: Lab, run: Run) -> None:
    run.hints[3] = run.members["a"]


@pytest.mark.parametrize(
    ("breach", "rule"),
    [
        (_drop_session, "removed session"),
        (_same_rank, "S1"),
        (_wrong_tally, "tally"),
        (_phase, "phase"),
        (_announce, "B29"),
        (_all_finished, "all finished"),
        (_future, "S2"),
        (_ghost_connection, "closed connection"),
        (_lost_hint, "rank hint"),
    ],
)
def test_a_breach_is_found_and_named(breach: Callable[[Lab, Run], None], rule: str) -> None:
    lab = Lab()
    run = two_of_two(lab)
    check(lab.core.tables)
    breach(lab, run)
    with pytest.raises(AssertionError, match=rule):
        check(lab.core.tables)


def test_a_breach_tells_the_story_of_the_run() -> None:
    lab = Lab()
    run = two_of_two(lab)
    run.tally[0] += 1
    with pytest.raises(AssertionError, match="LAST_CALL -> LIVE"):
        check(lab.core.tables)


def test_history_finds_a_fence_that_falls_and_a_table_that_changes() -> None:
    lab = Lab()
    run = two_of_two(lab)
    generation = run.generation
    assert generation is not None
    monitor = Monitor()
    monitor.check(lab.core.tables)
    generation.digest = b"other"
    with pytest.raises(AssertionError, match="S3"):
        monitor.check(lab.core.tables)
    generation.fence = Fence(1, 1)
    with pytest.raises(AssertionError, match="S2"):
        monitor.check(lab.core.tables)


def test_history_finds_a_second_reason_for_an_end() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    a.leave("drained")
    monitor = Monitor()
    monitor.check(lab.core.tables)
    generation = lab.run().generation
    assert generation is not None
    generation.ended = Ended(kind="lost", reason="no, it was lost")
    with pytest.raises(AssertionError, match="S9"):
        monitor.check(lab.core.tables)


def test_an_assignment_that_is_not_true_any_more_is_found() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    told = a.joined
    assert isinstance(told, Joined)
    check_effects(lab.core.tables, [Send(a.wire.conn, 1, told)])
    with pytest.raises(AssertionError, match="S4"):
        check_effects(lab.core.tables, [Send(b.wire.conn, 1, told)])
    with pytest.raises(AssertionError, match="S1"):
        check_effects(lab.core.tables, [Release(((a.wire.conn, 1), (b.wire.conn, 1)), told)])
    b.leave("drained")
    with pytest.raises(AssertionError, match="S8"):
        check_effects(lab.core.tables, [Send(a.wire.conn, 1, told)])
