"""What the metrics show, as one value taken between two steps of the core.

Nothing is counted for it on the way of a request: gauges are what the tables hold anyway, counters are
integers that the server keeps. No node, key or secret is in here, and a run's name only when the operator
asked for it (SEMANTICS T18).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rdzv_server.core.model import Phase, Run
from rdzv_server.core.tables import Tables
from rdzv_server.http.buckets import LAG_S, Buckets
from rdzv_server.http.health import Health
from rdzv_server.shell.admission import Admission

RUNS_NAMED_MAX = 100
"""Series of a run are kept for ever by whoever scrapes them (T18). What is more is one run `other`."""

OTHER = "other"
"""Stands for what is not told apart: runs above the limit, a kind or event that is not in the lists below.
A client must not be able to make a new series."""

ENDS = (
    "lost", "failed", "drained", "rejoined", "replaced", "scale_up", "closed", "finished",
    "server_restarted",
)  # fmt: skip
"""How a generation can end (`rdzv_proto.messages.Ended`)."""

REFUSALS = (
    "foreign_protocol", "version_refused", "malformed_request", "frame_too_large", "half_frame",
    "slow_reader", "auth_failed", "handshake_failed",
)  # fmt: skip
"""Log events of input that was refused, and of connections that were cut for it."""


_PHASE = {phase: phase.value for phase in Phase}
"""`Enum.value` is a slow property."""

PHASES = (*_PHASE.values(), "idle")
"""Of a run, as `rdzv status` calls them; an idle one has keys and nodes have never joined it."""


class Commits(Protocol):
    """What the storage counts, since the start."""

    @property
    def latency(self) -> Buckets:
        """From the order until it was on the disk."""

    @property
    def failures(self) -> int:
        """Nothing of these was acknowledged."""


@dataclass(slots=True)
class RunNumbers:
    """One run, or several together."""

    members: int = 0
    participants: int = 0
    standbys: int = 0

    def add(self, run: Run) -> None:
        """One more."""
        self.members += len(run.members)
        generation = run.generation
        if generation is not None and generation.ended is None:
            self.participants += len(generation.participants)
            self.standbys += len(run.joins)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All numbers at one moment."""

    version: str
    instance: str
    storage: str
    """`memory`, `sqlite` or `etcd`: never a path or an address."""
    state: str
    """One of `health.STATES`."""
    epoch: int
    insecure: bool
    uptime_s: float
    connections: int
    connections_max: int
    openings: int
    evicted: int
    turned_away: int
    sessions: int
    phases: Mapping[str, int]
    """Runs by phase; all phases are there."""
    all_runs: RunNumbers
    named: Mapping[str, RunNumbers] = field(default_factory=dict)
    """Runs with members, by name; empty unless asked for."""
    generations_formed: int
    generations_ended: Mapping[str, int]
    rounds_released: int
    rounds_failed: int
    requests: int
    denied: int
    refusals: Mapping[str, int]
    stalls: int
    stalled_s: float
    lag: Buckets
    commits: Buckets | None = None
    """None: nothing is stored."""
    commit_failures: int = 0


@dataclass(kw_only=True)
class Sources:
    """Where the numbers are. `take` reads them, in the thread of the event loop.

    Args:
        tables: of the core.
        admission: the books of all connections.
        health: of the server.
        requests: how many requests were done, since the start.
        refusals: how often each log event of the shell came, let through or not.
        lag: how late the loop is.
        commits: of the storage; None: nothing is stored.
        storage: its kind.
        insecure: nobody has to prove who they are, beyond loopback (T1).
        name_runs: the operator wants the runs' names in the metrics.
    """

    tables: Tables
    admission: Admission
    health: Health
    requests: Callable[[], int]
    refusals: Mapping[str, int]
    lag: Buckets = field(default_factory=lambda: Buckets(LAG_S))
    commits: Commits | None = None
    storage: str = "memory"
    insecure: bool = False
    name_runs: bool = False

    def take(self) -> Snapshot:
        """Read everything. With the 1,000 runs that there may be: half a millisecond."""
        tables, admission, totals = self.tables, self.admission, self.tables.totals
        phases, all_runs = dict.fromkeys(PHASES, 0), RunNumbers()
        for run in tables.runs.values():
            phases["idle" if run.policy is None else _PHASE[run.phase]] += 1
            all_runs.add(run)
        started = tables.t if tables.started_at is None else tables.started_at
        stalled_s = tables.clock.stalled_s
        return Snapshot(
            version=tables.identity.version.removeprefix("rdzv "),
            instance=tables.identity.instance,
            storage=self.storage,
            state=self.health.state,
            epoch=tables.identity.epoch,
            insecure=self.insecure,
            uptime_s=max(0.0, tables.t - started + stalled_s),
            connections=admission.connections,
            connections_max=admission.connections_max,
            openings=admission.openings,
            evicted=admission.evicted,
            turned_away=admission.turned_away,
            sessions=len(tables.sessions),
            phases=phases,
            all_runs=all_runs,
            named=named(tables.runs.values()) if self.name_runs else {},
            generations_formed=totals.generations_formed,
            generations_ended=folded(totals.generations_ended, ENDS),
            rounds_released=totals.rounds_released,
            rounds_failed=totals.rounds_failed,
            requests=self.requests(),
            denied=tables.denied,
            refusals={event: self.refusals.get(event, 0) for event in REFUSALS},
            stalls=tables.clock.stalls,
            stalled_s=stalled_s,
            lag=self.lag.copy(),
            commits=None if self.commits is None else self.commits.latency.copy(),
            commit_failures=0 if self.commits is None else self.commits.failures,
        )


def named(runs: Iterable[Run]) -> dict[str, RunNumbers]:
    """Runs with members by name: those that have been there longest, and the rest as one. A run may be
    called as the rest."""
    found: dict[str, RunNumbers] = {}
    for place, run in enumerate(run for run in runs if run.members):
        found.setdefault(run.id if place < RUNS_NAMED_MAX else OTHER, RunNumbers()).add(run)
    return found


def folded(counts: Mapping[str, int], known: Iterable[str]) -> dict[str, int]:
    """Counts of what is known, and of everything else together."""
    found = {name: counts.get(name, 0) for name in known}
    found[OTHER] = sum(count for name, count in counts.items() if name not in found)
    return found
