"""Tests of deploy/: its files use what the commands understand, and what they say really starts.

The quick part runs with all other tests. `python -m tests.deploy.image` builds the image and runs
it, `python -m tests.deploy.boot` boots a system with the unit in it.
"""

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
UNIT = DEPLOY / "rdzv-server.service"
TOKEN = DEPLOY / "token.conf"
"""A drop-in of the unit."""
README = DEPLOY / "README.md"

SCRIPTS = sysconfig.get_path("scripts")
"""Where the commands of this Python are, `rdzv` and `rdzv-server` among them."""


def tool(name: str) -> str | None:
    """Path of a tool: of this Python's environment, or of the machine's."""
    return shutil.which(name, path=SCRIPTS) or shutil.which(name)


def command(name: str) -> str:
    """Path of one of our commands."""
    path = shutil.which(name, path=SCRIPTS)
    assert path, f"{name} is not in {SCRIPTS}: pip install -e '.[server]'"
    return path


def clean() -> dict[str, str]:
    """The environment without our own variables: what is tested are the files' own settings."""
    return {key: value for key, value in os.environ.items() if not key.startswith("RDZV_")}


def run(
    *words: str | Path, environment: dict[str, str] | None = None, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and keep its output; the exit code is the caller's to judge."""
    env = clean() | (environment or {})
    return subprocess.run(
        words,
        check=False,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def help_of(name: str, *words: str) -> str:
    """What one of our commands says about itself."""
    ran = run(command(name), *words, "--help")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def instructions(text: str) -> list[tuple[str, str]]:
    """A Dockerfile as (INSTRUCTION, rest): comments dropped, continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    pairs = (line.strip().split(maxsplit=1) for line in joined.splitlines())
    return [(word.upper(), rest) for word, rest in pairs]


def directives(text: str) -> dict[str, list[str]]:
    """A unit file as `Section.Key` to its values: one for each line with that key."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(f"{section}.{key}", []).append(value)
    return found


def flags(text: str) -> set[str]:
    """The `--flags` among the words of a command line."""
    return {word.split("=")[0] for word in shlex.split(text) if word.startswith("--")}
