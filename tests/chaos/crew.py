"""The client processes of one run, what is done to them, and where they stand."""

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.board import NOWHERE, Board
from tests.chaos.client import Orders
from tests.chaos.nursery import Nursery
from tests.chaos.rig import PORT, SLOW_PORT
from tests.e2e.kit.processes import kill

SLOW_EVERY = 4
"""One client of so many is behind the slow link."""

LAST_CALL_S = 2.0
PAUSE_S = 0.25
"""Between two rounds of a client, on average: 32 of them leave room for everybody else on two cores."""


@dataclass
class Member:
    """A client process.

    Args:
        name: in the history.
        place: in the crew; its address and slots belong to that.
        node_id: may be that of an earlier process.
        sound: nothing is being done to it.
    """

    name: str
    place: int
    slot: int
    address: str
    node_id: str
    pid: int = 0
    sound: bool = True


@dataclass
class Crew:
    """A run.

    Args:
        run: its id.
        number: from 1; in the addresses of its clients.
        size: most members.
        min_nodes: fewest.
        lease_s: of each.
        first_slot: of `2 * size` of the board.
        rng: of all that is drawn for it.
        folder: for histories and logs.
        server_pid: of the server as it is now.
        remembers: the server keeps its state when it is started again.
    """

    run: str
    number: int
    size: int
    min_nodes: int
    lease_s: float
    first_slot: int
    rng: random.Random
    folder: Path
    board: Board
    board_path: Path
    nursery: Nursery
    server_pid: Callable[[], int]
    remembers: bool
    members: list[Member] = field(default_factory=list)
    odd_ends: list[str] = field(default_factory=list)
    """Processes that ended by themselves."""
    _count: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def start_all(self) -> None:
        """One process for each place."""
        for place in range(self.size):
            self.members.append(self.start(place))

    def start(self, place: int, node_id: str = "") -> Member:
        """A new process, with a node id of its own if none is given. It is not a member yet."""
        number = next(self._count)
        name = f"{self.run}-{place}-{number}"
        host = f"{self.number}.{place + 1}"
        slow = place % SLOW_EVERY == SLOW_EVERY - 1
        endpoint = f"127.2.{host}:{SLOW_PORT}" if slow else f"127.1.{host}:{PORT}"
        slot = self.first_slot + 2 * place
        if slot in {m.slot for m in self.members}:  # a twin
            slot += 1
        member = Member(name, place, slot, f"127.1.{host}", node_id or name)
        self.board.post(slot, NOWHERE)
        member.pid = self.nursery.start(
            Orders(
                name=name, slot=slot, endpoint=endpoint, run=self.run, node_id=member.node_id,
                min_nodes=self.min_nodes, max_nodes=self.size, lease_s=self.lease_s,
                last_call_s=LAST_CALL_S, pause_s=PAUSE_S, seed=self.rng.getrandbits(32),
                folder=str(self.folder), board=str(self.board_path),
            )
        )  # fmt: skip
        return member

    # --- what is done -------------------------------------------------------------------------

    def victims(self, at_most: int | None = None) -> list[Member]:
        """Some members; without a limit so many that enough are left."""
        limit = self.size - self.min_nodes if at_most is None else at_most
        chosen = self.rng.sample(self.members, self.rng.randint(1, limit))
        for member in chosen:
            member.sound = False
        return chosen

    def kill(self, victims: list[Member]) -> None:
        """SIGKILL."""
        for member in victims:
            kill(member.pid)
            self.members.remove(member)

    def replace(self, victims: list[Member]) -> None:
        """New processes in their places; one in three with the old node id."""
        for old in victims:
            node_id = old.node_id if self.rng.random() < 0.33 else ""
            self.members.append(self.start(old.place, node_id))

    def stop(self, victims: list[Member]) -> None:
        """SIGSTOP."""
        for member in victims:
            kill(member.pid, signal.SIGSTOP)

    def go_on(self, victims: list[Member]) -> None:
        """SIGCONT."""
        for member in victims:
            kill(member.pid, signal.SIGCONT)
            member.sound = True

    def ended(self, member: Member) -> int | None:
        """Exit code, or None while it runs."""
        return self.nursery.codes.get(member.name)

    def tend(self) -> None:
        """Replace processes that ended by themselves, and remember them: none should."""
        for member in list(self.members):
            code = self.ended(member)
            if code is not None:
                self.members.remove(member)
                self.odd_ends.append(f"{member.name} ended with {code}")
                self.replace([member])

    def end(self) -> None:
        """SIGKILL to all."""
        for member in self.members:
            kill(member.pid)

    # --- where they stand ---------------------------------------------------------------------

    def together(self, since: float) -> float | None:
        """When the sound members, in one generation, had passed a barrier to which all of them came
        after `since`; None if they have not."""
        places = [self.board.look(m.slot) for m in self.members if m.sound]
        if len(places) < self.min_nodes or any(place.came_s < since for place in places):
            return None
        if len({(p.epoch, p.generation, p.world) for p in places}) > 1:
            return None
        if places[0].world < len(places):
            return None
        return max(place.passed_s for place in places)

    def waits(self) -> dict[int, float]:
        """For the server and each sound member: seconds that it was ready to run and had no processor."""
        pids = [self.server_pid(), *(m.pid for m in self.members if m.sound)]
        return {pid: waited_s(pid) for pid in pids}

    def held_up(self, before: dict[int, float]) -> float:
        """Seconds that the machine let the server and the worst member wait since then: all may wait for
        that member."""
        server_pid, now = self.server_pid(), self.waits()
        grown = {pid: seconds - before.get(pid, 0.0) for pid, seconds in now.items()}
        return grown.pop(server_pid) + max(grown.values(), default=0.0)

    def shown(self) -> str:
        """For people: where each of them is."""
        now = time.monotonic()
        rows = []
        for member in self.members:
            p = self.board.look(member.slot)
            rows.append(
                f"{member.name}{'' if member.sound else '*'} ({p.epoch}, {p.generation}) rank "
                f"{p.rank}/{p.world} {now - p.passed_s:.1f} s ago"
            )
        return f"{self.run}: " + "; ".join(rows)


def waited_s(pid: int) -> float:
    """Seconds that all threads of a process were ready to run and had no processor."""
    seconds = 0.0
    with contextlib.suppress(OSError):  # it, or one of them, has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                seconds += int(file.read().split()[1]) / 1e9
    return seconds
