"""Clients that count: what they were told was done must be there in the end, once."""

import threading
import time
from dataclasses import dataclass, field

from rdzv_client import Client
from rdzv_client.errors import RdzvError

CLIENTS = 8
CLIENT_LEASE_S = 3.0
"""Short: after half of it a client takes a server that says nothing for gone."""

BEAT_S = 0.01
"""Between two requests of one client."""

KEY = "counter"


@dataclass
class Told:
    """What one client heard."""

    at: list[float] = field(default_factory=list)
    """When each of its requests was acknowledged, in monotonic seconds."""
    values: list[int] = field(default_factory=list)
    unknown: int = 0
    """Requests that ended without an answer."""
    errors: list[str] = field(default_factory=list)


class Load:
    """Some clients in one world, each adding 1 to the same key again and again.

    Args:
        where: the servers.
    """

    def __init__(self, where: str) -> None:
        self._over = threading.Event()
        self.told = [Told() for _ in range(CLIENTS)]
        self._clients = [
            Client(
                where, run="load", min_nodes=CLIENTS, max_nodes=CLIENTS, name=f"c{number}",
                lease_s=CLIENT_LEASE_S, reconnect_timeout_s=120,
            )
            for number in range(CLIENTS)
        ]  # fmt: skip
        self._threads = [
            threading.Thread(target=self._run, args=pair, daemon=True)
            for pair in zip(self._clients, self.told, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, client: Client, told: Told) -> None:
        try:
            world = client.join(timeout=60)
            while not self._over.wait(BEAT_S):
                try:
                    told.values.append(world.kv.add(KEY, 1))
                except RdzvError as error:
                    told.unknown += 1
                    told.errors.append(str(error))
                    return
                told.at.append(time.monotonic())
                if world.ended:
                    told.errors.append("its generation has ended")
                    return
        except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
            told.errors.append(repr(error))

    @property
    def started(self) -> bool:
        return all(told.at for told in self.told)

    def first_since(self, at: float) -> float | None:
        """When the first of them was served again after a moment; None: not yet."""
        found = [next((t for t in reversed_until(told.at, at)), None) for told in self.told]
        times = [t for t in found if t is not None]
        return min(times) if times else None

    def all_since(self, at: float) -> float | None:
        """When the last of them was."""
        found = [next((t for t in reversed_until(told.at, at)), None) for told in self.told]
        return None if None in found else max(t for t in found if t is not None)

    def end(self) -> tuple[int, list[str]]:
        """Stop; returns how often they were told that it was done, and what went wrong."""
        self._over.set()
        for thread in self._threads:
            thread.join(150)
        faults = [text for told in self.told for text in told.errors]
        values = sorted(value for told in self.told for value in told.values)
        if values != list(range(1, len(values) + 1)):
            faults.append(
                f"{len(values)} additions were told, and not each of 1 … {len(values)} once"
            )
        for client in self._clients:
            client.close()
        return len(values), faults


def reversed_until(times: list[float], at: float) -> list[float]:
    """Those after a moment, in order."""
    found = []
    for moment in reversed(times):
        if moment <= at:
            break
        found.append(moment)
    return found[::-1]
