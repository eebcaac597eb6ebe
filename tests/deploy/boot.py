"""Boot a system in which the unit is installed where it belongs, and try it there.

    python -m tests.deploy.boot [--folder FOLDER]

What systemd-analyze cannot tell: whether Python and uvloop run under every one of the restrictions.
"""

import shutil
import sys
import time
from pathlib import Path

from tests.deploy import ROOT, TOKEN, UNIT, run
from tests.deploy.debian import (
    VERSION_LINE,
    CheckError,
    debian,
    do,
    hold,
    play,
    since,
    wheels,
)
from tests.deploy.lock import CONSTRAINTS, EXTRAS

NEEDS = {"mmdebstrap": "mmdebstrap", "systemd-nspawn": "systemd-container"}

BOOT_S = 180
"""It takes about 5 s; a system that does not power itself off is ended after this."""

GUEST = Path(__file__).with_name("guest.sh")

CHECK_UNIT = """\
[Unit]
After=rdzv-server.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'exec sh /guest.sh >/result 2>&1'
ExecStopPost=/bin/systemctl --no-block poweroff
"""


def install(tree: Path, folder: Path) -> None:
    """Into /opt/rdzv, from wheels: the project's own and those it needs."""
    python = do("chroot", tree, "python3", "-c", VERSION_LINE)
    inside = tree / "wheels"
    shutil.rmtree(inside, ignore_errors=True)
    shutil.copytree(wheels(folder, python), inside)
    do(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-c", CONSTRAINTS,
        "--wheel-dir", inside, ROOT,
    )  # fmt: skip
    shutil.rmtree(tree / "opt" / "rdzv", ignore_errors=True)
    do("chroot", tree, "python3", "-m", "venv", "/opt/rdzv")
    (wheel,) = inside.glob("rdzv-*.whl")
    do(
        "chroot", tree, "/opt/rdzv/bin/pip", "install", "--quiet", "--no-index",
        "--find-links", "/wheels", f"/wheels/{wheel.name}[{','.join(EXTRAS)}]",
    )  # fmt: skip


def enable(tree: Path) -> None:
    """The unit, and one that tries it and then powers the system off."""
    units = tree / "etc" / "systemd" / "system"
    shutil.copy(UNIT, units)
    (units / "check.service").write_text(CHECK_UNIT)
    for name in (UNIT.name, "check.service"):
        link = units / "multi-user.target.wants" / name
        link.unlink(missing_ok=True)
        link.symlink_to(f"/etc/systemd/system/{name}")
    shutil.rmtree(units / f"{UNIT.name}.d", ignore_errors=True)
    shutil.copy(TOKEN, tree / TOKEN.name)  # the guest installs it when its turn has come
    shutil.copy(GUEST, tree / "guest.sh")
    # A minimal tree has none, and with two addresses the lookup sorts them.
    (tree / "etc" / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    shutil.rmtree(tree / "etc" / "rdzv", ignore_errors=True)
    (tree / "result").unlink(missing_ok=True)


def check(folder: Path) -> None:
    """Make the system, boot it, read what it found."""
    tree = folder / "tree"
    debian(tree, "systemd-sysv", "dbus")
    install(tree, folder)
    enable(tree)
    start = time.monotonic()
    boot = run(
        "systemd-nspawn", "--quiet", "--boot", "--directory", tree, "--private-network",
        # This side need not be run by systemd, so there may be nobody to register with.
        "--register=no", "--keep-unit", "--kill-signal=SIGKILL", timeout_s=BOOT_S,
    )  # fmt: skip
    result = tree / "result"
    text = result.read_text() if result.exists() else boot.stdout + boot.stderr
    if not text.endswith("GOOD\n"):
        raise CheckError(f"in the booted system:\n{text}")
    hold(True, f"booted, tried and powered off in {since(start)}")
    (exposure,) = (line for line in text.splitlines() if "exposure level" in line)
    hold(True, exposure.strip("→ "))


if __name__ == "__main__":
    sys.exit(play("boot", check, NEEDS))
