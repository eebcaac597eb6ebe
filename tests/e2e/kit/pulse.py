"""A live run beside an attack: it beats, and shows what the attack does to everybody else.

    with live_run(cluster, server) as pulse:
        attack()

When the block is over, nobody may have been lost, no generation may have ended, and the heartbeats' p99
during the block must have been 50 ms or less (SEMANTICS L10).

That bound is the one place where tests assert a time, so it is made to mean the server and not the
machine: attacks run in processes of low priority and bounded rate; a round trip ends when the kernel
has the reply; and a machine on which things take long by themselves is given more, by this rule:

    noise = the larger of the run's p99 in calm before the block, and the p99 of an idle process that
            echoes bytes, during the block
    limit = 50 ms · max(1, noise / 10 ms)

On a quiet machine the noise is below 1 ms, so only a server that lets heartbeats wait gets over the limit.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Cluster
from tests.e2e.kit.gauges import Share, rss_mib, waited_s
from tests.e2e.kit.processes import MARKER, kill
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until

P99_MS_MAX = 50.0
NOISE_MS = 10.0
CALM_S = 0.4
FORM_S = 60.0

RUN = "live"

Pairs = list[tuple[float, float]]


def percentile(values: list[float], percent: float = 99.0) -> float:
    """The smallest value that so many percent do not exceed; 0 without values."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


class Pulse:
    """The process of the live run, and what it said."""

    def __init__(self, folder: Path, marker: str, server: Server, options: dict[str, Any]) -> None:
        self.server, self.run = server, str(options["run"])
        self.nodes = int(options["nodes"])
        self.beats: Pairs = []
        self.echoes: Pairs = []
        self.harm: list[dict[str, Any]] = []
        """Losses and ends of the generation, as the nodes saw them."""
        self.fence = ""
        self._over = False
        self._since = math.inf
        self._until = math.inf
        self._began_mib = self._began_waited_s = self._waited_s = self._share = 0.0
        self.log_path = folder / f"pulse-{self.run}-{os.urandom(3).hex()}.log"
        with open(self.log_path, "w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.kit.beating", json.dumps(options)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=os.environ | {MARKER: marker},
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "beats" in said:
                self.beats += [(at, ms) for at, ms in said["beats"]]
                self.echoes += [(at, ms) for at, ms in said["echoes"]]
            elif "formed" in said:
                self.fence = said["formed"]
            elif "over" in said:
                self.beats += [(at, ms) for at, ms in said["unanswered"]]
                self._over = True
            else:
                self.harm.append(said)

    # --- its life -----------------------------------------------------------------------------

    def begin(self, calm_s: float) -> None:
        """Wait until the run is live and has beaten in calm for a while."""
        until(
            lambda: self.fence, FORM_S, lambda: f"the live run forms: {self.log_path.read_text()}"
        )
        started = time.monotonic()
        until(
            lambda: self.beats and self.beats[-1][0] > started + calm_s,
            calm_s + 30,
            "it beats in calm",
        )
        self._share_of = Share(self.server)
        self._began_waited_s, self._began_mib = waited_s(self.server.pid), rss_mib(self.server)
        self._since = time.monotonic()

    def stop(self) -> None:
        """Beat no more; wait for the replies that are under way."""
        self._until = time.monotonic()
        self._share = self._share_of.of_a_core
        self._waited_s = waited_s(self.server.pid) - self._began_waited_s
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(30)
        self._reader.join(5)
        assert self._over, self.log_path.read_text()

    def end(self) -> None:
        """End it whatever it does."""
        if self._process.poll() is None:
            kill(self._process.pid)
        self._process.wait(10)
        self._reader.join(5)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    # --- figures ------------------------------------------------------------------------------

    @property
    def calm_p99_ms(self) -> float:
        return percentile([ms for at, ms in self.beats if at < self._since])

    @property
    def during_ms(self) -> list[float]:
        """Of all heartbeats that were sent during the block."""
        return [ms for at, ms in self.beats if self._since <= at <= self._until]

    @property
    def p99_ms(self) -> float:
        return percentile(self.during_ms)

    @property
    def echo_p99_ms(self) -> float:
        return percentile([ms for at, ms in self.echoes if self._since <= at <= self._until])

    @property
    def limit_ms(self) -> float:
        return P99_MS_MAX * max(1.0, max(self.calm_p99_ms, self.echo_p99_ms) / NOISE_MS)

    @property
    def figures(self) -> str:
        """For people."""
        beats = self.during_ms
        return (
            f"heartbeats: {len(beats)} in {self._until - self._since:.1f} s, p99 "
            f"{self.p99_ms:.1f} ms, max {max(beats, default=0):.1f} ms (limit {self.limit_ms:.0f} ms); "
            f"calm p99 {self.calm_p99_ms:.1f} ms; idle echo p99 {self.echo_p99_ms:.1f} ms; server: "
            f"{self._share:.2f} of a core, waited {self._waited_s:.2f} s for one, "
            f"{self._began_mib:.1f} MiB before, {rss_mib(self.server):.1f} MiB after"
        )

    def check(self, *, steady: bool = True) -> None:
        """Nobody was harmed, and (if that is asked for) nobody was delayed.

        Raises:
            AssertionError: somebody was.
        """
        print(self.figures)
        lost = [line for line in self.server.log_lines("node_lost") if f"run={self.run} " in line]
        assert not lost, lost
        assert not self.harm, self.harm
        assert len(self.during_ms) > 10, "it did beat"
        assert not steady or self.p99_ms <= self.limit_ms, self.figures


@contextlib.contextmanager
def live_run(
    cluster: Cluster, server: Server, *, run: str = RUN, nodes: int = 8, interval_s: float = 0.05,
    lease_s: float = 2.0, calm_s: float = CALM_S, at_least_s: float = 0.8, steady: bool = True,
) -> Iterator[Pulse]:  # fmt: skip
    """A run that beats beside the block and is looked at afterwards.

    Args:
        cluster: of the test.
        server: where it meets.
        run: its id.
        nodes: of the run.
        interval_s: between two heartbeats of a node.
        lease_s: of each node.
        calm_s: how long it is watched before the block.
        steady: the p99 is checked. Otherwise only that nobody was lost.
        at_least_s: a shorter block is watched for as long: what an attack leaves behind harms as well.
    """
    options = {
        "host": server.host, "port": server.port, "run": run, "nodes": nodes,
        "interval_s": interval_s, "lease_s": lease_s,
    }  # fmt: skip
    pulse = Pulse(cluster.folder, cluster.marker, server, options)
    try:
        pulse.begin(calm_s)
        began = time.monotonic()
        yield pulse
        until(lambda: time.monotonic() > began + at_least_s, at_least_s + 30, "it beats on")
        pulse.stop()
        pulse.check(steady=steady)
    finally:
        pulse.end()
