"""A training script that never stops: `steady.py LOG [pause=S]`. One all_reduce after the other in the
process group that it began with, and a line in LOG for each.
"""

import os
import sys
import time

from tests.e2e.kit.worker import say


def main() -> None:
    log, *words = sys.argv[1:]
    options = dict(word.partition("=")[::2] for word in words)
    say(log, "start")
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world, step = dist.get_rank(), dist.get_world_size(), 0
    while True:
        step += 1
        value = torch.tensor([float(step * (rank + 1))])
        try:
            dist.all_reduce(value)
        except RuntimeError as error:
            say(log, "broken", text=str(error)[:300])
            os._exit(1)
        say(log, "step", step=step, good=value.item() == step * world * (world + 1) / 2)
        end = time.monotonic() + float(options.get("pause", 0.1))
        while time.monotonic() < end:
            time.sleep(0.02)


if __name__ == "__main__":
    main()
