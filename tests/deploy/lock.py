"""The requirements of the image: exact versions, and the hashes of the files that may be installed.

    python -m tests.deploy.lock

Writes deploy/requirements.txt (what the server and its HTTP side need) and deploy/requirements-build.txt (what building
the wheel needs) in the versions of tests/constraints.txt, for every platform at once. Then shows that
each supported Python gets all of it as wheels. `make lock` runs this where uv is installed.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.deploy import DEPLOY, ROOT, tool

CONSTRAINTS = ROOT / "tests" / "constraints.txt"
RUN = DEPLOY / "requirements.txt"
BUILD = DEPLOY / "requirements-build.txt"

EXTRAS = ("server", "http")
"""Those that the image has."""

BACKEND = "hatchling"
"""The build backend; pyproject.toml names the same."""

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")

HEADER = """\
# What {what}: exact versions and the hashes of their files.
# Made by `make lock` from pyproject.toml and tests/constraints.txt; do not edit.
"""

_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)\s*(?:;\s*([^\\]*[^\\\s]))?")


@dataclass(frozen=True)
class Pin:
    """One exact version, where its marker holds."""

    name: str
    """As indexes compare names: small letters, with hyphens."""
    version: str
    marker: str = ""
    hashes: tuple[str, ...] = ()


def canonical(name: str) -> str:
    """The one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> Iterator[Pin]:
    """Of a file with one requirement a line; its hashes may follow on continued lines."""
    for line in path.read_text().replace("\\\n", " ").splitlines():
        words, *hashes = line.split(" --hash=")
        if match := _PIN.match(words):
            name, version, marker = match.groups(default="")
            yield Pin(canonical(name), version, marker, tuple(h.strip() for h in hashes))


def write(target: Path, what: str, *source: str | Path, stdin: str = "") -> None:
    """Resolve, and write what was found with all its hashes."""
    compiled = uv(
        "pip", "compile", "--quiet", "--universal", "--python-version", PYTHONS[0],
        "--generate-hashes", "--no-header", "--no-annotate", "-c", CONSTRAINTS, *source,
        stdin=stdin,
    )  # fmt: skip
    target.write_text(HEADER.format(what=what) + compiled)


def uv(*words: str | Path, stdin: str = "") -> str:
    """Run it; what it prints.

    Raises:
        subprocess.CalledProcessError: it failed. It has said why.
    """
    path = tool("uv")
    assert path, "needs uv: `make lock`"
    return subprocess.run(
        (path, *words), check=True, cwd=ROOT, input=stdin, stdout=subprocess.PIPE, text=True
    ).stdout


def main() -> None:
    """Write both, and install both for every Python and machine, from nothing but wheels."""
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    write(RUN, "rdzv-server needs at run time", *extras, "pyproject.toml")
    write(BUILD, "building the wheel needs", "-", stdin=BACKEND)
    for python in PYTHONS:
        for machine in MACHINES:
            with tempfile.TemporaryDirectory() as folder:
                uv(
                    "pip", "install", "--quiet", "--target", folder, "--python-version", python,
                    "--python-platform", f"{machine}-manylinux_2_28", "--only-binary", ":all:",
                    "--require-hashes", "-r", RUN, "-r", BUILD,
                )  # fmt: skip
        print(f"Python {python}: wheels for {' and '.join(MACHINES)}", flush=True)


if __name__ == "__main__":
    main()
