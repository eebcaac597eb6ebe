"""One target at a time: guided if atheris is here, then by grammar without it, with times and memory."""

import gc
import hashlib
import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.targets import TARGETS, Target
from tests.fuzz.watch import INPUT_MS_MAX, Watch, rss_mib, slope

CRASHES = Path(__file__).parent / "crashes"
"""Inputs that made the product fail: kept for ever, and replayed by every `make test`."""

TIMED_AGAIN = 3
"""What took too long is timed so often, and the best counts: a busy machine is not the product's doing."""

SAMPLE_EVERY_S = 0.5
GRACE_S = 120.0
"""For a guided process to start, and to end after its time."""

INPUT_BYTES_MAX = 4096


@dataclass
class Result:
    """Of one target."""

    name: str
    inputs: int = 0
    guided: int = 0
    """Of them, under atheris."""
    crashes: list[str] = field(default_factory=list)
    largest_ms: float = 0.0
    above: int = 0
    """Inputs that took longer than allowed, timed again."""
    rss: list[tuple[float, float]] = field(default_factory=list)
    """Inputs (in hundred thousands) and memory (MiB)."""

    @property
    def rss_slope(self) -> float:
        """MiB for each hundred thousand inputs, without the first fifth, in which caches fill."""
        return slope(self.rss[len(self.rss) // 5 :])

    @property
    def bad(self) -> int:
        return len(self.crashes) + self.above

    def line(self, seconds: float) -> str:
        return (
            f"{self.name:<12} {self.inputs:>10,} inputs ({self.guided:,} guided)  {len(self.crashes)} crashes  "
            f"largest {self.largest_ms:5.2f} ms  {self.above} above {INPUT_MS_MAX:g} ms  "
            f"rss {self.rss_slope:+6.2f} MiB/100k  {seconds:6.1f} s"
        )


def guided_available() -> str | None:
    """Why not, or None."""
    return (
        None if importlib.util.find_spec("atheris") else "needs atheris (`make fuzz` installs it)"
    )


def run_one(target: Target, data: bytes, result: Result, crashes: Path = CRASHES) -> bool:
    """Try one input; False if it made the product fail, which is kept."""
    watch = Watch()
    try:
        target.run(data, watch)
        took_ms = watch.largest_ms
        for _ in range(TIMED_AGAIN):
            if took_ms <= INPUT_MS_MAX:
                break
            watch.begin()
            target.run(data, watch)
            took_ms = min(took_ms, watch.largest_ms)
    except Exception:  # noqa: BLE001 (whatever it is, it is what we look for)
        result.crashes.append(f"{keep(target, data, crashes)}:\n{traceback.format_exc()}")
        return False
    result.largest_ms = max(result.largest_ms, took_ms)
    if took_ms > INPUT_MS_MAX:
        result.above += 1
        keep(target, data, crashes)
    return True


def keep(target: Target, data: bytes, crashes: Path = CRASHES) -> Path:
    """Keep an input for ever."""
    path = crashes / f"{target.name}-{hashlib.sha256(data).hexdigest()[:16]}"
    path.write_bytes(data)
    return path


def by_grammar(
    target: Target, result: Result, *, seed: int, inputs: int, seconds: float, more: Iterable[bytes] = ()
) -> None:  # fmt: skip
    """Seeds, given inputs, then made ones, until there were so many or the time is over."""
    began = sampled = time.monotonic()
    for data in (*target.seeds(), *more):
        run_one(target, data, result)
        result.inputs += 1
    for number in range(inputs):
        run_one(target, target.make(random.Random(seed * 1_000_003 + number)), result)
        result.inputs += 1
        now = time.monotonic()
        if now - sampled > SAMPLE_EVERY_S:
            sampled = now
            gc.collect()
            result.rss.append((number / 1e5, rss_mib()))
        if now - began > seconds:
            break


def guided(
    target: Target, result: Result, *, seed: int, inputs: int, seconds: float
) -> list[bytes]:
    """Let atheris look for ways through the code. Returns the slowest inputs, to be timed without it."""
    with tempfile.TemporaryDirectory(prefix="rdzv-fuzz-") as folder:
        corpus, slow = Path(folder) / "corpus", Path(folder) / "slow"
        corpus.mkdir()
        slow.mkdir()
        for number, data in enumerate(target.seeds()):
            (corpus / str(number)).write_bytes(data)
        flags = [
            f"-runs={inputs}", f"-max_total_time={max(1, round(seconds))}", f"-seed={seed + 1}",
            f"-max_len={INPUT_BYTES_MAX}", f"-artifact_prefix={CRASHES}/{target.name}-", "-timeout=20",
            "-rss_limit_mb=2048", "-print_final_stats=1", str(corpus),
        ]  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.guided", target.name, str(slow), *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            timeout=seconds + GRACE_S, check=False, env=os.environ | {"PYTHONHASHSEED": "0"},
        )  # fmt: skip
        executed = re.findall(
            r"stat::number_of_executed_units:\s*(\d+)", done.stdout
        ) or re.findall(r"^#(\d+)", done.stdout, re.MULTILINE)
        result.guided += int(executed[-1]) if executed else 0
        result.inputs += int(executed[-1]) if executed else 0
        if done.returncode:
            result.crashes.append(f"guided, exit code {done.returncode}:\n{done.stdout[-3000:]}")
        return [path.read_bytes() for path in sorted(slow.iterdir())]


def run(name: str, *, seed: int, inputs: int, seconds: float) -> Result:
    """A third of the time guided (it is slower, and finds more), the rest by grammar."""
    target, result = TARGETS[name], Result(name)
    slow: list[bytes] = []
    if guided_available() is None:
        slow = guided(target, result, seed=seed, inputs=inputs, seconds=seconds / 3)
    by_grammar(target, result, seed=seed, inputs=inputs, seconds=seconds * 2 / 3, more=slow)
    return result


def kept() -> list[tuple[str, Path]]:
    """Target and file of everything in crashes/."""
    return [
        (path.name.partition("-")[0], path)
        for path in sorted(CRASHES.iterdir())
        if path.name.partition("-")[0] in TARGETS
    ]
