"""The course of the demo, step by step, each measured."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from deploy.demo.crew import SERVER, Crew, DemoError
from deploy.demo.job import World
from deploy.demo.screen import GREEN, RED

KILL_AT = 75
"""The newest checkpoint is then that of step 60: there is work to lose, and to do again."""
ALONE_STEPS = 30
"""What the survivor trains alone before a replacement is started."""
IMPORTS = "worker imports torch and scikit-learn"

INTRODUCTION = """\
rdzv demo: a training job loses a node and goes on

  One rdzv-server and two torchrun nodes, all on this machine, train a small network to read
  handwritten digits: torch DDP on gloo, 300 steps, a checkpoint every 20. On the way

    1. the node with rank 0 is killed with SIGKILL: its agent, its worker, the workers' store;
    2. the survivor is told, forms a world of its own and goes on from the checkpoint;
    3. a replacement starts, is let in, and the two finish.

  The training script does not know of rdzv. This takes about a minute; Ctrl-C ends everything.
"""


@dataclass(frozen=True)
class Step:
    """A row of the timeline. Times are monotonic seconds."""

    what: str
    began_at: float
    ended_at: float
    spent_on: str


class Story:
    """Plays the demo.

    Args:
        crew: who plays it.
    """

    def __init__(self, crew: Crew) -> None:
        self.crew, self.screen, self.job = crew, crew.screen, crew.job
        self._steps: list[Step] = []
        self._killed_at = 0.0

    def play(self) -> None:
        """From the first process to the last one's end.

        Raises:
            DemoError: something went wrong.
            Interrupted: a signal came.
        """
        self.screen.text(INTRODUCTION)
        self._start_server()
        first = self._form_the_first_world()
        alone = self._kill_a_node(first)
        self._replace_it(alone)
        self._finish(alone.ranks[0])

    def _measured(self, what: str, began_at: float, ended_at: float, spent_on: str = "") -> None:
        self._steps.append(Step(what, began_at, ended_at, spent_on))

    def _start_server(self) -> None:
        began_at = time.monotonic()
        self.crew.start_server()
        self.crew.until(lambda: self.crew.port, "the server is ready", SERVER)
        self.screen.say(SERVER, f"ready at 127.0.0.1:{self.crew.port}", GREEN)
        self._measured("server ready", began_at, time.monotonic(), "Python starts")

    def _form_the_first_world(self) -> World:
        nodes = ("node-1", "node-2")
        self.crew.show_torchrun()
        began_at = time.monotonic()
        for node in nodes:
            self.crew.start_node(node)
        world = self._formed(1, 2, *nodes)
        self._measured(
            "2 nodes started → world of 2 formed",
            began_at,
            world.formed_at,
            "torchrun imports torch",
        )
        self._trains(world, "→ first training step")
        self._in(world, lambda: world.step >= KILL_AT, f"step {KILL_AT} is done")
        self._measured(f"→ step {world.step}", world.first_step_at, world.step_at, "training")
        return world

    def _kill_a_node(self, world: World) -> World:
        victim, survivor = world.ranks[0], world.ranks[1]
        self._killed_at = time.monotonic()
        pids = " and ".join(map(str, self.crew.kill_node(victim)))
        self.screen.say(
            victim, f"SIGKILL to the agent and the worker of rank 0, pids {pids}",
            RED, self._killed_at,
        )  # fmt: skip
        self.crew.until(lambda: world.ended_at, f"{survivor} is told", survivor, SERVER)
        alone = self._formed(2, 1, survivor)
        self._measure_the_loss(world, alone)
        self._trains(alone, "→ training again")
        if not alone.started_from:
            raise DemoError(f"{survivor} started {alone.origin}, not from a checkpoint", survivor)
        self.crew.show_status()
        goal = alone.started_from + ALONE_STEPS
        self._in(alone, lambda: alone.step >= goal, f"step {goal} is done")
        return alone

    def _measure_the_loss(self, world: World, alone: World) -> None:
        """Either the server told the survivor, or its worker had died first of the collective."""
        victim, survivor = world.ranks[0], world.ranks[1]
        if "was lost" in world.end_reason:
            learned = "told"
            noticed_s = self.job.noticed_at - self._killed_at
            first = f"{noticed_s:.2f} s to notice, then 1 s of grace"
            died = self.job.restarts_burnt
            second = (
                "worker had died; agent joins again" if died else "agent stops its worker, joins"
            )
        else:
            learned = "joins again"
            first = "its worker died of the broken collective"
            second = f"the rest of 1 s of grace for {victim}"
        self._measured(
            f"{victim} killed → {survivor} {learned}", self._killed_at, world.ended_at, first
        )
        self._measured("→ world of 1 formed", world.ended_at, alone.formed_at, second)

    def _replace_it(self, alone: World) -> None:
        survivor, newcomer = alone.ranks[0], "node-3"
        began_at = time.monotonic()
        self.crew.start_node(newcomer, "a replacement starts, with the same command")
        world = self._formed(3, 2, newcomer, survivor)
        self._measured(
            f"{newcomer} started → world of 2 formed", began_at, world.formed_at,
            "torchrun imports torch",
        )  # fmt: skip
        self._trains(world, "→ training again")
        self._in(world, lambda: self.job.finished_at, "training finishes")
        self._measured(
            f"→ step {world.step}, finished", world.first_step_at, self.job.finished_at, "training"
        )

    def _formed(self, number: int, size: int, *nodes: str) -> World:
        """Wait for a world of this size; any other one is not what was to be shown."""
        self.crew.until(
            lambda: self.job.finished_at or self.job.formed(number),
            f"a world of {size} forms", *nodes, SERVER,
        )  # fmt: skip
        if not self.job.formed(number):
            raise DemoError(f"the job finished before a world of {size} could form", *nodes, SERVER)
        world = self.job.worlds[number]
        if world.size != size:
            raise DemoError(f"a world of {world.size} formed instead of {size}", *nodes, SERVER)
        return world

    def _trains(self, world: World, what: str) -> None:
        self._in(world, lambda: world.first_step_at, "training starts")
        origin = f", from checkpoint {world.started_from}" if world.started_from else ""
        self._measured(what + origin, world.formed_at, world.first_step_at, IMPORTS)

    def _in(self, world: World, condition: Callable[[], object], what: str) -> None:
        """Wait for something that must happen in this world."""
        nodes = tuple(world.ranks.values())
        self.crew.until(lambda: condition() or world.ended_at, what, *nodes)
        if not condition():
            text = f"generation {world.number} ended before {what}: {world.end_reason}"
            raise DemoError(text, *nodes, SERVER)

    def _finish(self, survivor: str) -> None:
        living = (survivor, "node-3")
        self.crew.until(
            lambda: all(node in self.crew.codes for node in living), "both nodes end", *living
        )
        self.screen.say("nodes", f"{' and '.join(living)} ended with exit code 0")
        self.crew.stop_server()
        self.screen.say(SERVER, "stopped, exit code 0")
        self._measured("→ nodes and server ended", self.job.finished_at, time.monotonic())
        if left := self.crew.stage.pids():
            raise DemoError(f"processes are left over: {left}", *living)
        first, last = self._losses()
        if last > first / 2:
            raise DemoError(f"the loss did not fall: {first} at first, {last} at last", *living)

    def _losses(self) -> tuple[float, float]:
        """The first and the last."""
        losses = [loss for world in self.job.worlds.values() for loss in world.losses.values()]
        return losses[0], losses[-1]

    def show_result(self) -> None:
        """The table, and what it says in two sentences."""
        rows = [
            (
                step.what,
                f"{step.ended_at - step.began_at:.2f} s",
                f"{step.ended_at - self.screen.began:.1f} s",
                step.spent_on,
            )
            for step in self._steps
        ]
        self.screen.text()
        self.screen.table(("TIMELINE", "TOOK", "AT", "SPENT ON"), rows)
        self.screen.text()
        self.screen.paragraph(self._summary())

    def _summary(self) -> str:
        first, alone, last = (self.job.worlds[number] for number in (1, 2, 3))
        text = (
            f"The loss of {first.ranks[0]} held training up for "
            f"{alone.first_step_at - self._killed_at:.1f} s: the new world had formed after "
            f"{alone.formed_at - self._killed_at:.1f} s, the rest was the start of its worker. "
        )
        twice = sorted(first.losses.keys() & alone.losses.keys())
        if twice:  # else the node died just behind a checkpoint
            step = twice[-1]
            text += (
                f"Steps {alone.started_from + 1} to {first.step} were done twice, to the same end: "
                f"step {step} had loss {first.losses[step]:.4f} with two nodes and "
                f"{alone.losses[step]:.4f} with one. "
            )
        start, end = self._losses()
        return text + f"Loss {start:.2f} → {end:.2f} in {last.step} steps, through three worlds."
