"""Clients of one run that keep adding to counters and meeting at a barrier, whatever becomes of the
server: `python -m tests.e2e.kit.herdload OPTIONS`, driven by lines on stdin.

Each client adds 1 to a key of the generation, `every` times, and once to a key of the run; then it meets
all others. What a client carries to the barrier is how much it has added, so that a round that opens
early, or that one member is told twice, shows at once. `{"back": INSTANCE}` waits until all clients are
connected to that server, and tells how long each took from `since`. `{"stop": true}` ends it: the vote at
the next barrier says so to all alike, and what came of it is told.
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rdzv_client import Client, Generation, RdzvError
from tests.e2e.conftest import Cluster
from tests.e2e.kit.processes import MARKER, kill
from tests.e2e.kit.server import Server

COUNT, RUN_COUNT, MEET = "count", "rounds", "meet"

WAIT_S = 30.0
"""Of a barrier: for those who come back last."""


class Hand:
    """One client, and what it has done.

    Args:
        options: of the process.
        number: of this one.
        stop: set when the next round is the last.
    """

    def __init__(self, options: dict[str, Any], number: int, stop: threading.Event) -> None:
        size = options["clients"]
        self.client = Client(
            options["server"], run=options["run"], min_nodes=size, max_nodes=size,
            name=f"h{number:03d}", lease_s=options["lease_s"], last_call_timeout_s=0,
        )  # fmt: skip
        self._every, self._pace_s, self._stop = options["every"], options["pace_s"], stop
        self._pause = threading.Event()
        self.generation: Generation | None = None
        self.sums: list[int] = []
        """Of the generation's counter, as they were told."""
        self.rounds = 0
        self.faults: list[str] = []
        self.came_at: dict[str, float] = {}
        """When it was welcome at an instance of the server."""

    def join(self) -> None:
        self.generation = self.client.join(timeout=WAIT_S)

    def work(self) -> None:
        try:
            while self._round():
                pass
        except RdzvError as error:
            self.faults.append(f"{self.client.options.name}: {type(error).__name__}: {error}")

    def _round(self) -> bool:
        """True until all have been told to stop."""
        assert self.generation is not None
        for _ in range(self._every):
            self.sums.append(self.generation.kv.add(COUNT))
            self._pause.wait(self._pace_s)
        self.client.kv.add(RUN_COUNT)
        mine = str(len(self.sums))
        vote = not self._stop.is_set()
        meeting = self.generation.barrier(MEET, payload=mine, vote=vote, timeout=WAIT_S)
        self.rounds += 1
        told = {None if p is None else p.decode() for p in meeting.payloads}
        if meeting.round != self.rounds or told != {mine}:
            self.faults.append(
                f"{self.client.options.name}: its round {self.rounds}, after {mine} additions, was "
                f"told as round {meeting.round} of {sorted(map(str, told))}"
            )
        return bool(meeting.committed)

    def at(self, instance: str) -> bool:
        """It is welcome at this instance of the server."""
        session = self.client.engine.session
        welcome = session.welcome
        there = session.connected_now and welcome is not None and welcome.instance == instance
        if there:
            self.came_at.setdefault(instance, time.monotonic())
        return there


class Hands:
    """All of them."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._stop = threading.Event()
        self.hands = [Hand(options, n, self._stop) for n in range(options["clients"])]
        self._pool = ThreadPoolExecutor(len(self.hands))
        for done in [self._pool.submit(hand.join) for hand in self.hands]:
            done.result()
        fences = {str(h.generation.fence) for h in self.hands if h.generation is not None}
        say(formed=sorted(fences))
        self._working = [self._pool.submit(hand.work) for hand in self.hands]

    def back(self, instance: str, since: float, timeout_s: float) -> None:
        """Wait for all; tells the seconds of each, and how many are missing."""
        deadline = time.monotonic() + timeout_s
        missing = self.hands
        while missing and time.monotonic() < deadline:
            missing = [hand for hand in missing if not hand.at(instance)]
            self._stop.wait(0.01)
        took = [h.came_at[instance] - since for h in self.hands if instance in h.came_at]
        say(back=sorted(took), missing=len(missing), added=sum(len(h.sums) for h in self.hands))

    def stop(self) -> None:
        """Let the round in progress be the last, and tell everything."""
        self._stop.set()
        for working in self._working:
            working.result()
        first = self.hands[0]
        assert first.generation is not None
        told = [one for hand in self.hands for one in hand.sums]
        say(
            added=len(told),
            exact=sorted(told) == list(range(1, len(told) + 1)),
            counter=first.generation.kv.add(COUNT, 0),
            rounds=sorted({hand.rounds for hand in self.hands}),
            run_counter=first.client.kv.add(RUN_COUNT, 0),
            faults=[fault for hand in self.hands for fault in hand.faults],
            ended=[h.generation.ended.reason for h in self.hands if h.generation and h.generation.ended],
            fences=sorted({str(h.client.engine.view.fence) for h in self.hands}),
        )  # fmt: skip


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(relativeCreated)d %(message)s")
    hands = Hands(json.loads(sys.argv[1]))
    for line in sys.stdin:
        order = json.loads(line)
        if "back" in order:
            hands.back(order["back"], order["since"], order["timeout_s"])
        else:
            hands.stop()
            sys.stdout.flush()
            os._exit(0)  # the sessions end with the process: nothing is to be learned from that


class HerdLoad:
    """The process, from the side of the test.

    Args:
        cluster: of the test.
        server: where they meet.
        run: their run.
        clients: how many.
        every: additions of each between two barriers.
        pace_s: pause of each after an addition.
    """

    def __init__(
        self, cluster: Cluster, server: Server, run: str, clients: int, *, every: int = 5,
        pace_s: float = 0.05, lease_s: float = 10.0,
    ) -> None:  # fmt: skip
        options = {
            "server": server.endpoint, "run": run, "clients": clients, "every": every,
            "pace_s": pace_s, "lease_s": lease_s,
        }  # fmt: skip
        self.log_path = cluster.folder / f"herd-{run}.log"
        with open(self.log_path, "w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.kit.herdload", json.dumps(options)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=os.environ | {MARKER: cluster.marker},
            )  # fmt: skip
        (self.fence,) = self._told()["formed"]

    def back(self, server: Server, since: float, timeout_s: float) -> list[float]:
        """Wait until all are welcome at the server; the seconds that each took."""
        self._tell(back=server.ready["instance"], since=since, timeout_s=timeout_s)
        told = self._told()
        assert not told["missing"], f"{told['missing']} are not back after {timeout_s:g} s: {told}"
        return [float(seconds) for seconds in told["back"]]

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> dict[str, Any]:
        """Stop adding; what came of it."""
        self._tell(stop=True)
        return self._told()

    def end(self) -> None:
        """End it whatever it does."""
        if self._process.poll() is None:
            kill(self._process.pid)
        self._process.communicate()

    def _tell(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the clients are gone:\n{self.log_path.read_text()[-3000:]}"
        told: dict[str, Any] = json.loads(line)
        return told

    def __enter__(self) -> "HerdLoad":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


if __name__ == "__main__":
    main()
