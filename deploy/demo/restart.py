"""`make demo-restart`: a torchrun job trains on while its server is killed, comes back and is replaced.

Exit codes: as those of run.py. All processes and files go in every case.
"""

import importlib.util
import io
import os
import queue
import signal
import sys
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from deploy.demo.run import EXIT_FAILED, EXIT_MISSING, EXIT_PIPE, NEEDED, SIGNALS


def main() -> int:
    """Look whether it can be played here, and play it."""
    for number in SIGNALS:
        signal.signal(number, _leave_at_once)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 is no reason to fail
    missing = {shown for name, shown in NEEDED.items() if importlib.util.find_spec(name) is None}
    if missing:
        print(
            f"the demo needs {', '.join(sorted(missing))}: run `make demo-restart`", file=sys.stderr
        )
        return EXIT_MISSING
    if not os.path.exists("/proc/self/environ"):
        print("the demo needs /proc (Linux), to find the agents' workers", file=sys.stderr)
        return EXIT_MISSING
    try:
        return _play()
    except BrokenPipeError:  # whoever read this has gone; there is nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE


def _leave_at_once(number: int, frame: FrameType | None) -> None:
    """Nothing has been started yet."""
    os._exit(128 + number)


def _play() -> int:
    from deploy.demo.crew import DemoError, Interrupted, show_failure
    from deploy.demo.screen import GREEN, Screen
    from deploy.demo.stage import Event, Signalled, Stage
    from deploy.demo.upkeep import Upkeep, UpkeepCrew

    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    for number in SIGNALS:
        # A signal is one more event: so it interrupts no step halfway.
        signal.signal(number, lambda number, frame: events.put(Signalled(number)))
    screen = Screen()
    stage = Stage(events)
    story = Upkeep(UpkeepCrew(stage, screen))
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
