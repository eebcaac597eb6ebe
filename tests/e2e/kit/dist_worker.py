"""One process of a job without torchrun: `dist_worker.py LOG URL [word …]`.

Each word is done in turn inside one process group over gloo, and said as a JSON line in LOG:
`collectives`, `groups`, `mesh`, `ddp`, `fsdp`, `rpc`, `again` (a second process group in this process),
`ended` (waits for the end of the generation), `sleep=S`, `raise`, `exit=N`, `rank=R`, `world=W`.
Instead of a URL, `env` takes a `RdzvStore` of the agent's generation, and `HOST:PORT/RUN/NODES` one of a
generation that this process joins by itself.
"""

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any


class Job:
    """What one process does."""

    def __init__(self, log: str, url: str, options: dict[str, str]) -> None:
        self.log, self.url, self.options = log, url, options

    def say(self, event: str, **more: Any) -> None:
        row = {"event": event, "at": time.monotonic(), "pid": os.getpid(), **more}
        with open(self.log, "a") as file:
            file.write(json.dumps(row) + "\n")

    def init(self) -> None:
        import torch.distributed as dist

        timeout = timedelta(seconds=float(self.options.get("timeout", 60)))
        if "://" in self.url:
            from rdzv_client.torch import init_method

            more = {
                name: int(self.options[word])
                for word, name in (("rank", "rank"), ("world", "world_size"))
                if word in self.options
            }
            dist.init_process_group("gloo", init_method=self.url, timeout=timeout, **more)
            generation = init_method.current_generation()
            assert generation is not None
            self.number = generation.number
        else:
            self.store, rank, world, self.number = self.a_store()
            dist.init_process_group(
                "gloo", store=self.store, rank=rank, world_size=world, timeout=timeout
            )
        self.say(
            "init", rank=dist.get_rank(), world=dist.get_world_size(),
            generation=self.number,
        )  # fmt: skip

    def a_store(self) -> tuple[Any, int, int, int]:
        """Store, rank, world size, and number of the generation."""
        from rdzv_client import Client
        from rdzv_client.torch import RdzvStore

        if self.url == "env":
            number = int(os.environ["RDZV_FENCE"].partition(".")[2])
            return (
                RdzvStore.from_env(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), number,
            )  # fmt: skip
        server, run, nodes = self.url.split("/")
        self.client = Client(server, run=run, min_nodes=int(nodes))
        generation = self.client.join(timeout=60)
        store = RdzvStore(generation.kv)
        return store, generation.rank, generation.world_size, generation.number

    def do(self, word: str) -> None:
        if word in ("rank", "world", "timeout"):
            return
        getattr(self, f"do_{word}")()

    def do_collectives(self) -> None:
        import torch
        import torch.distributed as dist

        rank, world = dist.get_rank(), dist.get_world_size()
        value = torch.tensor([float(rank + 1)])
        dist.all_reduce(value)
        assert value.item() == world * (world + 1) / 2, value
        dist.barrier()
        dist.monitored_barrier()
        gathered: list[Any] = [None] * world
        dist.all_gather_object(gathered, {"rank": rank})
        assert gathered == [{"rank": r} for r in range(world)], gathered
        self.say("collectives", sum=value.item(), generation=self.number)

    def do_groups(self) -> None:
        import torch
        import torch.distributed as dist

        rank, world = dist.get_rank(), dist.get_world_size()
        for count in range(1, world + 1):
            group = dist.new_group(list(range(count)))
            if rank < count:
                value = torch.ones(1)
                dist.all_reduce(value, group=group)
                assert value.item() == count
        self.say("groups")

    def do_mesh(self) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        world = dist.get_world_size()
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        value = torch.ones(1)
        dist.all_reduce(value, group=mesh["tp"].get_group())
        assert value.item() == 2
        self.say("mesh")

    def do_ddp(self) -> None:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(1)
        model = DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((2, 4), float(dist.get_rank() + step))).sum().backward()
            optimizer.step()
        weight = torch.cat([p.detach().flatten() for p in model.parameters()])
        copies = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, weight)
        assert all(torch.equal(weight, copy) for copy in copies)
        self.say("ddp", weight=weight.sum().item())

    def do_fsdp(self) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(1)
        model = torch.nn.Linear(8, 8)
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((2, 8), float(dist.get_rank() + step))).sum().backward()
            optimizer.step()
        weight: Any = model.weight
        self.say("fsdp", weight=weight.full_tensor().sum().item())

    def do_rpc(self) -> None:
        import torch.distributed as dist
        from torch.distributed import rpc

        rank, world = dist.get_rank(), dist.get_world_size()
        options = rpc.TensorPipeRpcBackendOptions(init_method=self.url)
        rpc.init_rpc(f"w{rank}", rank=rank, world_size=world, rpc_backend_options=options)
        answer = rpc.rpc_sync(f"w{(rank + 1) % world}", max, args=(rank, 100))
        rpc.shutdown()
        self.say("rpc", answer=answer)

    def do_rpc_over_store(self) -> None:
        """init_rpc itself takes only an init_method; what it calls takes any store."""
        import torch.distributed as dist
        import torch.distributed.autograd
        from torch.distributed import rpc

        rank, world = dist.get_rank(), dist.get_world_size()
        torch.distributed.autograd._init(rank)
        rpc._init_rpc_backend(
            backend=rpc.BackendType.TENSORPIPE, store=dist.PrefixStore("rpc", self.store),
            name=f"w{rank}", rank=rank, world_size=world,
            rpc_backend_options=rpc.TensorPipeRpcBackendOptions(),
        )  # fmt: skip
        answer = rpc.rpc_sync(f"w{(rank + 1) % world}", max, args=(rank, 100))
        rpc.shutdown()
        self.say("rpc", answer=answer)

    def do_leave(self) -> None:
        self.client.leave("finished")
        self.client.close()

    def do_again(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()
        self.init()
        self.do_collectives()

    def do_ended(self) -> None:
        from rdzv_client.torch import init_method

        generation = init_method.current_generation()
        assert generation is not None
        assert generation.ended.wait(60)
        self.say("ended", kind=generation.ended.kind, reason=generation.ended.reason)

    def do_sleep(self) -> None:
        time.sleep(float(self.options["sleep"]))

    def do_raise(self) -> None:
        raise RuntimeError("the loss is NaN")

    def do_fail_once(self) -> None:
        """The first process of all that comes here fails, and the others wait to be stopped."""
        if self.number == 1:
            try:
                os.close(os.open(self.options["fail_once"], os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                time.sleep(60)
            os._exit(1)

    def do_exit(self) -> None:
        sys.exit(int(self.options["exit"]))

    def do_destroy(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


def main() -> None:
    log, url, *words = sys.argv[1:]
    options = dict(word.partition("=")[::2] for word in words)
    job = Job(log, url, options)
    job.say("start")
    job.init()
    for word in options:
        job.do(word)
    job.say("done")


if __name__ == "__main__":
    main()
