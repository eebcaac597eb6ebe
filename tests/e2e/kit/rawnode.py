"""A node without torch, as a process of its own: `python -m tests.e2e.kit.rawnode`, driven by JSON lines.

Options come as one JSON object on the command line. It joins at once, prints a line for everything
that happens to it, rejoins when its generation ends (unless `rejoin` is false), and obeys commands on
stdin: `{"do": "leave", "kind": "finished"}`, `{"do": "join"}`, `{"do": "set", …}`, `{"do": "get", …}`,
`{"do": "garbage"}`, `{"do": "exit"}`.
"""

import json
import logging
import os
import sys
import threading
import time
from typing import Any

from rdzv_client import Client, RdzvError
from rdzv_client.blocking import Generation

_lock = threading.Lock()


def say(event: str, **fields: Any) -> None:
    with _lock:
        sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **fields}) + "\n")
        sys.stdout.flush()


class RawNode:
    def __init__(self, options: dict[str, Any]) -> None:
        self._rejoin = options.pop("rejoin", True)
        self._client = Client(options.pop("server"), **options)
        self._joining = threading.Lock()
        say("started", pid=os.getpid(), node_id=self._client.options.node_id)

    def join(self, instead_of: Generation | None = None) -> None:
        """Once at a time, and once per generation that it is to replace: a command and the end of
        the generation may both ask for it."""
        if not self._joining.acquire(blocking=False):
            return
        try:
            if instead_of is not None and self._client.generation is not instead_of:
                return
            generation = self._client.join()
        except RdzvError as error:
            say("refused", error=type(error).__name__, message=str(error))
            return
        finally:
            self._joining.release()
        say(
            "joined",
            number=generation.number,
            fence=str(generation.fence),
            rank=generation.rank,
            world=generation.world_size,
            digest=generation.digest.hex(),
            master=[generation.master.host, generation.master.port],
        )
        threading.Thread(target=self._watch, args=(generation,), daemon=True).start()

    def _watch(self, generation: Generation) -> None:
        """Report the waiting count as an agent would poll it, and act as an agent would."""
        told = 0
        while not generation.ended.wait(0.02):
            if generation.waiting != told:
                told = generation.waiting
                say("waiting", count=told, number=generation.number)
                if told and self._rejoin:
                    self.join(generation)
                    return
        say("ended", number=generation.number, kind=generation.ended.kind,
            reason=generation.ended.reason)  # fmt: skip
        if self._rejoin and generation.ended.kind != "finished":
            self.join(generation)

    def obey(self, command: dict[str, Any]) -> None:
        action = command.pop("do")
        try:
            match action:
                case "join":
                    threading.Thread(target=self.join, daemon=True).start()
                    return
                case "leave":
                    self._client.leave(**command)
                case "finished":
                    self._client.finished()
                case "close_run":
                    self._client.close_run(**command)
                case "set":
                    self._generation.kv.set(command["key"], command["value"])
                case "add":
                    say("done", do=action, value=self._generation.kv.add(command["key"]))
                    return
                case "get":
                    value = self._generation.kv.get(command["key"], command.get("timeout", 0))
                    say("done", do=action, value=value.decode())
                    return
                case "garbage":
                    sock = self._client.engine._sock
                    assert sock is not None
                    sock.send(b"\xff" * 64)
                case "exit":
                    self._client.close()
                    os._exit(0)
                case _:
                    raise ValueError(action)
        except RdzvError as error:
            say("failed", do=action, error=type(error).__name__, message=str(error))
        else:
            say("done", do=action)

    @property
    def _generation(self) -> Generation:
        assert self._client.generation is not None
        return self._client.generation


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    node = RawNode(json.loads(sys.argv[1]))
    threading.Thread(target=node.join, daemon=True).start()
    for line in sys.stdin:
        command = json.loads(line)
        if command.get("wait", True):
            node.obey({k: v for k, v in command.items() if k != "wait"})


if __name__ == "__main__":
    main()
