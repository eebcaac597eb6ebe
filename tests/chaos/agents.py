"""A run of torchrun agents among the others: their workers say in which world they are."""

import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chaos.meter import POLL_S, Meter
from tests.chaos.rig import PORT
from tests.e2e.kit.agents import Agent, Launcher

RUN = "torchrun"
AGENTS = 3
MIN = 2
AGAIN_S = 60.0
"""torch stops workers and starts new ones in its own time."""

CONF: dict[str, str | None] = {"last_call_timeout": "2", "join_timeout": "600"}


class Agents:
    """The run.

    Args:
        folder: for its logs.
        marker: of all its processes.
        launcher: has imported torch.
        lease_s: of each agent.
    """

    def __init__(
        self, folder: Path, marker: str, launcher: Launcher, lease_s: float, rng: random.Random
    ) -> None:
        self._folder, self._marker, self._launcher = folder, marker, launcher
        self._rng = rng
        beats: dict[str, str | None] = {
            "keep_alive_interval": f"{lease_s / 4:g}",
            "keep_alive_max_attempt": "4",
        }
        self._conf = CONF | beats
        self._lease_s = lease_s
        self.times: list[float] = []
        self.stuck: list[str] = []
        self.odd_ends: list[str] = []
        self._all: list[Agent] = []
        self._living = [self._start() for _ in range(AGENTS)]

    def _start(self) -> Agent:
        number = len(self._all) + 1
        agent = Agent(
            self._folder, self._marker, f"127.1.200.{number % 250 + 1}:{PORT}", RUN,
            f"{MIN}:{AGENTS}", "sleep=100000", launcher=self._launcher, name=f"t{number}",
            restarts=100000, conf=self._conf,
        )  # fmt: skip
        self._all.append(agent)
        return agent

    def play(self, meter: Meter, done: threading.Event) -> None:
        """Faults, one after the other, until there are enough."""
        self._measure(self._living, 0.0, meter, "the first start")
        while not meter.over and not done.is_set():
            self._tend()
            victim = self._rng.choice(self._living)
            rest = [agent for agent in self._living if agent is not victim]
            if self._rng.random() < 0.5:
                since = meter.fault("agent SIGKILL")
                victim.kill_group()
                self._measure(rest, since, meter, "SIGKILL of an agent")
                self._living = [*rest, self._start()]
            else:
                since = meter.fault("agent SIGSTOP")
                victim.signal(signal.SIGSTOP)
                try:
                    self._measure(rest, since, meter, "SIGSTOP of an agent")
                finally:
                    victim.signal(signal.SIGCONT)
            self._measure(self._living, since, meter, "its return")
            meter.pause(self._rng.uniform(0, self._lease_s))

    def _tend(self) -> None:
        for agent in list(self._living):
            if agent.code is not None:
                self.odd_ends.append(f"agent {agent.name} ended with {agent.code}")
                self._living.remove(agent)
                self._living.append(self._start())

    def _measure(self, agents: list[Agent], since: float, meter: Meter, what: str) -> None:
        """Wait until the workers of these agents have started in one world of theirs."""
        deadline, began = time.monotonic() + AGAIN_S, time.monotonic()
        before = meter.disturbances
        while not meter.stopping.is_set():
            rows = [agent.lines()[-1:] for agent in agents]
            if all(rows):
                last = [row[0] for row in rows]
                worlds = {(row["RDZV_FENCE"], row["WORLD_SIZE"]) for row in last}
                if len(worlds) == 1 and last[0]["WORLD_SIZE"] == str(len(agents)):
                    if since and before == meter.disturbances:
                        self.times.append(max(began, *(row["at"] for row in last)) - began)
                    return
            if time.monotonic() > deadline:
                tails = [agent.log[-300:] for agent in agents]
                self.stuck.append(f"agents after {what}: {rows} {tails}")
                return
            meter.pause(5 * POLL_S)

    def history(self) -> Iterator[dict[str, Any]]:
        """What their workers were told, as joins of the agents."""
        for agent in self._all:
            for row in agent.lines():
                epoch, _, generation = str(row["RDZV_FENCE"]).partition(".")
                yield {
                    "client": f"{agent.name}-{agent.identity}", "run": RUN, "op": "join",
                    "key": None, "args": {}, "start_s": 0.0, "end_s": row["at"], "ok": True,
                    "result": {}, "epoch": int(epoch), "generation": int(generation),
                    "rank": int(row["GROUP_RANK"]), "world": int(row["WORLD_SIZE"]), "round": None,
                }  # fmt: skip

    def end(self) -> None:
        """End all of them."""
        for agent in self._all:
            if agent.code is None:
                agent.signal(signal.SIGCONT)
            agent.end()
