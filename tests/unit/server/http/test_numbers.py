"""What a snapshot of a server holds."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from rdzv_proto import messages
from rdzv_server import core
from rdzv_server.core.model import Run
from rdzv_server.core.totals import Totals
from rdzv_server.http.buckets import COMMIT_S, Buckets
from rdzv_server.http.health import Health
from rdzv_server.http.numbers import (
    ENDS,
    OTHER,
    PHASES,
    RUNS_NAMED_MAX,
    RunNumbers,
    folded,
    named,
)
from tests.lab import Lab, policy
from tests.unit.server.http.kit import sources


class Commits:
    """Of a storage."""

    def __init__(self) -> None:
        self.latency = Buckets(COMMIT_S)
        self.failures = 3


def test_runs_are_counted_by_phase_and_their_nodes_by_what_they_are() -> None:
    lab = Lab()
    lab.world("a", "b", rules=policy(2, 2), run="live")
    late = lab.node("c", run="live", rules=policy(2, 2))
    late.join()
    lab.node("d", run="forming", rules=policy(2, 2)).join()
    taken = sources(lab).take()
    assert taken.phases == {**dict.fromkeys(PHASES, 0), "live": 1, "forming": 1}
    assert taken.all_runs == RunNumbers(members=4, participants=2, standbys=1)
    assert taken.sessions == 4


def test_every_phase_is_there_from_the_start() -> None:
    assert set(sources().take().phases) == {
        "forming", "last_call", "live", "ended", "closed", "idle",
    }  # fmt: skip


def test_t18_no_run_is_named_unless_asked_for() -> None:
    lab = Lab()
    lab.world("a", "b", rules=policy(2, 2), run="secret-project")
    assert sources(lab).take().named == {}
    asked = sources(lab, name_runs=True).take()
    assert asked.named == {"secret-project": RunNumbers(2, 2, 0)}


def runs_of_one(*names: str) -> list[Run]:
    """Runs with a node each."""
    lab = Lab()
    for each in names:
        lab.node("a", run=each, rules=policy(2, 2)).join()
    return list(lab.core.tables.runs.values())


def test_t18_runs_above_the_limit_are_one() -> None:
    found = named(runs_of_one(*(f"r{number}" for number in range(RUNS_NAMED_MAX + 50))))
    assert len(found) == RUNS_NAMED_MAX + 1
    assert found["r0"] == RunNumbers(members=1)
    assert found[OTHER] == RunNumbers(members=50)


def test_a_run_that_is_called_as_the_rest_is_counted_with_it() -> None:
    found = named(runs_of_one(OTHER, *(f"r{number}" for number in range(RUNS_NAMED_MAX + 4))))
    assert len(found) == RUNS_NAMED_MAX
    assert found[OTHER] == RunNumbers(members=6)


def test_a_run_without_members_has_no_series() -> None:
    lab = Lab()
    lab.core.tables.runs["empty"] = Run("empty", 0)
    assert sources(lab, name_runs=True).take().named == {}


def test_a_kind_that_nobody_knows_makes_no_new_series() -> None:
    found = folded({"lost": 2, "made up": 3, "another": 4}, ENDS)
    assert set(found) == {*ENDS, OTHER}
    assert (found["lost"], found[OTHER]) == (2, 7)


def test_the_kinds_are_those_that_the_protocol_names_for_the_server() -> None:
    text = Path(messages.__file__).read_text()
    told = text.partition("kind: OptionalName")[2].partition("and on the client side")[0]
    assert {word for word in ENDS if f"`{word}`" in told} == set(ENDS)
    assert told.count("`") == 2 * len(ENDS)


def test_every_kind_that_the_server_writes_is_told_apart() -> None:
    (folder,) = core.__path__
    sources = [path.read_text() for path in Path(folder).rglob("*.py")]
    kinds = {kind for text in sources for kind in re.findall(r'kind="(\w+)"', text)}
    assert kinds
    assert kinds <= set(ENDS)


def test_refusals_are_a_closed_list() -> None:
    taken = sources(refusals={"slow_reader": 4, "run_forgotten": 9}).take()
    assert taken.refusals["slow_reader"] == 4
    assert taken.refusals["half_frame"] == 0
    assert "run_forgotten" not in taken.refusals


def test_what_is_stored_is_only_told_where_something_is() -> None:
    assert sources().take().commits is None
    commits = Commits()
    commits.latency.observe(0.002)
    taken = sources(commits=commits, storage="sqlite").take()
    assert taken.commits is not None
    assert sum(taken.commits.counts) == 1
    assert (taken.commit_failures, taken.storage) == (3, "sqlite")


def test_totals_stalls_and_denials_come_from_where_they_are_counted() -> None:
    lab = Lab()
    lab.advance(1)
    lab.stall(3)
    lab.core.tables.denied = 7
    lab.core.tables.totals = Totals(5, Counter({"lost": 2}), 11, 12)
    taken = sources(lab, requests=lambda: 99).take()
    assert taken.stalls == 1
    assert 2.5 < taken.stalled_s <= 3
    assert taken.uptime_s > 3.9
    assert (taken.denied, taken.requests) == (7, 99)
    assert (taken.generations_formed, taken.rounds_released, taken.rounds_failed) == (5, 11, 12)
    assert taken.generations_ended["lost"] == 2


def test_the_state_is_that_of_the_server() -> None:
    assert sources(health=Health()).take().state == "starting"


def test_a_snapshot_does_not_change_with_the_server() -> None:
    lab = Lab()
    taken = sources(lab)
    before = taken.take()
    kept = replace(before)
    lab.world("a", "b", rules=policy(2, 2))
    taken.lag.observe(1.0)
    assert before == kept
    assert sum(before.lag.counts) == 0
