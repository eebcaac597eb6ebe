"""The stall sweep: the server is stopped again and again, and nobody may be given up for it (S32, S33).

All nodes send their heartbeats in time while it is stopped. An expiry is false unless this side itself was
silent for too long, which happens on a machine that is busy with other things: such stalls are repeated.
"""

import random
import signal
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.beats import Beats
from tests.e2e.kit.server import Server

LEASE_S = 0.2
"""The shortest that the server allows: two ticks."""

SHORTEST, LONGEST = 0.2, 10.0
"""Stalls, in leases. Each length is as likely as its double."""

SETTLE_S = 2 * LEASE_S
"""After a stall, before it is judged: an expiry has two phases, a tick apart."""

CONNECTIONS = (10, 50, 200)
LOOPS = ("uvloop", "asyncio")

SILENT_S = 0.75 * LEASE_S
"""A node that this side let be silent for longer may rightly be given up."""

REPEATS_MAX = 20
"""Of one cell in a row, for this side's own delays. A machine that needs more is no place for this."""


@dataclass
class Cell:
    """One loop with so many connections."""

    loop: str
    connections: int
    stalls: int = 0
    repeated: int = 0
    false: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    stalled_s: float = 0.0

    def line(self) -> str:
        """For people."""
        return (
            f"  {self.loop:<8} {self.connections:>4} connections  {self.stalls:>5} stalls  "
            f"{self.stalled_s:7.1f} s stopped  {len(self.false)} false expiries  "
            f"{self.repeated} repeated"
        )


def sweep(stalls: int, seed: int, connections: tuple[int, ...] = CONNECTIONS) -> int:
    """Play all cells, both loops side by side; prints what came of it. Returns an exit code."""
    print(f"stalls: seed {seed}, lease {LEASE_S:g} s")
    cells = [Cell(loop, count) for count in connections for loop in LOOPS]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    interrupted = False
    with tempfile.TemporaryDirectory(prefix="rdzv-stalls-") as name:
        for first in range(0, len(cells), len(LOOPS)):
            pair = cells[first : first + len(LOOPS)]
            threads = [
                threading.Thread(
                    target=_play, daemon=True,
                    args=(cell, -(-stalls // len(cells)), f"{seed} {cell.loop} {cell.connections}",
                          Path(name), stop),
                )
                for cell in pair
            ]  # fmt: skip
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    while thread.is_alive():
                        thread.join(0.2)
            except KeyboardInterrupt:
                interrupted = True
                stop.set()
                for thread in threads:
                    thread.join(30)
            for cell in pair:
                print(cell.line(), flush=True)
    return 130 if interrupted else _tell(cells, seed)


def _tell(cells: list[Cell], seed: int) -> int:
    false = [text for cell in cells for text in cell.false]
    troubles = [text for cell in cells for text in cell.troubles]
    for text in (*false[:10], *troubles):
        print(f"  {text}")
    print(
        f"stalls: seed {seed}: {sum(cell.stalls for cell in cells)} stalls, {len(false)} false "
        f"expiries, {sum(cell.repeated for cell in cells)} repeated, {len(troubles)} troubles"
    )
    return 1 if false or troubles else 0


def _play(cell: Cell, stalls: int, seed: str, folder: Path, stop: threading.Event) -> None:
    rng = random.Random(seed)
    repeats = 0
    try:
        while cell.stalls < stalls and not stop.is_set():
            good = _life(cell, stalls, rng, folder, stop)
            repeats = 0 if good else repeats + 1
            if repeats > REPEATS_MAX:
                cell.troubles.append(f"{cell.loop}: this machine does not keep heartbeats in time")
                return
    except Exception as error:  # noqa: BLE001  (whatever it is, it is told)
        cell.troubles.append(f"{cell.loop}: {type(error).__name__}: {error}")


def _life(cell: Cell, stalls: int, rng: random.Random, folder: Path, stop: threading.Event) -> bool:
    """A server and its nodes, until there are enough stalls or somebody was given up. False: no stall
    was good."""
    name = f"{cell.loop}-{cell.connections}"
    server = Server(folder, name, "--loop", cell.loop, "--http-port", "off", name=name)
    beats = None
    before = cell.stalls
    try:
        beats = Beats(
            name, host=server.host, port=server.port, run=name, nodes=cell.connections,
            lease_s=LEASE_S,
        )  # fmt: skip
        while cell.stalls < stalls and not stop.is_set():
            seconds = LEASE_S * SHORTEST * (LONGEST / SHORTEST) ** rng.random()
            stop.wait(rng.uniform(0.0, 2 * LEASE_S))
            server.signal(signal.SIGSTOP)
            began = time.monotonic()
            stop.wait(seconds)
            server.signal(signal.SIGCONT)
            stop.wait(SETTLE_S)
            lost, gap_s = beats.tell()
            if lost and gap_s > SILENT_S:
                cell.repeated += 1
                break
            cell.stalls += 1
            cell.stalled_s += time.monotonic() - began - SETTLE_S
            if lost:
                who, why = next(iter(lost.items()))
                cell.false.append(
                    f"{cell.loop}, {cell.connections} connections, stopped for {seconds:.2f} s: "
                    f"{len(lost)} given up, {who}: {why} (silent at most {gap_s:.2f} s): "
                    f"{server.log.splitlines()[-3:]}"
                )
                break
    finally:
        if beats is not None:
            beats.close()
        server.kill()
    return cell.stalls > before
