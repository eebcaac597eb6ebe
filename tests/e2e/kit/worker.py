"""The training script of the end-to-end tests: says who it is, then does what its arguments say.

    worker.py LOG [gloo] [sleep=S] [exit=CODE] [fail-once=PATH] [save=S]

Each start appends one JSON line to LOG: time, pid, ranks, world, master, generation. `gloo` forms a
process group and checks an all_reduce. `save=S` takes S seconds after SIGTERM, as a checkpoint would.
`fail-once=PATH` exits with CODE only if PATH does not exist yet.
"""

import json
import os
import signal
import sys
import time

_KEYS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT", "RDZV_FENCE", "RDZV_WORKER_NODE",
)  # fmt: skip


def say(log: str, event: str, **more: object) -> None:
    row = {"event": event, "at": time.monotonic(), "pid": os.getpid(), **more}
    row |= {key: os.environ.get(key) for key in _KEYS}
    with open(log, "a") as file:
        file.write(json.dumps(row) + "\n")


def all_reduce(log: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    world = dist.get_world_size()
    good = value.item() == world * (world + 1) / 2
    say(log, "all_reduce", good=good, sum=value.item(), world=world)


def main() -> None:
    log, *words = sys.argv[1:]
    options = dict(word.partition("=")[::2] for word in words)
    say(log, "start", parent=os.getppid())
    if "save" in options:

        def save(number: int, frame: object) -> None:
            say(log, "saving")
            end = time.monotonic() + float(options["save"])
            while time.monotonic() < end:
                time.sleep(0.05)
            say(log, "saved")
            sys.exit(143)

        signal.signal(signal.SIGTERM, save)
    if "gloo" in options:
        all_reduce(log)
    end = time.monotonic() + float(options.get("sleep", 0))
    while time.monotonic() < end:
        time.sleep(0.02)
    code = int(options.get("exit", 0))
    once = options.get("fail-once")
    if once:
        if os.path.exists(once):
            code = 0
        else:
            with open(once, "w"):
                pass
    say(log, "exit", code=code)
    if "gloo" in options:
        # Not the point here, and not firm: gloo's threads may abort an interpreter that ends under
        # them (torch 2.13), and destroy_process_group() may hang when the peer was faster (2.6).
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
