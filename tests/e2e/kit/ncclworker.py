"""A training process under torchrun that makes a communicator of its own: `ncclworker.py OUT`."""

import json
import sys

from rdzv_client import Client
from tests.e2e.kit.fakerank import FakeRank
from tests.e2e.kit.ncclrank import fingerprint


def main() -> None:
    with Client.from_env() as worker:
        g = worker.generation
        with g.nccl_comm("dp", rank=g.rank, nranks=g.world_size) as h:
            ids = h.unique_ids
            met = FakeRank(g.rank, g.world_size, ids.raw, ids.nccl_version).join()
        row = {"event": "ring", "rank": g.rank, "met": met, "fingerprint": fingerprint(ids.raw)}
        with open(sys.argv[1], "a") as out:
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
