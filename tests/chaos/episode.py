"""One server with its runs, from their start to the judgement of what they recorded."""

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import faults, server_faults
from tests.chaos.agents import Agents
from tests.chaos.board import Board
from tests.chaos.crew import Crew
from tests.chaos.gate import Gate
from tests.chaos.meter import STUCK_S, Meter
from tests.chaos.nursery import Nursery
from tests.chaos.recorder import merged
from tests.chaos.rig import PORT, SLOW_PORT, SmallDisk
from tests.chaos.server_faults import Centre
from tests.chaos.slowlink import SlowLink
from tests.e2e.kit.agents import Launcher
from tests.e2e.kit.processes import kill_marked
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until
from tests.sim.check.entries import read
from tests.sim.check.judge import judge
from tests.sim.check.verdict import Verdict

CREW_SIZE = 8
CREW_MIN = 4
MARKER = "chaos"
SERVER_EVERY_S = (0.5, 3.0)
ON_TOP = 0.5
"""Share of the server's faults that come while members have theirs."""

MEMBER_EVERY_S = (0.0, 0.6)


@dataclass
class Outcome:
    """Of an episode."""

    state: str
    seconds: float = 0.0
    generations: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    troubles: list[str] = field(default_factory=list)
    """What is wrong beside what the checkers say."""
    agent_times: list[float] = field(default_factory=list)


