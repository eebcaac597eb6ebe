"""The course of `make demo-restart`: the server dies, comes back and is replaced; training goes on."""

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deploy.demo.crew import SERVER, Crew, DemoError
from deploy.demo.job import RUN, Job, Told, World
from deploy.demo.screen import GREEN, RED, YELLOW, Screen
from deploy.demo.stage import Stage
from rdzv_proto import __version__

KILL_AT = 60
"""Steps that are done before the server is killed."""
WITHOUT = 45
"""Steps that are to be printed while there is no server."""
BETWEEN = 30
"""Steps between the return of the server and its upgrade."""
NODES = ("node-1", "node-2")

INTRODUCTION = """\
rdzv demo: the server goes away twice, and a training job does not notice

  One rdzv-server that keeps its state in a folder, and two torchrun nodes, all on this machine, train a
  small network to read handwritten digits: torch DDP on gloo, 300 steps. On the way

    1. the server is killed with SIGKILL, and training goes on without it;
    2. it is started again on the same folder, and the nodes come back to it;
    3. it is upgraded: stopped with SIGTERM, and the next one is started in its place.

  Worker processes and generation must be the same from the first step to the last. This takes less than
  a minute; Ctrl-C ends everything.
"""

_LOST = re.compile(rf"rdzv\[{RUN}\] connection to \S+ lost: (.*)$")
_RESTORED = re.compile(rf"rdzv\[{RUN}\] connection to \S+ (restored after [\d.]+ s)$")


@dataclass
class UpkeepJob(Job):
    """The job's course, and what its nodes say of the server."""

    lost: dict[str, int] = field(default_factory=dict)
    """How often each node lost its connection."""
    restored: dict[str, int] = field(default_factory=dict)

    def read(self, at: float, who: str, line: str) -> Told | None:
        """Take in a line that a node printed; returns what is worth showing."""
        if match := _LOST.search(line):
            self.lost[who] = self.lost.get(who, 0) + 1
            return Told(f"connection to the server lost: {match[1]}", "ended")
        if match := _RESTORED.search(line):
            self.restored[who] = self.restored.get(who, 0) + 1
            return Told(f"connection to the server {match[1]}", "formed")
        return super().read(at, who, line)

    @property
    def step(self) -> int:
        """Newest that was printed."""
        return max((world.step for world in self.worlds.values()), default=0)


class UpkeepCrew(Crew):
    """The processes; the server among them can be started again where it was."""

    def __init__(self, stage: Stage, screen: Screen) -> None:
        super().__init__(stage, screen)
        self.course = UpkeepJob()
        self.job = self.course
        self.ready: dict[str, str] = {}
        """What the server that runs now said when it was ready."""

    def start_server(self) -> None:
        """On a free port the first time, and then on the same one; always on the same folder."""
        words = ["--port", str(self.port), "--data-dir", "state", "--http-port", "off"]
        self.ready = {}
        self.codes.pop(SERVER, None)
        self.screen.command(SERVER, ["rdzv-server", *words])
        self.stage.start(SERVER, [sys.executable, "-m", "rdzv_server", *words])
        self.until(lambda: self.ready, "the server is ready", SERVER)
        self.screen.say(
            SERVER, f"ready at 127.0.0.1:{self.port}, pid {self.stage.pid(SERVER)}", GREEN
        )

    def kill_server(self) -> None:
        """SIGKILL, and wait for its end."""
        pid = self.stage.pid(SERVER)
        self.screen.say(SERVER, f"SIGKILL to the server, pid {pid}", RED)
        self.kill_node(SERVER)
        self.until(lambda: SERVER in self.codes, "the server is gone", SERVER)

    def worker(self, node: str) -> int:
        """Process id of a node's only worker."""
        found = [pid for pid in self.stage.pids(node) if pid != self.stage.pid(node)]
        if len(found) != 1:
            raise DemoError(f"{node} has {len(found)} workers: {found}", node)
        return found[0]

    def fence(self) -> str:
        """Epoch and generation of the run, as the server tells them to programs."""
        (run,) = json.loads(self.ask_status("--output", "json"))["runs"]
        if run["phase"] != "live" or run["participants"] != len(NODES):
            raise DemoError(f"the run is {run['phase']} with {run['participants']} nodes", SERVER)
        return ".".join(map(str, run["fence"]))

    def _heard(self, at: float, who: str, text: str) -> None:
        if who == SERVER and text.startswith("READY "):
            self.ready = dict(word.split("=", 1) for word in text.split()[1:])
        super()._heard(at, who, text)


@dataclass(frozen=True)
class Look:
    """How things were at some moment."""

    when: str
    server: int
    """Process id."""
    fence: str
    workers: tuple[int, ...]
    """Process ids, in the order of the nodes."""


