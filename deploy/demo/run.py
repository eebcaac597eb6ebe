"""`make demo`: a torchrun job loses a node, re-forms, goes on from its checkpoint and finishes.
`make demo-restart` is the same with `--restart`: the server is killed, comes back and is replaced.

Exit codes: 0 all went as described; 1 something did not, and it is said what; 2 something is missing
that the demo needs; 128 + N after signal N (130: Ctrl-C). All processes and files go in every case.
"""

import importlib.util
import io
import os
import queue
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deploy.demo.screen import Screen
    from deploy.demo.stage import Stage
    from deploy.demo.story import Story
    from deploy.demo.upkeep import Upkeep

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NEEDED = {"rdzv_server": "rdzv", "rdzv_client": "rdzv", "torch": "torch", "sklearn": "scikit-learn"}
EXIT_FAILED, EXIT_MISSING, EXIT_PIPE = 1, 2, 128 + signal.SIGPIPE
RESTART = "--restart"


def main() -> int:
    """Look whether it can be played here, and play it."""
    if sys.argv[1:] not in ([], [RESTART]):
        print(f"usage: run.py [{RESTART}]", file=sys.stderr)
        return EXIT_MISSING
    restart = RESTART in sys.argv
    for number in SIGNALS:
        signal.signal(number, _leave_at_once)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 is no reason to fail
    missing = {shown for name, shown in NEEDED.items() if importlib.util.find_spec(name) is None}
    if missing:
        target = "demo-restart" if restart else "demo"
        print(f"the demo needs {', '.join(sorted(missing))}: run `make {target}`", file=sys.stderr)
        return EXIT_MISSING
    if not os.path.exists("/proc/self/environ"):
        print("the demo needs /proc (Linux), to find the agents' workers", file=sys.stderr)
        return EXIT_MISSING
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    try:
        return _play(restart=restart)
    except BrokenPipeError:  # whoever read this has gone; there is nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE


def _leave_at_once(number: int, frame: FrameType | None) -> None:
    """Nothing has been started yet."""
    os._exit(128 + number)


def _story(stage: "Stage", screen: "Screen", *, restart: bool) -> "Story | Upkeep":
    from deploy.demo.crew import Crew
    from deploy.demo.story import Story
    from deploy.demo.upkeep import Upkeep, UpkeepCrew

    return Upkeep(UpkeepCrew(stage, screen)) if restart else Story(Crew(stage, screen))


def _play(*, restart: bool) -> int:
    from deploy.demo.crew import DemoError, Interrupted, show_failure
    from deploy.demo.screen import GREEN, Screen
    from deploy.demo.stage import Event, Signalled, Stage

    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    for number in SIGNALS:
        # A signal is one more event: so it interrupts no step halfway.
        signal.signal(number, lambda number, frame: events.put(Signalled(number)))
    screen = Screen()
    stage = Stage(events)
    story = _story(stage, screen, restart=restart)
    code = 0
    try:
        story.play()
        story.show_result()
    except DemoError as failure:
        show_failure(screen, stage, failure)
        code = EXIT_FAILED
    except Interrupted as interrupted:
        screen.text(f"\n  interrupted ({interrupted})")
        code = 128 + interrupted.number
    finally:
        left = stage.clear()
    if left:
        screen.text(f"\n  could not be ended or removed: {', '.join(left)}")
        return code or EXIT_FAILED
    if code:
        screen.text("  No process and no file is left behind.")
    else:
        screen.text("\n  Done: no process and no file is left behind.", GREEN)
    return code


if __name__ == "__main__":
    sys.exit(main())
