"""`make demo` from end to end: it must work at the first try, and leave nothing behind."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.kit.processes import kill_marked, marked
from tests.e2e.kit.wait import until

RUN = Path(__file__).resolve().parents[2] / "deploy" / "demo" / "run.py"
INHERITED = "DEMO_TEST_MARKER"
"""In the environment of the demo and so of all that it starts; its own marker is `RDZV_DEMO`."""

pytestmark = pytest.mark.torch


class Demo:
    """A run of the demo."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.marker = os.urandom(6).hex()
        self._output = folder / "output"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        with open(self._output, "w") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(RUN)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=os.environ
                | {INHERITED: self.marker, "TMPDIR": str(self.temporary)}
                | variables,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait(self, timeout_s: float) -> int:
        """Its exit code; by then nothing that it started may be there."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the demo did not end within {timeout_s:g} s:\n{self.output}")
        assert marked(self.marker, INHERITED) == [], self.output
        assert list(self.temporary.iterdir()) == [], self.output
        assert "Traceback" not in self.output, self.output
        return code

    def end(self) -> None:
        """For the fixture."""
        kill_marked(self.marker, INHERITED)
        self.process.wait(10)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts the demo; it is ended after the test."""
    for package, shown in (("torch", "torch"), ("sklearn", "scikit-learn")):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {shown}, which is not installed")
    started: list[Demo] = []

    def start_it(**variables: str) -> Demo:
        started.append(Demo(tmp_path, **variables))
        return started[-1]

    yield start_it
    for demo in started:
        demo.end()


@pytest.mark.timeout(240)
def test_the_demo_loses_a_node_goes_on_and_finishes(start: Callable[..., Demo]) -> None:
    demo = start()
    code = demo.wait(180)
    output = demo.output
    assert code == 0, output
    words = " ".join(output.split())  # long sentences are broken into lines

    # two nodes, then the survivor alone, then it and the replacement
    assert "generation 1: node-1 is rank 0, node-2 is rank 1 (" in words
    assert re.search(
        r"node-1 SIGKILL to the agent and the worker of rank 0, pids \d+ and \d+", words
    )
    # the worker of the survivor may die of the broken collective before the grace is over
    told = r"generation 1 ended: node-(1 on \S+ \(group rank 0\) was lost|2 on .* rejoined): "
    assert re.search(told, words)
    assert "node-1 is lost: its connection closed" in words
    assert "generation 2: node-2 is rank 0 (" in words
    assert "generation 3: node-2 is rank 0, node-3 is rank 1 (" in words

    # it goes on from a checkpoint, both times
    resumed = [int(n) for n in re.findall(r"trains from the checkpoint of step (\d+)", words)]
    assert len(resumed) == 2
    assert 0 < resumed[0] <= resumed[1], resumed

    # the loss falls, and a step gives the same in any world
    steps = re.findall(r"step +(\d+) +loss (\d+\.\d+) +(\d) nodes?", words)
    assert float(steps[-1][1]) < float(steps[0][1]) / 4, steps
    assert {world for _, _, world in steps} == {"1", "2"}
    losses: dict[str, list[float]] = {}
    for step, loss, _ in steps:
        losses.setdefault(step, []).append(float(loss))
    for step, seen in losses.items():
        assert max(seen) - min(seen) < 0.01, (step, seen)

    # the timeline has a row for each step, with seconds
    timeline = output[output.index("TIMELINE") :]
    assert len(re.findall(r" \d+\.\d\d s +\d+\.\d s", timeline)) == 11, timeline
    assert "\x1b" not in output, "colours are for terminals"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "moment", ["node-2 +started", "step +1 +loss"], ids=["agents start", "workers train"]
)
def test_ctrl_c_ends_everything(start: Callable[..., Demo], moment: str) -> None:
    demo = start()
    until(lambda: re.search(moment, demo.output), 90, f"{moment!r} in the output")
    demo.process.send_signal(signal.SIGINT)
    code = demo.wait(20)
    assert code == 128 + signal.SIGINT, demo.output
    assert "interrupted (SIGINT)" in demo.output


def test_a_failure_says_what_failed_and_shows_the_tail(
    start: Callable[..., Demo], tmp_path: Path
) -> None:
    broken = tmp_path / "path" / "rdzv_server"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text('raise SystemExit("this server does not start")\n')
    demo = start(PYTHONPATH=str(broken.parent))
    code = demo.wait(60)
    assert code == 1, demo.output
    assert re.search("FAILED +server ended with exit code 1", demo.output)
    assert "this server does not start" in demo.output
