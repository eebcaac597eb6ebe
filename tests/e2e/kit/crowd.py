"""Many short runs in one process: `python -m tests.e2e.kit.crowd`, told what to do by one JSON object.

Each run has two clients that form a world, set keys and meet at barriers; with `half` only one of the
two comes, and waits. Then a line `ready` is printed. With `close` the clients leave before that in
order; else the process waits to be killed.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Coroutine
from typing import Any

from rdzv_client import AsyncClient, AsyncGeneration

KEYS, VALUE, BARRIERS = 100, b"x" * 1024, 3


async def whole(server: str, run: str, end: bool) -> list[AsyncClient]:
    clients = [AsyncClient(server, run=run, min_nodes=2, name=f"n{i}") for i in range(2)]
    worlds = await asyncio.gather(*(client.join(timeout=60) for client in clients))
    first = worlds[0]
    await first.kv.multi_set([f"k{i}" for i in range(KEYS)], [VALUE] * KEYS)
    await clients[0].kv.set("of the run", VALUE)
    for number in range(BARRIERS):
        await asyncio.gather(*(g.barrier(f"b{number}", payload=b"p") for g in worlds))
    if end:
        for client in clients:
            await client.leave("finished")
            await client.close()
    return clients


async def half(server: str, run: str) -> tuple[AsyncClient, "asyncio.Task[AsyncGeneration]"]:
    client = AsyncClient(server, run=run, min_nodes=2, name="n0")
    joining = asyncio.create_task(client.join(timeout=600))
    await client.kv.multi_set([f"k{i}" for i in range(KEYS)], [VALUE] * KEYS)
    return client, joining


async def main(options: dict[str, Any]) -> None:
    kind, server = options["kind"], options["server"]
    names = [f"{kind}-{number}" for number in options["numbers"]]
    work: list[Coroutine[Any, Any, object]] = [
        half(server, n) if kind == "half" else whole(server, n, kind == "close") for n in names
    ]
    held = await asyncio.gather(*work)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if kind != "close":
        threading.Event().wait()  # until it is killed; the clients are held until then
    del held


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
