"""The server and the nodes of the demo: starts them, follows what they print, waits for conditions."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from deploy.demo.job import RUN, Job
from deploy.demo.screen import CYAN, GREEN, RED, YELLOW, Screen
from deploy.demo.stage import Exited, Line, Signalled, Stage

LIMIT_S = 170.0
"""The whole demo: it gives up rather than take three minutes."""
WAIT_S = 75.0
"""Any one step of it."""
STATUS_S = 15.0
PACE_S = 0.08
"""A training step takes at least this long, so that the replacement comes in time on any machine."""
TRAIN = Path(__file__).resolve().with_name("train.py")
SERVER = "server"
_COLOURS = {"formed": GREEN, "ended": YELLOW}


class DemoError(Exception):
    """The demo did not go as it must.

    Attributes:
        who: whose output may tell why.
    """

    def __init__(self, text: str, *who: str) -> None:
        super().__init__(text)
        self.who = who


class Interrupted(KeyboardInterrupt):
    """A signal ends the demo.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Crew:
    """The processes with what they have said.

    Args:
        stage: runs them.
        screen: shows what they say.
    """

    def __init__(self, stage: Stage, screen: Screen) -> None:
        self.stage, self.screen = stage, screen
        self.job = Job()
        self.port = 0
        """Of the server; 0 until it is ready."""
        self.codes: dict[str, int] = {}
        """Exit codes of those that have ended."""
        self._may_end: set[str] = set()
        self._deadline = screen.began + LIMIT_S

    # --- starting and ending ------------------------------------------------------------------

    def start_server(self) -> None:
        """On a port that is free."""
        self.screen.command(SERVER, ["rdzv-server", "--port", "0"])
        self.stage.start(SERVER, [sys.executable, "-m", "rdzv_server", "--port", "0"])

    def torchrun(self, script: str) -> list[str]:
        """The command line of a node.

        Three restarts, because a survivor's worker can die of the broken collective before its
        agent has been told of the loss; to the agent that is a failure of its own worker, which
        costs one restart. With torchrun's default of 0 the job would then end.
        """
        return [
            "torchrun", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3",
            "--rdzv-backend=rdzv", f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--rdzv-id={RUN}",
            script, f"--checkpoint={self.stage.folder / 'digits.pt'}", f"--pace={PACE_S}",
        ]  # fmt: skip

    def show_torchrun(self) -> None:
        """As one would type it here."""
        here = os.path.relpath(TRAIN)
        self.screen.command(
            "each node", self.torchrun(str(TRAIN) if here.startswith("..") else here)
        )

    def start_node(self, node: str, what: str = "started") -> None:
        """An agent, which starts its worker once a world has formed."""
        command = [sys.executable, "-m", "torch.distributed.run", *self.torchrun(str(TRAIN))[1:]]
        self.stage.start(
            node,
            command,
            # All share one host name here; elsewhere each node's own name is in the messages.
            RDZV_NODE_ID=node,
            # Nodes with more cores are to show the same: torch takes all it can get otherwise.
            OMP_NUM_THREADS="1",
            # gloo asks for this machine's name, which on laptops need not lead anywhere.
            GLOO_SOCKET_IFNAME="lo",
        )
        self.screen.say(node, f"{what}, pid {self.stage.pid(node)}")

    def kill_node(self, node: str) -> list[int]:
        """SIGKILL to agent and worker, as when the machine fails."""
        self._may_end.add(node)
        return self.stage.kill(node)

    def stop_server(self) -> None:
        """In order, and wait for it."""
        self._may_end.add(SERVER)
        self.stage.terminate(SERVER)
        self.until(lambda: SERVER in self.codes, "the server stops", SERVER)
        if self.codes[SERVER]:
            raise DemoError(f"the server ended with exit code {self.codes[SERVER]}", SERVER)

    def show_status(self) -> None:
        """What `rdzv status` says of the run."""
        self.screen.command("you", ["rdzv", *self._status_words()])
        # The first lines are about the server.
        _, _, about_the_run = self.ask_status().partition("\n\n")
        for line in about_the_run.splitlines():
            self.screen.quote(line)

    def ask_status(self, *options: str) -> str:
        """What `rdzv status` prints of the run.

        Raises:
            DemoError: it failed.
        """
        words = [*self._status_words(), *options]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "rdzv_client", *words],
                stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False,
                timeout=STATUS_S, cwd=self.stage.folder, env=self.stage.environment("status"),
                start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise DemoError(
                f"`rdzv status` did not answer within {STATUS_S:.0f} s", SERVER
            ) from None
        if done.returncode:
            raise DemoError(f"`rdzv status` failed: {done.stderr.strip()}", SERVER)
        return done.stdout

    def _status_words(self) -> list[str]:
        return ["--server", f"127.0.0.1:{self.port}", "status", RUN]

    # --- following ----------------------------------------------------------------------------

    def until(self, condition: Callable[[], object], what: str, *who: str) -> None:
        """Follow the processes until a condition holds.

        Args:
            condition: of what is known.
            what: it is, in words.
            who: must do something for it.

        Raises:
            DemoError: not in time, or a process ended that should not.
            Interrupted: a signal came.
        """
        deadline = min(time.monotonic() + WAIT_S, self._deadline)
        while not condition():
            match self.stage.next_event(deadline - time.monotonic()):
                case Line(at, name, text):
                    self._heard(at, name, text)
                case Exited(_, name, code):
                    self._ended(name, code)
                case Signalled(number):
                    raise Interrupted(number)
                case None:
                    passed_s = time.monotonic() - self.screen.began
                    raise DemoError(
                        f"not within time, {passed_s:.0f} s after the start: {what}", *who
                    )

    def _heard(self, at: float, who: str, text: str) -> None:
        if who == SERVER:
            if text.startswith("READY "):
                self.port = int(dict(w.split("=", 1) for w in text.split()[1:])["port"])
            told = self.job.read_server(at, text)
        else:
            told = self.job.read(at, who, text)
        if told is not None:
            self.screen.say(told.who or who, told.text, _COLOURS.get(told.kind, ""), at)
            if told.kind == "died" and not self._may_end:
                raise DemoError(f"the worker of {who} died, and no node had been killed", who)

    def _ended(self, who: str, code: int) -> None:
        self.codes[who] = code
        orderly = code == 0 and self.job.finished_at and who != SERVER
        if not orderly and who not in self._may_end:
            raise DemoError(f"{who} ended with exit code {code}", who)


def show_failure(screen: Screen, stage: Stage, failure: DemoError) -> None:
    """What failed, and the last lines of those who may know why."""
    screen.text()
    screen.say("FAILED", str(failure), RED)
    for who in failure.who:
        screen.text(f"\n  the last lines of {who}:", CYAN)
        for line in stage.tail(who) or ["(none)"]:
            screen.text(f"    {line}")
    screen.text()
