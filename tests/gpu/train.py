"""A training script as torchrun starts it: `train.py OUT BACKEND STEPS`.

Writes a JSON line for the start of each life and for its progress to OUT. Every all-reduce is checked. A step
waits for nothing but its all-reduce; STEPS is chosen so that a test can kill a rank in the middle.
"""

import datetime
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

PACE_S = 0.02


def main() -> None:
    out, backend, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

    def say(event: str, **more: object) -> None:
        row = {
            "event": event,
            "pid": os.getpid(),
            "fence": os.environ.get("RDZV_FENCE", ""),
            **more,
        }
        with open(out, "a") as file:
            file.write(json.dumps(row) + "\n")

    device = torch.device("cuda:0" if backend == "nccl" else "cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    say("start")
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(steps):
        tensor = torch.full((1 << 18,), float(rank + 1 + step), device=device)
        dist.all_reduce(tensor)
        expected = sum(r + 1 + step for r in range(world))
        if not bool((tensor == expected).all()):
            say("wrong", step=step, value=float(tensor[0]), expected=expected)
            sys.exit(3)
        if step == 0:
            say("reduced", rank=rank, world=world)
        time.sleep(PACE_S)  # a step's own work, so that there is a middle to be killed in
    group = dist.new_group(list(range(world)))
    one = torch.ones(1, device=device)
    dist.all_reduce(one, group=group)
    assert float(one) == world
    dist.barrier()
    say("done", rank=rank, world=world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