class Episode:
    """A server, its runs, and threads that do harm.

    Args:
        folder: for all files; must not exist.
        state: `sqlite` or `memory`.
        clients: processes, in crews of `CREW_SIZE`.
        lease_s: of all.
        launcher: for torchrun agents; None leaves them out.
        seed: of all choices.
    """

    def __init__(
        self, folder: Path, state: str, clients: int, lease_s: float, launcher: Launcher | None,
        seed: str, meter: Meter,
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True)
        self._folder, self._meter, self._lease_s = folder, meter, lease_s
        self._outcome = Outcome(state)
        self._rng = random.Random(seed)
        self._launcher, self._seed = launcher, seed
        self._closing = contextlib.ExitStack()
        self._done = threading.Event()
        self._gate = Gate(self._done)
        self._clients = clients

    def play(self, seconds: float) -> Outcome:
        """Everything, for so many seconds of faults."""
        began = time.monotonic()
        with self._closing:
            self._set_up()
            self._together("the start")
            self._harm(seconds)
            if not self._meter.stopping.is_set():
                self._together("all faults")
            self._look_at_ends()
        self._outcome.seconds = time.monotonic() - began
        self._judge()
        return self._outcome

    # --- its parts ----------------------------------------------------------------------------

    def _set_up(self) -> None:
        folder, state = self._folder, self._outcome.state
        self._disk = SmallDisk(folder / "disk")
        self._closing.callback(self._disk.close)
        where = ("--data-dir", str(self._disk.path)) if state == "sqlite" else ("--state", "memory")
        self._server = Server(
            folder, MARKER, "--insecure-no-auth", *where, host="0.0.0.0", port=PORT
        )
        self._closing.callback(self._server.kill)
        self._link = SlowLink(SLOW_PORT, PORT)
        self._closing.callback(self._link.close)
        self._nursery = Nursery(folder)
        self._closing.callback(self._nursery.close)
        self._crews = list(self._crews_of(self._clients))
        for crew in self._crews:
            self._closing.callback(crew.end)
            crew.start_all()
        self._agents: Agents | None = None
        if self._launcher is not None:
            rng = random.Random(f"{self._seed} agents")
            self._closing.callback(kill_marked, MARKER)
            self._agents = Agents(folder, MARKER, self._launcher, self._lease_s, rng)
            self._closing.callback(self._agents.end)
        self._centre = Centre(
            self._server, self._link, self._disk, state, self._crews, self._lease_s, self._rng
        )

    def _crews_of(self, clients: int) -> Iterator[Crew]:
        sizes = [CREW_SIZE] * (clients // CREW_SIZE)
        if clients % CREW_SIZE >= CREW_MIN:
            sizes.append(clients % CREW_SIZE)
        path = self._folder / "board"
        board = Board(path, 2 * sum(sizes))
        for index, size in enumerate(sizes):
            yield Crew(
                run=f"crew{index}", number=index + 1, size=size, min_nodes=max(1, size // 2),
                lease_s=self._lease_s, first_slot=2 * sum(sizes[:index]),
                rng=random.Random(f"{self._seed} crew {index}"), folder=self._folder, board=board,
                board_path=path, nursery=self._nursery,
                server_pid=self._server_pid, remembers=self._outcome.state == "sqlite",
            )  # fmt: skip

    def _server_pid(self) -> int:
        process = self._server.process  # another thread may be about to start a new one
        return 0 if process is None else process.pid

    # --- harm ---------------------------------------------------------------------------------

    def _harm(self, seconds: float) -> None:
        threads = [
            threading.Thread(target=self._guarded, args=(self._on_crew, crew), daemon=True)
            for crew in self._crews
        ]
        threads.append(threading.Thread(target=self._guarded, args=(self._on_all,), daemon=True))
        if self._agents is not None:
            play = self._agents.play
            args = (play, self._meter, self._done)
            threads.append(threading.Thread(target=self._guarded, args=args, daemon=True))
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + seconds
        while not self._meter.over and not self._done.is_set() and time.monotonic() < deadline:
            self._meter.pause(0.1)
        self._done.set()
        for thread in threads:
            thread.join(3 * STUCK_S)
            if thread.is_alive():
                self._outcome.troubles.append("a thread of the harness does not end")

    def _guarded(self, what: Callable[..., None], *args: object) -> None:
        try:
            what(*args)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is told and ends the episode)
            self._outcome.troubles.append(f"{type(error).__name__}: {error}")
            self._done.set()

    def _over(self) -> bool:
        return self._meter.over or self._done.is_set()

    def _on_crew(self, crew: Crew) -> None:
        while not self._over():
            with self._gate.shared():
                if self._over():
                    return
                crew.tend()
                faults.any_fault(crew)(crew, self._meter)
            self._meter.pause(crew.rng.uniform(*MEMBER_EVERY_S))

    def _on_all(self) -> None:
        while not self._over():
            self._done.wait(self._rng.uniform(*SERVER_EVERY_S))
            if self._over():
                return
            on_top = self._rng.random() < ON_TOP
            fault = server_faults.any_fault(self._centre, on_top=on_top)
            if on_top:
                with self._meter.on_top():
                    fault(self._centre, self._meter)
            else:
                with self._gate.alone():
                    if not self._over():
                        fault(self._centre, self._meter)

    # --- its end ------------------------------------------------------------------------------

    def _together(self, what: str) -> None:
        """Every run is whole, after what was done to it."""
        since = time.monotonic()
        for crew in self._crews:
            try:
                until(lambda crew=crew: crew.together(since), STUCK_S, crew.shown)  # type: ignore[misc]
            except AssertionError as error:
                self._outcome.troubles.append(f"not together after {what}: {error}")

    def _look_at_ends(self) -> None:
        troubles = self._outcome.troubles
        for crew in self._crews:
            crew.tend()
            troubles += crew.odd_ends
        if self._agents is not None:
            troubles += [*self._agents.stuck, *self._agents.odd_ends]
            self._outcome.agent_times = self._agents.times
        for words in ("Traceback", "internal error"):
            if words in self._server.log:
                troubles.append(f"{words} in {self._server.log_path}")
            for path in self._folder.glob("*.log"):
                if path != self._server.log_path and words in path.read_text(errors="replace"):
                    troubles.append(f"{words} in {path}")

    def _judge(self) -> None:
        outcome, path = self._outcome, self._folder / "history.jsonl"
        ops = sorted(self._folder.glob("*.ops"))
        with open(path, "w") as file:
            file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in merged(ops))
            file.writelines(
                json.dumps(row, separators=(",", ":")) + "\n"
                for row in (self._agents.history() if self._agents is not None else ())
            )
        entries = list(read(str(path)))
        outcome.generations = len({(e.run, e.fence) for e in entries if e.op == "join" and e.ok})
        outcome.verdict = judge(entries)
        for each in ops:
            each.unlink()
