"""Many seeds: played by several processes, counted together, the same whatever the number of processes."""

import gc
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests import nextversion
from tests.sim.world import Mode, World

CHUNK = 8
"""Seeds that a process takes at once: about a second."""


@dataclass(frozen=True)
class Case:
    """One history."""

    seed: int
    mode: Mode

    @property
    def command(self) -> str:
        """Plays it again, step by step."""
        return f"python -m tests.sim --mode {self.mode.value} --seed {self.seed} --trace"


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    case: Case
    hash: str
    """Of everything that happened, in its order."""
    violation: str = ""
    events: int = 0
    faults: int = 0
    virtual_s: float = 0.0
    generations: int = 0
    releases: int = 0
    failures: int = 0
    """Of barrier rounds, as told to members."""
    appends: int = 0
    reads: int = 0
    ids: int = 0
    """Unique ids that were handed out."""
    later: int = 0
    """Connections in the next version of the protocol."""
    judged: int = 0
    """Operations that the checkers looked at, when all was over."""
    undecided: int = 0
    """Keys that they gave up."""
    took_s: tuple[float, ...] = ()
    """Of liveness: until each healed core had passed a barrier."""


def play(case: Case) -> Outcome:
    """Play one history. Whatever is raised in it is a violation: the core has no error that it may raise."""
    world = World(case.seed, case.mode)
    violation = ""
    try:
        world.play()
    except Exception as error:  # noqa: BLE001 (see above)
        violation = f"{type(error).__name__}: {error}"
    return outcome(case, world, violation)


def outcome(case: Case, world: World, violation: str) -> Outcome:
    """Count what happened in a world."""
    return Outcome(
        case,
        world.hash,
        violation,
        world.clock.steps,
        world.faults,
        world.clock.now,
        world.rules.generations,
        world.ledger.releases,
        world.ledger.failures,
        world.ledger.acknowledged,
        world.ledger.reads,
        world.id_ledger.delivered,
        world.server.agreed[nextversion.V2.number],
        0 if world.verdict is None else world.verdict.ops,
        0 if world.verdict is None else len(world.verdict.undecided),
        tuple(core.took_s for core in world.cores if core.took_s is not None),
    )


def cases(first: int, last: int, modes: Iterable[Mode]) -> list[Case]:
    """All seeds of a range, in all of these modes."""
    return [Case(seed, mode) for mode in modes for seed in range(first, last + 1)]


def play_all(todo: list[Case], jobs: int) -> Iterator[Outcome]:
    """Play them, and give the outcomes in the order of the cases."""
    if jobs <= 1 or len(todo) <= CHUNK:
        yield from map(play, todo)
        return
    chunks = [todo[i : i + CHUNK] for i in range(0, len(todo), CHUNK)]
    with multiprocessing.get_context("spawn").Pool(jobs, _settle_in) as pool:
        for outcomes in pool.imap(_play_chunk, chunks):
            yield from outcomes


def _settle_in() -> None:
    """Histories are short, and make few cycles: the collector may come seldom, and need not look at what was imported."""
    gc.set_threshold(100_000, 20, 50)
    gc.freeze()


def _play_chunk(todo: list[Case]) -> list[Outcome]:
    return [play(case) for case in todo]


def jobs_default() -> int:
    """As many as may run at once."""
    return len(os.sched_getaffinity(0))


@dataclass
class Totals:
    """A campaign."""

    began: float = field(default_factory=time.perf_counter)
    seeds: int = 0
    events: int = 0
    faults: int = 0
    virtual_s: float = 0.0
    generations: int = 0
    releases: int = 0
    failures: int = 0
    appends: int = 0
    reads: int = 0
    ids: int = 0
    later: int = 0
    judged: int = 0
    undecided: int = 0
    took_s: list[float] = field(default_factory=list)
    violations: list[Outcome] = field(default_factory=list)

    def add(self, one: Outcome) -> None:
        self.seeds += 1
        for name in (
            "events", "faults", "virtual_s", "generations", "releases", "failures", "appends", "reads", "ids",
            "later", "judged", "undecided",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(one, name))
        self.took_s.extend(one.took_s)
        if one.violation:
            self.violations.append(one)

    def text(self) -> str:
        """What was played, for people."""
        wall_s = time.perf_counter() - self.began
        text = (
            f"{self.seeds} seeds, {self.events} events, {self.faults} faults, {self.generations} generations, "
            f"{self.releases} releases and {self.failures} failures of barriers told, {self.appends} appends and "
            f"{self.reads} reads of them, {self.ids} unique ids, {self.later} connections in the next protocol "
            f"version, {self.judged} operations judged at the end and {self.undecided} keys undecided, "
            f"{self.virtual_s:.0f} virtual s in {wall_s:.1f} s "
            f"({self.events / wall_s * 60:.2g} events a minute, {self.virtual_s / wall_s:.0f} virtual s a second); "
            f"{len(self.violations)} violations"
        )
        if self.took_s:
            took = sorted(self.took_s)
            p50, p99 = (took[int(len(took) * part)] for part in (0.5, 0.99))
            text += f"\n{len(took)} healed cores met again after {p50:.1f} s (p50), {p99:.1f} s (p99), {took[-1]:.1f} s"
        return text
