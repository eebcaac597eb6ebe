"""A node without torch, as a process of its own: `python -m tests.e2e.kit.rawnode`, driven by JSON lines.

Options come as one JSON object on the command line. It joins at once, prints a line for everything
that happens to it, rejoins when its generation ends (unless `rejoin` is false), and obeys commands on
stdin: `{"do": "leave", "kind": "finished"}`, `{"do": "join"}`, `{"do": "garbage"}`, `{"do": "exit"}`;
every operation on keys by its name, with `"scope": "run"` for the run's; `{"do": "barrier", …}`,
`{"do": "count_barrier", …}`. A command with a `tag` gets a thread of its own and ends with the line
`outcome` and that tag; all others are done in turn.
"""

import json
import logging
import os
import sys
import threading
import time
from typing import Any

from rdzv_client import Client, RdzvError, operations
from rdzv_client.blocking import Generation
from rdzv_client.calls import Calls
from rdzv_client.kv import Kv
from rdzv_proto.messages import Fence, Released
from tests.e2e.kit import leaks

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
        welcome = self._client.engine.session.welcome
        assert welcome is not None
        leaks.note(generation.worker_token, welcome.token)
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
        tag = command.pop("tag", None)
        if tag is not None:
            threading.Thread(target=self._answer, args=(command, tag), daemon=True).start()
        elif command["do"] == "join":
            threading.Thread(target=self.join, daemon=True).start()
        else:
            self._answer(command, None)

    def _answer(self, command: dict[str, Any], tag: str | None) -> None:
        """Do it, and say how it went: `outcome` with its tag, or `done` or `failed`."""
        action = command.pop("do")
        began = time.monotonic()
        try:
            fields = {"good": True, **self._act(action, command)}
        except RdzvError as error:
            fields = {"good": False, "error": type(error).__name__, "message": str(error)}
        event = "outcome" if tag is not None else "done" if fields["good"] else "failed"
        say(event, do=action, tag=tag, took=time.monotonic() - began, **fields)

    def _act(self, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        match action:
            case "leave":
                self._client.leave(**arguments)
            case "finished":
                self._client.finished()
            case "close_run":
                self._client.close_run(**arguments)
            case "barrier":
                meeting = self._generation.barrier(arguments.pop("name"), **arguments)
                return _told(meeting)
            case "count_barrier":
                return _told(self._client.barrier(arguments.pop("name"), **arguments))
            case "strange_barrier":
                return self._strange_barrier(**arguments)
            case "count_and_meet":
                self._count_and_meet(**arguments)
            case "garbage":
                connection = self._client.engine._connection
                assert connection is not None
                connection.send(b"\xff" * 64)
            case "exit":
                self._client.close()
                os._exit(0)
            case _:
                return self._on_keys(action, arguments)
        return {}

    def _on_keys(self, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        kv: Kv = self._client.kv if arguments.pop("scope", "") == "run" else self._generation.kv
        size = arguments.pop("bytes", None)
        if size is not None:
            arguments["value"] = b"x" * size
        if action == "get":
            arguments.setdefault("timeout", 0)
        keys = arguments.pop("keys", ()) if action == "delete" else ()
        value = getattr(kv, action)(*keys, **arguments)
        return {"value": value.decode() if isinstance(value, bytes) else value}

    def _strange_barrier(self, name: str, fence: str, timeout: float) -> dict[str, Any]:
        """Ask for a barrier of a generation that this node is not in."""
        epoch, _, number = fence.partition(".")
        ask = operations.barrier(
            Fence(int(epoch), int(number)), name, "nodes", members=None, count=0, payload=None,
            vote=None, round=None, timeout_s=timeout,
        )  # fmt: skip
        reply = Calls(self._client.engine).ask(ask, Released, timeout)
        return _told(operations.meeting(reply))

    def _count_and_meet(self, key: str, name: str, times: int, every: int) -> None:
        """Add 1 so many times, and meet the others now and then; tell what the sum is then."""
        generation = self._generation
        for done in range(1, times + 1):
            generation.kv.add(key)
            if done % every == 0:
                meeting = generation.barrier(name, timeout=60)
                say("met", round=meeting.round, added=done, sum=int(generation.kv.get(key)))

    @property
    def _generation(self) -> Generation:
        assert self._client.generation is not None
        return self._client.generation


def _told(meeting: operations.Meeting) -> dict[str, Any]:
    payloads = [None if p is None else p.decode() for p in meeting.payloads]
    return {"round": meeting.round, "payloads": payloads, "committed": meeting.committed}


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    node = RawNode(json.loads(sys.argv[1]))
    threading.Thread(target=node.join, daemon=True).start()
    for line in sys.stdin:
        command = json.loads(line)
        node.obey(command)


if __name__ == "__main__":
    main()
