"""What is known of the training job, read from what its nodes print.

The lines are those that anybody sees in the output of torchrun: rdzv's own (`rdzv[digits] …`),
torchrun's, and those of train.py. Of the server's log only the loss of a node is read.
"""

import re
from dataclasses import dataclass, field

RUN = "digits"

_FORMED = re.compile(rf"rdzv\[{RUN}\] generation (\d+): group rank (\d+) of (\d+) \((.*)\)$")
_ENDED = re.compile(rf"rdzv\[{RUN}\] generation (\d+) ended: (.*)$")
_WANTS = re.compile(rf"rdzv\[{RUN}\] (.* wants? in): ")
_CLOSED = re.compile(rf"event=connection_lost .*run={RUN} node=(\S+) .*grace_s=([\d.]+)")
_LOST = re.compile(rf'event=node_lost .*run={RUN} node=(\S+) .* reason="(.*?)"')
_STARTS = re.compile(r"rank 0 of \d+ starts (from .*?(\d*))$")
_STEP = re.compile(r"step (\d+) of \d+: loss ([\d.]+)$")
_FINISHED = re.compile(r"finished: (.*)$")
_BROKEN = re.compile(r"RuntimeError: .*gloo.*(Connection (?:reset|closed) by peer)")
_STOPPED = re.compile(r"Sending process \d+ closing signal SIGTERM")
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: \d+ \(pid: \d+\)")


@dataclass
class World:
    """One generation as its nodes saw it. Times are monotonic seconds."""

    number: int
    size: int
    reason: str
    """Why the server formed it."""
    ranks: dict[int, str] = field(default_factory=dict)
    """Nodes by group rank, as far as they have been told."""
    formed_at: float = 0.0
    """When the last of its nodes was told."""
    ended_at: float = 0.0
    """When the first of its nodes was told; 0 while it lives."""
    end_reason: str = ""
    origin: str = ""
    """Where training started: the beginning, or a checkpoint."""
    started_from: int = 0
    """Steps done before."""
    first_step_at: float = 0.0
    losses: dict[int, float] = field(default_factory=dict)
    """By step, as far as they were printed."""
    step: int = 0
    """Newest that was printed."""
    step_at: float = 0.0

    @property
    def formed(self) -> bool:
        return len(self.ranks) == self.size

    def __str__(self) -> str:
        who = ", ".join(f"{self.ranks[rank]} is rank {rank}" for rank in sorted(self.ranks))
        return f"generation {self.number}: {who} ({self.reason})"


@dataclass
class Told:
    """Something to show."""

    text: str
    kind: str = ""
    """`formed`, `ended`, `died`, `step`, or nothing in particular."""
    who: str = ""
    """Whom it is about; the node that printed it if empty."""


@dataclass
class Job:
    """The job's course so far."""

    worlds: dict[int, World] = field(default_factory=dict)
    finished_at: float = 0.0
    noticed_at: float = 0.0
    """When the server saw the first connection close."""
    restarts_burnt: int = 0
    """Workers that died by themselves: each costs its agent one of --max-restarts."""
    _world_of: dict[str, World] = field(default_factory=dict)

    def formed(self, number: int) -> bool:
        """True once all nodes of a world have been told."""
        return number in self.worlds and self.worlds[number].formed

    def read(self, at: float, who: str, line: str) -> Told | None:
        """Take in a line that a node printed; returns what is worth showing."""
        if match := _FORMED.search(line):
            return self._formed(at, who, int(match[1]), int(match[2]), int(match[3]), match[4])
        if match := _ENDED.search(line):
            return self._ended(at, int(match[1]), match[2])
        if match := _WANTS.search(line):
            return Told(f"told by the server: {match[1]}")
        if match := _BROKEN.search(line):
            return Told(f"the worker's collective broke: {match[1]}")
        if match := _FAILED.search(line):
            self.restarts_burnt += 1
            return Told(
                f"worker died, exit code {match[1]}: that costs its agent one of its 3 restarts",
                "died",
            )
        if _STOPPED.search(line):
            return Told("agent stops its worker: a new world is to form")
        return self._trained(at, who, line)

    def read_server(self, at: float, line: str) -> Told | None:
        """Take in a line of the server's log."""
        if match := _CLOSED.search(line):
            self.noticed_at = self.noticed_at or at
            grace = f"{float(match[2]):g} s"
            return Told(f"the connection of {match[1]} closed; it has {grace} to come back")
        if match := _LOST.search(line):
            return Told(f"{match[1]} is lost: {match[2]}")
        return None

    def _trained(self, at: float, who: str, line: str) -> Told | None:
        world = self._world_of.get(who)
        if world is None:
            return None
        if match := _STARTS.match(line):
            world.origin, world.started_from = match[1], int(match[2] or 0)
            return Told(f"worker is up and trains {match[1]}")
        if match := _STEP.match(line):
            world.losses[int(match[1])] = float(match[2])
            world.step, world.step_at = int(match[1]), at
            world.first_step_at = world.first_step_at or at
            nodes = "1 node" if world.size == 1 else f"{world.size} nodes"
            return Told(f"step {match[1]:>3}   loss {match[2]}   {nodes}", "step")
        if match := _FINISHED.match(line):
            self.finished_at = at
            return Told(f"training finished: {match[1]}")
        return None

    def _formed(
        self, at: float, who: str, number: int, rank: int, size: int, reason: str
    ) -> Told | None:
        world = self.worlds.setdefault(number, World(number, size, reason))
        world.ranks[rank] = who
        world.formed_at = at
        self._world_of[who] = world
        if not world.formed:
            return None
        return Told(str(world), "formed", f"world of {size}")

    def _ended(self, at: float, number: int, reason: str) -> Told | None:
        world = self.worlds.get(number)
        if world is None or world.ended_at:
            return None  # the first to be told has said it
        world.ended_at, world.end_reason = at, reason
        return Told(f"told by the server: generation {number} ended: {reason}", "ended")
