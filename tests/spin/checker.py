"""Building and running Spin's verifier for one form of the model, in a temporary folder."""

import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

MODEL = Path(__file__).parent / "rendezvous.pml"

GCC = ("gcc", "-w", "-DSAFETY", "-DNOREDUCE", "-DNOFAIR", "-DHC4", "-DMEMLIM=8000")
"""No partial order reduction: every transition touches what others read. HC4 keeps a hash of each state and
not its 180 bytes, so that 10^8 states fit into memory; two with the same one (2^-64 for a pair) would be taken for one."""

DEPTH_MAX = 10_000
"""Steps of one run. Budgets of faults end runs long before; a run that is cut off is a failure here."""

TIMEOUT_S = 600
"""Of one verification. The longest takes about a minute."""


@dataclass(frozen=True)
class Verdict:
    """Of one verification."""

    states: int
    errors: int
    depth: int
    broken: str = ""
    """The property that does not hold, as it stands in the model."""
    seconds: float = 0.0
    """Of one processor."""


class SpinError(Exception):
    """The verifier could not be built, or gave no verdict."""


def available() -> str | None:
    """Why not, or None."""
    if shutil.which("spin") is None:
        return "needs spin (Debian package spin)"
    if shutil.which("gcc") is None:
        return "needs gcc (Debian packages gcc and libc6-dev)"
    return None


def verify(defines: Mapping[str, int], *, large: bool = False) -> Verdict:
    """Look at every state that the model has under these definitions, up to the first error.

    Args:
        defines: for the model.
        large: it pays to let the compiler optimise, which takes longer than a small state space.

    Raises:
        SpinError: there is no verdict.
    """
    with tempfile.TemporaryDirectory(prefix="rdzv-spin-") as folder:
        options = [f"-D{name}={value}" for name, value in defines.items()]
        _run(folder, 60, "spin", *options, "-a", str(MODEL))
        _run(folder, 120, *GCC, "-O2" if large else "-O0", "-o", "pan", "pan.c")
        began_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        out = _run(folder, TIMEOUT_S, "./pan", f"-m{DEPTH_MAX}", "-w24")
        seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began_s
    return replace(parse(out), seconds=seconds)


def parse(out: str) -> Verdict:
    """Read what the verifier says.

    Raises:
        SpinError: it did not look at everything, and found nothing.
    """
    errors = re.search(r"depth reached (\d+), errors: (\d+)", out)
    states = re.search(r"^\s*([\d.e+]+) states, stored", out, re.MULTILINE)
    broken = re.search(r"^pan:\d+: assertion violated (.*) \(at depth", out, re.MULTILINE)
    if errors is None or states is None:
        raise SpinError(f"no verdict:\n{out}")
    cut = "max search depth too small" in out or "reached -DMEMLIM" in out
    if cut and errors[2] == "0":
        raise SpinError(f"not everything was looked at:\n{out}")
    return Verdict(
        states=int(float(states[1])),
        errors=int(errors[2]),
        depth=int(errors[1]),
        broken=broken[1] if broken else "",
    )


def _run(folder: str, timeout_s: float, *command: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, timeout=timeout_s, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SpinError(f"{command[0]} took longer than {timeout_s:g} s") from None
    if done.returncode and command[0] != "./pan":
        raise SpinError(f"{' '.join(command)}:\n{done.stdout}")
    return done.stdout
