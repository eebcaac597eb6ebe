"""Trains a small network to read handwritten digits: plain torch DDP, started by torchrun.

    torchrun --nnodes=1:2 --nproc-per-node=1 --max-restarts=3 \
        --rdzv-backend=rdzv --rdzv-endpoint=HOST:29500 --rdzv-id=digits \
        train.py --checkpoint /shared/digits.pt

Nothing in here knows who does the rendezvous. torchrun starts this script anew for every world; ranks
and world size may differ from the last one's, so it asks for them, loads the newest checkpoint and
goes on from there.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

TRAIN = 1536
"""Images to learn from; the other 261 are for the test."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="a file that all nodes can read and write"
    )
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps")
    parser.add_argument("--log-every", type=int, default=15, help="steps")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=768, help="images in a step, of all ranks")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument(
        "--pace",
        type=float,
        default=0.0,
        help="a step takes at least this many seconds; only demonstrations need it, on machines "
        "where training would be over before anybody can interrupt it",
    )
    return parser.parse_args()


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images of 8 x 8 grey values and the digits they show, shuffled in the same way everywhere."""
    values, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(values / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    return images[order], torch.tensor(shown)[order]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 10),
    )  # fmt: skip


def share(step: int, batch: int) -> torch.Tensor:
    """Indices of this rank's part of the batch of a step.

    The batch depends on the step alone: in a world of any size, and after any number of
    interruptions, the job sees the same images in the same order.
    """
    epoch, part = divmod(step, TRAIN // batch)
    order = torch.randperm(TRAIN, generator=torch.Generator().manual_seed(epoch))
    return order[part * batch : (part + 1) * batch][dist.get_rank() :: dist.get_world_size()]


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint in one move: whoever dies in the middle leaves the old one whole."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    with open(new, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def load(path: Path) -> dict[str, Any] | None:
    """The newest checkpoint. Rank 0 reads it and all get it, so that all start at the same step."""
    found = [torch.load(path) if dist.get_rank() == 0 and path.exists() else None]
    dist.broadcast_object_list(found)
    return found[0]


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    images, labels = digits()
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    first = 0
    checkpoint = load(args.checkpoint)
    if checkpoint is not None:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        first = checkpoint["steps"]
    origin = "from the beginning" if checkpoint is None else f"from the checkpoint of step {first}"
    print(f"rank {rank} of {world} starts {origin}", flush=True)

    ddp = DistributedDataParallel(model)
    for step in range(first, args.steps):
        began = time.monotonic()
        mine = share(step, args.batch)
        loss = cross_entropy(ddp(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done = step + 1
        if step == first or done % args.log_every == 0:
            mean = loss.detach() / world
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {done} of {args.steps}: loss {mean:.4f}", flush=True)
        if rank == 0 and (done % args.checkpoint_every == 0 or done == args.steps):
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(args.checkpoint, {"steps": done, **states})
        time.sleep(max(0.0, began + args.pace - time.monotonic()))

    if rank == 0:
        with torch.no_grad():
            right = model(images[TRAIN:]).argmax(1) == labels[TRAIN:]
        print(f"finished: {right.float().mean():.1%} of unseen digits read right", flush=True)


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
