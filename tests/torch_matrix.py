"""The plug-in against several torch versions, each in a venv of its own: `make torch-matrix`.

    python -m tests.torch_matrix [SPEC …]       (default: torch==2.6.0 and the newest)

2.6 is the first release with the entry point group. Each version runs the tests that drive real
torchrun agents through its own scripts. The venvs take gigabytes and stay in `.matrix`.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".matrix"
SPECS = ("torch==2.6.0", "torch")
TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "msgpack", "uvloop")

TESTS = (
    "tests/e2e/test_plugin.py", "tests/e2e/test_failures.py", "tests/e2e/test_endings.py",
    "tests/e2e/test_quorum_timing.py", "tests/e2e/test_worker_store.py", "tests/unit/client/torch",
)  # fmt: skip


def main(specs: list[str]) -> int:
    outcomes: list[tuple[str, str]] = []
    for spec in specs or list(SPECS):
        python = _venv(spec)
        version = _output(python, "-c", "import torch; print(torch.__version__)")
        print(f"--- {spec}: torch {version}, {_output(python, '--version')}", flush=True)
        run = subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "torch", *TESTS],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        print(run.stdout[-4000:], flush=True)
        outcomes.append((version, run.stdout.strip().splitlines()[-1]))
    print("--- summary")
    for version, line in outcomes:
        print(f"torch {version}: {line}")
    return int(any("failed" in line or "error" in line for _, line in outcomes))


def _venv(spec: str) -> str:
    folder = FOLDER / re.sub(r"[^\w.]+", "-", spec)
    python = str(folder / "bin" / "python")
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, "numpy<2.3", spec], check=True)
        constraints = str(ROOT / "tests" / "constraints.txt")
        subprocess.run([*pip, "-c", constraints, "-e", f"{ROOT}[server]", *TOOLS], check=True)
        (folder / "ready").touch()
    return python


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
