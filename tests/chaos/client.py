"""The life of one client process: join, meet the others again and again, use keys and ids, join again.

Everything is recorded. It ends only when it is killed, when a newer process took its name, or when its
client gave up.
"""

import dataclasses
import hashlib
import os
import random
import threading
import time
from pathlib import Path
from typing import Any, TypeVar

from rdzv_client import Client, RdzvError, operations
from rdzv_client.blocking import Generation
from rdzv_client.errors import Final, GenerationEnded, RequestTimeout, Unreachable
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyReply,
    AnyRequest,
    Done,
    Fence,
    KvNumber,
    KvSwapped,
    KvValue,
    Message,
    Released,
)
from tests.chaos.board import Board, Place
from tests.chaos.recorder import Recorder

R = TypeVar("R", bound=Message)

PATIENCE_S = 20.0
"""For any answer. Longer than any fault, so that few outcomes are unknown."""

VALUES = tuple(f"v{n}" for n in range(14))
COUNTERS = tuple(f"n{n}" for n in range(6))
APPEND_BYTES_MAX = 200
"""A longer value is replaced: histories hold every value that was seen."""

IDS_EVERY = 8
"""Rounds of the barrier between two ids; all members count the same rounds."""


@dataclasses.dataclass(frozen=True)
class Orders:
    """What a client is told at its start; travels as JSON."""

    name: str
    slot: int
    endpoint: str
    run: str
    node_id: str
    min_nodes: int
    max_nodes: int
    lease_s: float
    last_call_s: float
    pause_s: float
    seed: int
    folder: str
    board: str