class Upkeep:
    """Plays it.

    Args:
        crew: who plays it.
    """

    def __init__(self, crew: UpkeepCrew) -> None:
        self.crew, self.screen, self.job = crew, crew.screen, crew.course
        self._looks: list[Look] = []
        self._away: list[tuple[float, float, int]] = []
        """From when to when there was no server, and how many steps were printed meanwhile."""

    def play(self) -> None:
        """From the first process to the last one's end.

        Raises:
            DemoError: something went wrong.
            Interrupted: a signal came.
        """
        self.screen.text(INTRODUCTION)
        self.crew.start_server()
        self._start_training()
        self._look("at the start")

        gone_at, step = time.monotonic(), self.job.step
        self.crew.kill_server()
        self._trains_on(step + WITHOUT, "training goes on without a server")
        self._bring_back(gone_at, step, 1)
        self.crew.show_status()
        self._look("after the kill")
        self._trains_on(self.job.step + BETWEEN, "training goes on")

        gone_at, step = time.monotonic(), self.job.step
        self.screen.say(
            SERVER, f"SIGTERM to the server, rdzv {__version__}, for its upgrade", YELLOW
        )
        self.crew.stop_server()
        self.screen.say(SERVER, f"stopped after {time.monotonic() - gone_at:.2f} s, exit code 0")
        self.screen.say(
            SERVER, f"the next one is to be rdzv {__version__}: the same, as there is no other here"
        )
        self._bring_back(gone_at, step, 2)
        self._look("after the upgrade")
        self._finish()

    def _start_training(self) -> None:
        self.crew.show_torchrun()
        for node in NODES:
            self.crew.start_node(node)
        self.crew.until(lambda: self.job.formed(1), "a world of 2 forms", *NODES, SERVER)
        self._trains_on(KILL_AT, f"step {KILL_AT} is done")

    @property
    def _world(self) -> World:
        return self.job.worlds[1]

    def _trains_on(self, step: int, what: str) -> None:
        """Wait until a step was printed, all in the first world and by the first workers."""
        self._until(lambda: self.job.step >= step, what)

    def _bring_back(self, gone_at: float, step: int, times: int) -> None:
        """Start the server again, and wait until both nodes have said that they are back."""
        self.crew.start_server()
        self._away.append((gone_at, time.monotonic(), self.job.step - step))
        self._until(
            lambda: all(self.job.restored.get(node) == times for node in NODES),
            "the nodes come back to the server",
        )

    def _until(self, condition: Callable[[], object], what: str) -> None:
        self.crew.until(
            lambda: condition() or self._world.ended_at or self.job.restarts_burnt,
            what, *NODES, SERVER,
        )  # fmt: skip
        if self._world.ended_at:
            raise DemoError(f"the generation ended: {self._world.end_reason}", *NODES, SERVER)
        if self.job.restarts_burnt:
            raise DemoError("a worker died", *NODES)

    def _look(self, when: str) -> None:
        """What must never change; shows it."""
        workers = tuple(self.crew.worker(node) for node in NODES)
        look = Look(when, self.crew.stage.pid(SERVER), self.crew.fence(), workers)
        pids = ", ".join(f"{pid} on {node}" for node, pid in zip(NODES, workers, strict=True))
        self.screen.say("LOOK", f"{when}: workers {pids}; epoch.generation {look.fence}", GREEN)
        self._looks.append(look)
        first = self._looks[0]
        if (look.workers, look.fence) != (first.workers, first.fence):
            raise DemoError(f"that is not as it was {first.when}", *NODES, SERVER)

    def _finish(self) -> None:
        self._until(lambda: self.job.finished_at, "training finishes")
        self.crew.until(
            lambda: all(node in self.crew.codes for node in NODES), "both nodes end", *NODES
        )
        self.screen.say("nodes", f"{' and '.join(NODES)} ended with exit code 0")
        self.crew.stop_server()
        self.screen.say(SERVER, "stopped, exit code 0")
        if left := self.crew.stage.pids():
            raise DemoError(f"processes are left over: {left}", *NODES)
        if len(self.job.worlds) != 1:
            raise DemoError(f"there were {len(self.job.worlds)} generations", *NODES, SERVER)
        losses = list(self._world.losses.values())
        if losses[-1] > losses[0] / 2:
            raise DemoError(f"the loss did not fall: {losses[0]} to {losses[-1]}", *NODES)

    def show_result(self) -> None:
        """The table, and what it says."""
        rows = [
            (look.when, str(look.server), look.fence, *(str(pid) for pid in look.workers))
            for look in self._looks
        ]
        head = ("", "SERVER PID", "EPOCH.GENERATION", *(f"WORKER OF {n.upper()}" for n in NODES))
        self.screen.text()
        self.screen.table(head, rows)
        self.screen.text()
        self.screen.paragraph(self._summary())

    def _summary(self) -> str:
        (killed, back, steps), (stopped, again, _) = self._away
        losses = list(self._world.losses.values())
        return (
            f"The server was away for {back - killed:.1f} s, in which {steps} steps of training were done, and "
            f"for {again - stopped:.1f} s. The same two workers went on all the time: none was restarted, and "
            f"the generation is the one that they began in. Loss {losses[0]:.2f} → {losses[-1]:.2f} in "
            f"{self._world.step} steps."
        )
