"""Episodes, in both modes of state by turns, until the time is over; and what came of all of them."""

import contextlib
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.crew import LAST_CALL_S
from tests.chaos.episode import Episode, Outcome
from tests.chaos.meter import Kind, Meter, percentile
from tests.e2e.kit.agents import Launcher

EPISODE_S = 240.0
"""Long enough for many generations of one server, short enough for histories that fit into memory."""

SLACK_S = 1.0
"""Beyond the lease (and the last call): ticks, reconnects, a turn of a client."""

SHOWN_MAX = 10


@dataclass(frozen=True)
class Options:
    """Of a campaign."""

    minutes: float
    seed: int
    clients: int
    lease_s: float
    faults_max: int
    agents: bool
    judge_speed: bool
    folder: Path | None


@dataclass
class Campaign:
    """All episodes.

    Args:
        options: what is asked for.
    """

    options: Options
    stop: threading.Event = field(default_factory=threading.Event)
    outcomes: list[Outcome] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.meter = Meter(self.stop, self.options.faults_max)

    def play(self) -> int:
        """Run it; prints what came of it. Returns an exit code."""
        options = self.options
        made = tempfile.mkdtemp(prefix="rdzv-chaos-") if options.folder is None else None
        folder = Path(made or str(options.folder)).resolve()
        os.environ.setdefault("RDZV_HTTP_PORT", "off")
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        signal.signal(signal.SIGTERM, lambda number, frame: self.stop.set())
        print(f"chaos: seed {options.seed}, {options.clients} clients, lease {options.lease_s:g} s")
        interrupted = False
        with contextlib.ExitStack() as closing:
            launcher = None
            if options.agents:
                folder.mkdir(parents=True, exist_ok=True)
                launcher = Launcher(folder)
                closing.callback(launcher.close)
            try:
                self._episodes(folder, launcher)
            except KeyboardInterrupt:
                interrupted = True
                self.stop.set()
        good = self._tell() and not interrupted
        if good and made is not None:
            shutil.rmtree(folder, ignore_errors=True)
        elif not good:
            print(
                f"chaos: histories and logs are kept in {folder}; again with --seed {options.seed}"
            )
        return 130 if interrupted else 0 if good else 1

    def _episodes(self, folder: Path, launcher: Launcher | None) -> None:
        options, left_s = self.options, self.options.minutes * 60
        count = max(2, math.ceil(left_s / EPISODE_S))
        for number in range(count):
            state = ("sqlite", "memory")[number % 2]
            if self.stop.is_set() or self._enough(number, count):
                return
            episode = Episode(
                folder / f"{number}-{state}", state, options.clients, options.lease_s, launcher,
                f"{options.seed} {number}", self.meter,
            )  # fmt: skip
            began = time.monotonic()
            outcome = episode.play(left_s / count)
            self.outcomes.append(outcome)
            clean = outcome.verdict.good and not outcome.troubles and not self.meter.stuck
            print(
                f"  {state}: {time.monotonic() - began:.0f} s, {self.meter.total} faults so far, "
                f"{outcome.generations} generations, {outcome.verdict.summary()}",
                flush=True,
            )
            (folder / "faults.log").write_text("\n".join(self.meter.notes) + "\n")
            if not clean:
                return

    def _enough(self, number: int, count: int) -> bool:
        """With a number of faults asked for, each episode gets its share."""
        self.meter.allow(self.options.faults_max * (number + 1) // count)
        return self.meter.total >= self.options.faults_max

    # --- what came of it ----------------------------------------------------------------------

    def _tell(self) -> bool:
        meter, options = self.meter, self.options
        for outcome in self.outcomes:
            self.troubles += outcome.troubles
            for violation in outcome.verdict.violations[:SHOWN_MAX]:
                print(violation)
        for trouble in (*self.troubles, *meter.stuck):
            print(f"trouble: {trouble}")
        print("faults: " + ", ".join(f"{n} {name}" for name, n in sorted(meter.faults.items())))
        good = self._tell_times()
        verdicts = [outcome.verdict for outcome in self.outcomes]
        violations = sum(len(verdict.violations) for verdict in verdicts)
        undecided = sum(len(verdict.undecided) for verdict in verdicts)
        print(
            f"chaos: seed {options.seed}: {meter.total} faults in "
            f"{sum(outcome.seconds for outcome in self.outcomes) / 60:.1f} min, "
            f"{sum(outcome.generations for outcome in self.outcomes)} generations, "
            f"{sum(verdict.ops for verdict in verdicts)} operations, {undecided} keys undecided, "
            f"{violations} violations, {len(meter.stuck)} stuck, {len(self.troubles)} troubles"
        )
        sys.stdout.flush()
        return good and not violations and not undecided and not meter.stuck and not self.troubles

    def _tell_times(self) -> bool:
        meter, lease_s = self.meter, self.options.lease_s
        bounds: dict[Kind, float] = {
            "loss": lease_s + SLACK_S, "return": lease_s + LAST_CALL_S + SLACK_S,
        }  # fmt: skip
        names = {"loss": "without waiting for a member", "return": "where a member is waited for"}
        good = True
        for kind, bound_s in bounds.items():
            times, net_s = meter.times[kind], percentile(meter.net_times[kind], 99)
            late = net_s > bound_s
            good &= not late or not self.options.judge_speed
            print(
                f"together again, {names[kind]}: {len(times)} times, "
                f"p50 {percentile(times, 50):.2f} s, p99 {percentile(times, 99):.2f} s, without waiting for "
                f"a processor {net_s:.2f} s (bound {bound_s:.1f} s{', EXCEEDED' if late else ''}); slowest: "
                + ", ".join(f"{seconds:.2f} s {what}" for seconds, what in meter.slowest[kind])
            )
        agents = sorted(t for outcome in self.outcomes for t in outcome.agent_times)
        if agents:
            print(
                f"torchrun agents: {len(agents)} times, p50 {agents[len(agents) // 2]:.2f} s, "
                f"slowest {agents[-1]:.2f} s (workers stopped and started included)"
            )
        print(f"not timed, because of faults on top of others: {meter.untimed}")
        return good