class Life:
    """One client process."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._rng = random.Random(orders.seed)
        self._board = Board(Path(orders.board))
        path = Path(orders.folder) / f"{orders.name}.ops"
        self._recorder = Recorder(path, orders.name, orders.run)
        self._tokens = 0
        self._seen: dict[tuple[Fence | None, str], str | None] = {}
        """What a key held when this client last saw it whole."""
        self._told_epoch = 0
        self._client = Client(
            orders.endpoint, run=orders.run, node_id=orders.node_id, min_nodes=orders.min_nodes,
            max_nodes=orders.max_nodes, lease_s=orders.lease_s, below_min="wait",
            last_call_timeout_s=orders.last_call_s, join_timeout_s=600.0,
        )  # fmt: skip

    def live(self) -> int:
        """Until it is over; returns an exit code."""
        while True:
            try:
                generation = self._join()
                self._work(generation)
            except Final as error:
                print(f"over: {error}", flush=True)
                return 0
            except Unreachable as error:
                print(f"gave up: {error}", flush=True)
                return 1
            except RdzvError as error:
                print(f"again: {type(error).__name__}: {error}", flush=True)

    # --- what it does -------------------------------------------------------------------------

    def _join(self) -> Generation:
        self._seen.clear()
        number = self._recorder.begin("join", None, {})
        try:
            g = self._client.join()
        except RdzvError as error:
            self._failed(number, error)
            raise
        place = {
            "epoch": g.fence.epoch, "generation": g.number, "rank": g.rank, "world": g.world_size,
        }  # fmt: skip
        self._recorder.end(number, True, {"digest": g.digest.hex()}, **place)
        return g

    def _work(self, g: Generation) -> None:
        """Until it ends, or somebody waits to come in: then this node joins again, as an agent would."""
        while not g.ended.is_set() and not g.waiting:
            began = time.monotonic()
            try:
                met = self._meet(g)
                if met is not None and met % IDS_EVERY == 0:
                    self._use_id(g)
                for _ in range(self._rng.randint(1, 3)):
                    self._use_key(g)
            except GenerationEnded:
                return
            except RequestTimeout as error:
                print(f"late: {error}", flush=True)
            left_s = began + self._orders.pause_s * self._rng.uniform(0.5, 1.5) - time.monotonic()
            g.ended.wait(max(0.0, left_s))

    def _meet(self, g: Generation) -> int | None:
        """A round of the barrier; its number, or None if it failed."""
        payload = self._token()
        number = self._recorder.begin("barrier", "b", {"payload": payload}, **_place(g))
        came_s = time.monotonic()
        ask = operations.barrier(
            g.fence, "b", "nodes", members=None, payload=payload, vote=None, count=0, round=None,
            timeout_s=PATIENCE_S / 2,
        )  # fmt: skip
        try:
            released, _ = self._ask(ask, Released)
        except RdzvError as error:
            self._failed(number, error)
            if isinstance(error, GenerationEnded | RequestTimeout | Final | Unreachable):
                raise
            return None
        payloads = [None if p is None else p.decode() for p in released.payloads]
        self._recorder.end(number, True, {"payloads": payloads}, round=released.round)
        place = Place(g.fence.epoch, g.number, g.rank, g.world_size, came_s, time.monotonic())
        self._board.post(self._orders.slot, place)
        return released.round

    def _use_id(self, g: Generation) -> None:
        """Get the unique id of a communicator of all, and say that it stands."""
        number = self._recorder.begin("id", "dp", {}, **_place(g))

        def mint() -> bytes:
            raw = os.urandom(128)
            self._recorder.note(number, {"minted": _fingerprint(raw)})
            return raw

        try:
            ids = g.nccl_unique_id(
                "dp", rank=g.rank, nranks=g.world_size, mint=mint, timeout=PATIENCE_S / 2,
                init_timeout=PATIENCE_S / 2,
            )  # fmt: skip
            result = {"id": _fingerprint(ids.raw[0]), "attempt": ids.attempt}
            self._recorder.end(number, True, result)
            ids.ready()
        except RdzvError as error:
            self._failed(number, error)
            if isinstance(error, GenerationEnded | RequestTimeout | Final | Unreachable):
                raise

    def _use_key(self, g: Generation) -> None:
        """One operation on a key of the generation or of the run."""
        rng = self._rng
        fence = g.fence if rng.random() < 0.5 else None
        if rng.random() < 0.3:
            key, op = rng.choice(COUNTERS), rng.choice(("add", "add", "get"))
        else:
            key = rng.choice(VALUES)
            op = rng.choice(("put", "get", "get", "append", "append", "cas", "delete"))
        if op == "append" and len(self._seen.get((fence, key)) or "") > APPEND_BYTES_MAX:
            op = "put"
        args, ask, kind = self._request(op, fence, key)
        place = {"epoch": self._epoch} if fence is None else _place(g)
        connected = self._client.engine.session.connected_now
        number = self._recorder.begin(op, key, args, connected=connected, **place)
        try:
            reply, epoch = self._ask(ask, kind)
        except RdzvError as error:
            if error.code is ErrorCode.WAIT_TIMEOUT:
                told = {"epoch": self._told_epoch} if fence is None else {}
                self._recorder.end(number, True, {"value": None}, **told)
                self._seen[fence, key] = None
                return
            self._failed(number, error)
            if isinstance(error, GenerationEnded | RequestTimeout | Final | Unreachable):
                raise
            return
        result = _result(op, reply)
        if op in ("get", "cas"):
            self._seen[fence, key] = result["value"]
        self._recorder.end(number, True, result, **({"epoch": epoch} if fence is None else {}))

    def _request(
        self, op: str, fence: Fence | None, key: str
    ) -> tuple[dict[str, Any], AnyRequest, type[Any]]:
        token = self._token()
        match op:
            case "put":
                return {"value": token}, operations.kv_set(fence, key, token), Done
            case "get":
                return {}, operations.kv_get(fence, key, 0.0), KvValue
            case "add":
                delta = self._rng.randint(1, 3)
                return {"delta": delta}, operations.kv_add(fence, key, delta), KvNumber
            case "append":
                return {"value": token}, operations.kv_append(fence, key, token), KvNumber
            case "delete":
                return {}, operations.kv_delete(fence, [key]), KvNumber
            case _:
                expected = self._seen.get((fence, key))
                ask = operations.kv_cas(fence, key, expected, token, None)
                return {"expected": expected, "value": token}, ask, KvSwapped

    # --- how it asks --------------------------------------------------------------------------

    def _ask(self, message: AnyRequest, kind: type[R]) -> tuple[R, int]:
        """An answer, and the epoch of the server that gave it.

        Raises:
            RdzvError: it refused, or did not answer.
        """
        engine, gate = self._client.engine, threading.Semaphore(0)
        told: list[tuple[AnyReply, int]] = []

        def take(reply: AnyReply) -> None:
            told.append((reply, self._epoch))
            gate.release()

        request_id = engine.submit(message, take)
        if not gate.acquire(timeout=PATIENCE_S):
            engine.forget(request_id)
            raise RequestTimeout(f"{message.op}: no answer for {PATIENCE_S:g} s")
        reply, self._told_epoch = told[0]
        return operations.expect(reply, kind), self._told_epoch

    @property
    def _epoch(self) -> int:
        welcome = self._client.engine.session.welcome
        return 0 if welcome is None else welcome.epoch

    def _failed(self, number: int, error: RdzvError) -> None:
        """It did not happen; or it is not known whether it did, and then it has no end."""
        if error.info.definite:
            self._recorder.end(number, False, {"error": error.code.name})

    def _token(self) -> str:
        self._tokens += 1
        return f"{self._orders.name}.{self._tokens};"


def _place(g: Generation) -> dict[str, int]:
    return {
        "epoch": g.fence.epoch, "generation": g.number, "rank": g.rank, "world": g.world_size,
    }  # fmt: skip


def _fingerprint(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:24]


def _result(op: str, reply: Any) -> dict[str, Any]:
    match op:
        case "get":
            return {"value": reply.value.decode(), "revision": reply.revision}
        case "add":
            return {"value": reply.value, "revision": reply.revision}
        case "append":
            return {"length": reply.value, "revision": reply.revision}
        case "delete":
            return {"deleted": reply.value, "revision": reply.revision}
        case "cas":
            value = None if reply.value is None else reply.value.decode()
            return {"swapped": reply.swapped, "value": value, "revision": reply.revision}
        case _:
            return {"revision": reply.revision}
