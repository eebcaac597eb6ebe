"""A training script whose first start fails: `restart.py LOG FOLDER`. The restart is the point.

On the second start rank 1 is slow to reach its process group, so that rank 0 finds what the first start
left of rank 1 in the store, if anything did. What gloo then makes of a stale address is a matter of luck.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

from tests.e2e.kit.worker import say

SLOW_S = 4.0

RANK_1 = "default_pg/0//cpu//0/1"
"""Where gloo puts the address of rank 1 (TCPStore key, without the slash that clients put before it)."""


def main() -> None:
    log, folder = sys.argv[1], Path(sys.argv[2])
    import torch
    import torch.distributed as dist

    rank = os.environ["RANK"]
    say(log, "start")
    again = (folder / f"first-{rank}").exists()
    (folder / f"first-{rank}").touch()
    if again and rank == "0":
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(*where, is_master=False, timeout=timedelta(seconds=20))
        say(log, "looked", stale=store.check([RANK_1]))
        del store
    if again and rank == "1":
        end = time.monotonic() + SLOW_S
        while time.monotonic() < end:
            time.sleep(0.05)
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    except Exception as error:  # noqa: BLE001  (whatever torch makes of it: the test reads it)
        say(log, "init_failed", text=f"{type(error).__name__}: {error}"[:500], again=again)
        os._exit(1)
    value = torch.ones(1)
    dist.all_reduce(value)
    say(log, "all_reduce", good=value.item() == dist.get_world_size(), again=again)
    os._exit(0 if again else 1)


if __name__ == "__main__":
    main()
