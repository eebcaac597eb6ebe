"""Runs the checks; see the package."""

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.gpu.bench import SAFE, Bench, plugin_folder
from tests.gpu.checks import CHECKS, Check

COUNT = "import torch; print(torch.cuda.device_count())"
PROBE_S = 120.0


class OutOfTimeError(Exception):
    """A check took longer than it may."""


def gpus() -> tuple[int, str]:
    """How many there are, asked in a process of its own; and why none, if none."""
    if importlib.util.find_spec("torch") is None:
        return 0, "torch is not installed"
    probe = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, text=True, timeout=PROBE_S, check=False
    )
    last = (probe.stderr.strip().splitlines() or [""])[-1]
    if probe.returncode != 0 or not probe.stdout.strip().isdigit():
        return 0, f"torch cannot be asked: {last}"
    count = int(probe.stdout)
    return count, f"two GPUs are needed, {count} found"


def play(check: Check, folder: Path) -> tuple[str, str]:
    """One check: PASS, FAIL or SKIP, and a detail."""
    for module in check.needs:
        if importlib.util.find_spec(module) is None:
            return "SKIP", f"{module} is not installed"
    bench = Bench(folder / check.name)
    signal.setitimer(signal.ITIMER_REAL, check.limit_s)
    try:
        return "PASS", check.play(bench)
    except OutOfTimeError:
        return "FAIL", f"not done within {check.limit_s:g} s; logs in {bench.folder}"
    except Exception as error:  # noqa: BLE001  (it must not keep the others from running)
        traceback.print_exc()
        return "FAIL", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        bench.end()


def _out_of_time(number: int, frame: object) -> None:
    raise OutOfTimeError


def main(names: list[str]) -> int:
    """Run the named checks, or all; returns the exit code."""
    unknown = set(names) - {check.name for check in CHECKS}
    if unknown:
        print(f"no such check: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    os.environ.update(SAFE)
    os.environ.pop("NCCL_COMM_ID", None)
    signal.signal(signal.SIGALRM, _out_of_time)
    count, why = gpus()
    results = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    folder = Path(tempfile.mkdtemp(prefix="rdzv-gpu-"))
    paths = [str(Path(__file__).parents[2] / part) for part in ("server", "client", "proto", "")]
    paths += [plugin_folder(folder / "plugin"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    for check in CHECKS:
        if names and check.name not in names:
            continue
        began = time.monotonic()
        result, detail = ("SKIP", why) if count < 2 else play(check, folder)
        results[result] += 1
        print(f"{result} {check.name} {time.monotonic() - began:.1f} {detail}", flush=True)
    counts = ", ".join(f"{number} {result}" for result, number in results.items())
    print(f"SUMMARY {counts}; {count} GPUs; logs in {folder}", flush=True)
    return 1 if results["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
