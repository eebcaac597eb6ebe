"""What is verified: scenes, each with faults of its own, and mutants of the model that must be found."""

from dataclasses import dataclass

MEMORY, DURABLE = 0, 1


@dataclass(frozen=True)
class Scene:
    """One state space, looked at completely.

    Args:
        name: for people.
        starts: of new processes.
        breaks: of connections.
        losses: of sessions.
        crashes: of the server.
        generations: in all.
        rounds: of the barrier in each.
        late_calls: with the fence of an older generation.
        durable: the server keeps its state.
    """

    name: str
    starts: int = 0
    breaks: int = 0
    losses: int = 0
    crashes: int = 0
    generations: int = 3
    rounds: int = 1
    late_calls: int = 0
    durable: int = MEMORY

    @property
    def defines(self) -> dict[str, int]:
        """For the model."""
        return {
            "STARTS": self.starts, "BREAKS": self.breaks, "LOSSES": self.losses, "CRASHES": self.crashes,
            "FAULTS": self.starts + self.breaks + self.losses + self.crashes,
            "GENERATIONS": self.generations, "ROUNDS": self.rounds, "LATE_CALLS": self.late_calls,
            "DURABLE": self.durable,
        }  # fmt: skip


FULL = (
    Scene("no fault, late calls", rounds=2, late_calls=1),
    Scene("three incarnations of a node", starts=2, generations=2),
    Scene("connections that break twice", breaks=2, generations=2),
    Scene("a lost session and a broken connection", breaks=1, losses=1, generations=1),
    Scene("a new process and a broken connection", starts=1, breaks=1, generations=1),
    Scene("a crash, memory", crashes=1, generations=2, late_calls=1),
    Scene("a crash, durable", crashes=1, durable=DURABLE),
    Scene(
        "a crash and a broken connection, durable",
        breaks=1,
        crashes=1,
        generations=1,
        durable=DURABLE,
    ),
)

SHORT = (
    Scene("no fault, late calls", late_calls=1),
    Scene("two incarnations of a node", starts=1, generations=2),
    Scene("a connection that breaks", breaks=1, generations=2),
    Scene("a lost session", losses=1, generations=2),
    Scene("a crash, durable", crashes=1, generations=1, durable=DURABLE),
)


@dataclass(frozen=True)
class Mutant:
    """A rule that is left out, and where that must be found.

    Args:
        number: in the model.
        name: for people.
        broken: names that stand in the assertion that must fail.
        scene: faults that are enough.
    """

    number: int
    name: str
    broken: str
    scene: Scene

    @property
    def defines(self) -> dict[str, int]:
        """For the model."""
        return self.scene.defines | {"MUTANT": self.number}


BROKEN = Scene("a broken connection", breaks=1, generations=2, rounds=2)
LATE = Scene("late calls", late_calls=1)
NEW = Scene("a new process", starts=1, generations=2)
AGAIN = Scene("a new process and a broken connection", starts=1, breaks=1, generations=2)
CRASH = Scene("a crash", crashes=1, generations=2, late_calls=1)
LOST = Scene("a lost session", losses=1, generations=2)
KEPT = Scene(
    "a crash and a broken connection", crashes=1, breaks=1, generations=1, rounds=2, durable=DURABLE
)

MUTANTS = (
    Mutant(1, "no incarnation check", "asked", NEW),
    Mutant(2, "no generation check", "called", LATE),
    Mutant(3, "a barrier counts arrivals, not members", "called", BROKEN),
    Mutant(4, "a stale close removes the session", "was", BROKEN),
    Mutant(5, "a reply without re-check", "live", BROKEN),
    Mutant(6, "no new epoch at a restart without state", "newest", CRASH),
    Mutant(7, "a fenced process is forgotten", "fenced", AGAIN),
    Mutant(8, "a retry counts again", "passed_fence", BROKEN),
    Mutant(9, "a join without a connection counts for quorum", "session_on", BROKEN),
    Mutant(10, "fences without the epoch", "called", CRASH),
    Mutant(11, "a lost member does not end its generation", "session", LOST),
    Mutant(12, "an older connection attempt takes the session", "session_attempt", BROKEN),
    Mutant(13, "recorded replies are not stored", "passed_fence", KEPT),
)
"""The first six are those of the plan of tests; each of the others was a rule that nothing else here needed."""
