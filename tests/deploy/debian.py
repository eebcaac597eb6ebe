"""What the heavy checks share: steps that must succeed, a Debian to work on, wheels for it.

Nothing is pulled from an image registry: bases are made of Debian packages, from this machine's own
package sources. Wheels are downloaded with this machine's own pip settings and handed to builds
that have no index. So no address of either is written here.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.deploy import run, tool
from tests.deploy.lock import BUILD, RUN

PYTHON = "python3,python3-venv,python3-pip,python-is-python3,ca-certificates"
"""As much as the official image of Python has."""

VERSION_LINE = "import sys; print('%d.%d' % sys.version_info[:2])"


class CheckError(Exception):
    """Something did not hold; the text says what."""


def do(*words: str | Path, timeout_s: float = 600) -> str:
    """Run a command that must succeed; returns its stdout.

    Raises:
        CheckError: with the command and all that it printed.
    """
    ran = run(*words, timeout_s=timeout_s)
    if ran.returncode != 0:
        line = " ".join(map(str, words))
        raise CheckError(f"exit code {ran.returncode}: {line}\n{ran.stdout}{ran.stderr}")
    return ran.stdout.strip()


def hold(condition: object, what: str) -> None:
    """Tell what holds.

    Raises:
        CheckError: it does not.
    """
    if not condition:
        raise CheckError(f"does not hold: {what}")
    print(f"  {what}", flush=True)


def since(start: float) -> str:
    """Time from then until now, for people."""
    return f"{time.monotonic() - start:.1f} s"


def debian(target: Path, *packages: str) -> None:
    """A Debian of this machine's release with Python: a folder, or a tar file by its name."""
    if target.exists():
        print(f"{target.name}: as made before", flush=True)
        return
    start = time.monotonic()
    lines = Path("/etc/os-release").read_text().splitlines()
    release = dict(line.split("=", 1) for line in lines if "=" in line)
    listed = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
    part = target.with_name(f"part-{target.name}")  # half a system must not be found next time
    do(
        "mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join((PYTHON, *packages))}",
        release["VERSION_CODENAME"], part, *(path for path in listed if path.exists()),
    )  # fmt: skip
    part.rename(target)
    print(f"{target.name}: made in {since(start)}", flush=True)


def wheels(folder: Path, python: str) -> Path:
    """A folder with the wheels that building and installing `rdzv[server,http]` needs, and no others.

    Args:
        folder: to put it in.
        python: version of the Python that will install them.
    """
    target = folder / "wheels"
    shutil.rmtree(target, ignore_errors=True)
    do(
        sys.executable, "-m", "pip", "download", "--quiet", "--dest", target, "--require-hashes",
        "--only-binary=:all:", "--python-version", python, "-r", RUN, "-r", BUILD,
    )  # fmt: skip
    return target


def play(name: str, check: Callable[[Path], None], needs: dict[str, str]) -> int:
    """The command line of a check: its work folder, what it needs, its exit code.

    Args:
        name: of the module.
        check: gets the folder.
        needs: tools, with the Debian package that has each.
    """
    parser = argparse.ArgumentParser(prog=f"python -m tests.deploy.{name}")
    parser.add_argument("--folder", type=Path, help="work there, keep it, and use what it has")
    given: Path | None = parser.parse_args().folder
    if os.geteuid() != 0:
        parser.error("needs root")
    if lacking := sorted({package for word, package in needs.items() if tool(word) is None}):
        parser.error(f"apt-get install --no-install-recommends {' '.join(lacking)}")
    folder = given or Path(tempfile.mkdtemp(prefix="rdzv-deploy-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        check(folder.resolve())
    except (CheckError, AssertionError, subprocess.TimeoutExpired) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    finally:
        if given is None:
            shutil.rmtree(folder)
    print(f"{name}: good")
    return 0
