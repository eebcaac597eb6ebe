"""A training script that uses what torch builds on a store: `collectives.py LOG PART …`. Ordinary
torch code.

Each part appends a JSON line with its name and whether its result is right.
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from tests.e2e.kit.worker import say


def all_reduce() -> bool:
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    world = dist.get_world_size()
    return value.item() == world * (world + 1) / 2


def new_group() -> bool:
    """Two groups of every other rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(list(range(first, world, 2))) for first in range(2)]
    value = torch.tensor([float(rank)])
    dist.all_reduce(value, group=groups[rank % 2])
    return value.item() == sum(range(rank % 2, world, 2))


def monitored_barrier() -> bool:
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    return True


def device_mesh() -> bool:
    world = dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    value = torch.tensor([1.0])
    dist.all_reduce(value, group=mesh.get_group("tp"))
    return value.item() == world // 2


def all_gather_object() -> bool:
    found: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(found, {"rank": dist.get_rank()})
    return found == [{"rank": rank} for rank in range(dist.get_world_size())]


def ddp() -> bool:
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    model(torch.ones(1, 4) * (dist.get_rank() + 1)).sum().backward()
    mean = sum(rank + 1 for rank in range(dist.get_world_size())) / dist.get_world_size()
    grad = model.module.weight.grad
    return grad is not None and torch.allclose(grad, torch.full((2, 4), mean))


def fsdp() -> bool:
    """Fully sharded: the sum of the shards' norms is that of the whole."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    whole = model.weight.detach().clone()
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    model(torch.ones(1, 4)).sum().backward()
    return torch.equal(model.weight.full_tensor(), whole)


PARTS: dict[str, Callable[[], bool]] = {
    part.__name__: part
    for part in (
        all_reduce,
        new_group,
        monitored_barrier,
        device_mesh,
        all_gather_object,
        ddp,
        fsdp,
    )
}


def main() -> None:
    log, *parts = sys.argv[1:]
    say(log, "start")
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for name in parts:
        say(log, name, good=PARTS[name]())
    dist.barrier()
    say(log, "exit")
    os._exit(0)  # see worker.py


if __name__ == "__main__":
    main()
