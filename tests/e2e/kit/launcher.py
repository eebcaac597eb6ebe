"""Imports torch once and forks torchrun agents: `python -m tests.e2e.kit.launcher`, JSON lines.

`{"start": N, "argv": […], "env": {…}, "log": PATH}` forks agent N, which runs `torch.distributed.run`
as the script `torchrun` would. `{"exited": N, "code": C}` is said when it ends (negative: signal).
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time


def _agent(order: dict[str, object]) -> None:
    """In the child: become torchrun."""
    argv, env = order["argv"], order["env"]
    assert isinstance(argv, list)
    assert isinstance(env, dict)
    log = os.open(str(order["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update({str(k): str(v) for k, v in env.items()})
    tempfile.tempdir = None  # TMPDIR may be another one now
    sys.argv = ["torchrun", *map(str, argv)]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from torch.distributed.run import main

    if order.get("stop_after_rendezvous"):
        _stop_after_rendezvous()
    main()


def _stop_after_rendezvous() -> None:
    """Hold the window open between `next_rendezvous()` and the rank exchange: SIGSTOP to itself."""
    from rdzv_client.torch.handler import RdzvHandler

    real = RdzvHandler.next_rendezvous

    def then_stop(handler: RdzvHandler) -> object:
        info = real(handler)
        os.kill(os.getpid(), signal.SIGSTOP)
        return info

    RdzvHandler.next_rendezvous = then_stop  # type: ignore[method-assign,assignment]


def _reap(children: dict[int, object], lock: threading.Lock) -> None:
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            time.sleep(0.01)  # none yet
            continue
        with lock:
            number = children.pop(pid)
        sys.stdout.write(
            json.dumps({"exited": number, "code": os.waitstatus_to_exitcode(status)}) + "\n"
        )
        sys.stdout.flush()


def main() -> None:
    import torch.distributed.elastic.rendezvous
    import torch.distributed.run  # noqa: F401

    children: dict[int, object] = {}
    lock = threading.Lock()
    threading.Thread(target=_reap, args=(children, lock), daemon=True).start()
    sys.stdout.write(json.dumps({"ready": os.getpid()}) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        order = json.loads(line)
        with lock:
            pid = os.fork()
            if pid:
                children[pid] = order["start"]
        if not pid:
            code = 1
            try:
                _agent(order)
                code = 0
            except SystemExit as done:
                code = done.code if isinstance(done.code, int) else int(done.code is not None)
            except BaseException:  # noqa: BLE001  (as the interpreter itself would at its end)
                import traceback

                traceback.print_exc()
            finally:
                import atexit

                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        sys.stdout.write(json.dumps({"started": order["start"], "pid": pid}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
