"""A raw node that takes part in NCCL communicators, as a process: `python -m tests.e2e.kit.ncclrank`.

It obeys one command more than `rawnode`: `{"do": "comm", "group": "dp", "nranks": 4, …}`. That gets the
ids through the server, prints their fingerprint (never an id), closes a ring of fake ranks with them, and says
ready. Options: `rank` (else the group rank), `n_ids`, `minter`, `attempt`, `timeout`, `init_timeout`;
`mint` (`{"seed": 1, "size": 128}`: made-up bytes instead of NCCL's) and `mint_when` (a file that the
minting waits for); `ring` and `ready` (both true if not given).
"""

import hashlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rdzv_client import RdzvError, nccl_library
from rdzv_client.nccl import NcclComm
from rdzv_proto.messages import Done, NcclPut
from tests.e2e.kit.fakerank import FakeRank, RingError
from tests.e2e.kit.rawnode import RawNode, say

MINT_PATIENCE_S = 120.0


def made_up(seed: int, size: int) -> bytes:
    """Bytes that look like nothing, with NULs among them."""
    raw = b"".join(hashlib.sha256(b"%d %d" % (seed, i)).digest() for i in range(1 + size // 32))
    return (raw[:5] + b"\0\0" + raw[7:])[:size]


def fingerprint(ids: list[bytes]) -> str:
    return hashlib.sha256(b"".join(ids)).hexdigest()


class NcclRank(RawNode):
    def obey(self, command: dict[str, Any]) -> None:
        if command["do"] == "comm":
            del command["do"]
            threading.Thread(target=self._comm, args=(command,), daemon=True).start()
        elif command["do"] == "put":
            self._put(**{k: v for k, v in command.items() if k != "do"})
        else:
            super().obey(command)

    def _put(self, group: str, rank: int, seed: int, size: int) -> None:
        """Put bytes without having been asked to, as a program with a fault would."""
        g = self._generation
        ask = NcclPut(
            fence=g.fence, group=group, attempt=0, rank=rank, index=0, id=made_up(seed, size)
        )
        try:
            g._calls.ask(ask, Done, 10)
        except RdzvError as error:
            say("failed", do="put", error=type(error).__name__, message=str(error))
        else:
            say("done", do="put")

    def _comm(self, command: dict[str, Any]) -> None:
        g = self._generation
        began = time.monotonic()
        ring, ready = command.pop("ring", True), command.pop("ready", True)
        command.setdefault("rank", g.rank)
        mint, when = command.pop("mint", None), command.pop("mint_when", None)
        if mint is not None or when is not None:
            command["mint"] = self._mint(mint, when)
        try:
            h = g.nccl_comm(**command)
            h.on_revoked(lambda why: say("revoked", why=why))
            if not ready:
                h.__enter__()
                self._got(h, began)
                return
            with h:
                self._got(h, began)
                if ring:
                    ids = h.unique_ids
                    met = FakeRank(
                        command["rank"], command["nranks"], ids.raw, ids.nccl_version
                    ).join()
                    say("ring", met=met)
        except (RdzvError, RingError) as error:
            took_s = time.monotonic() - began
            say("failed", do="comm", error=type(error).__name__, message=str(error), took_s=took_s)
        else:
            say("ready", attempt=h.unique_ids.attempt)

    def _got(self, h: NcclComm, began: float) -> None:
        ids = h.unique_ids
        say(
            "ids",
            fingerprint=fingerprint(ids.raw),
            count=len(ids.raw),
            attempt=ids.attempt,
            number=ids.generation,
            took_s=time.monotonic() - began,
        )

    def _mint(self, mint: dict[str, int] | None, when: str | None) -> Callable[[], bytes]:
        source = nccl_library.find().mint if mint is None else lambda: made_up(**mint)

        def call() -> bytes:
            say("minting")
            ends_at = time.monotonic() + MINT_PATIENCE_S
            while when is not None and not os.path.exists(when):
                if time.monotonic() > ends_at:
                    raise TimeoutError(f"{when} never came")
                time.sleep(0.01)
            raw = source()
            say("minted")
            return raw

        return call


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    node = NcclRank(json.loads(sys.argv[1]))
    threading.Thread(target=node.join, daemon=True).start()
    for line in sys.stdin:
        node.obey({k: v for k, v in json.loads(line).items() if k != "wait"})


if __name__ == "__main__":
    main()
