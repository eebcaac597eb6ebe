"""A file system of about 1 MiB that fills up, and has room again; and writes that end early."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.disk import traced
from tests.disk.tally import Tally, judge

_SCRIPT = 'mount -t tmpfs -o "size=$1,mode=0700" tmpfs "$2" && shift && exec "$PY" -m tests.disk.writer fill "$@"'


def available() -> str | None:
    """Why not, or None."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("unshare") is None:
        return "needs unshare"
    done = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    return None if done.returncode == 0 else "mounts are not allowed here"


def campaign(points: int) -> Iterator[Tally]:
    """The size differs from point to point, so that the end comes in another call each time. At every
    second point the log is brought into the main file in between, which has to grow then."""
    tally = Tally("a full disk that has room again")
    for index in range(points):
        size = (1 << 20) - 4096 * (index * 7 % 64)
        _fill(tally, size, tidy=index % 2 == 1)
    yield tally


def short(points: int) -> Iterator[Tally]:
    """Writes that end early, as on a disk that fills up in the middle of one; at any byte of a page."""
    tally = Tally("short writes")
    for index in range(points):
        limit = 16_384 + index * 1_237
        with tempfile.TemporaryDirectory(prefix="rdzv-short-") as name:
            done = subprocess.run(
                [sys.executable, "-m", "tests.disk.writer", "short", name, str(limit)],
                cwd=traced.ROOT,
                env=traced.environment(),
                capture_output=True,
                text=True,
                timeout=traced.TIMEOUT_S,
                check=False,
            )
            ran = traced.Ran(done.returncode, done.stdout.splitlines(), [])
            what = f"no file longer than {limit}"
            judge(tally, what, Path(name), ran.acked, ran.acked, may_refuse=False, go_on=True)
            if done.returncode != 0 or len(ran.failed) != 2:
                tally.wrong += 1
                tally.note(what, f"{ran.lines[-2:]} {done.stderr[-300:]}")
    yield tally


def _fill(tally: Tally, size: int, *, tidy: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="rdzv-full-") as name:
        done = subprocess.run(
            [
                "unshare",
                "-m",
                "sh",
                "-c",
                _SCRIPT,
                "sh",
                str(size),
                name,
                *(["tidy"] if tidy else []),
            ],
            cwd=traced.ROOT,
            env={**traced.environment(), "PY": sys.executable},
            capture_output=True,
            text=True,
            timeout=traced.TIMEOUT_S,
            check=False,
        )
        left = list(Path(name).iterdir())
    tally.tried += 1
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith("failed ")]
    what = f"size {size}"
    if done.returncode != 0 or left or lines[-1:] != ["whole"]:
        tally.wrong += 1
        tally.note(what, f"{lines[-2:]} {done.stderr[-300:]}")
    elif not failed or any(line.split()[2] != "full" for line in failed):
        tally.wrong += 1
        tally.note(what, f"no failure, or not for want of room: {failed}")
    else:
        tally.whole += 1
