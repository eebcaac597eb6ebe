"""What simulated ranks do to make communicators: unique ids asked for, minted, used, and offered wrongly.

As with barriers and keys, the ledger knows only what was asked and told. NCCL itself hangs where a rule is broken
here, so each answer is checked when it comes.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyReply,
    Done,
    Error,
    Fence,
    Joined,
    NcclFail,
    NcclGet,
    NcclIds,
    NcclPut,
    NcclReady,
    NcclRevoked,
)

if TYPE_CHECKING:
    from tests.sim.meeting import Member

ID_S = 4.0
"""How long a rank waits for an id."""

INIT_S = 3.0
"""How long the ranks may take to make a communicator of it."""

Slot = tuple[str, Fence, str, int]
"""Run, fence, communicator and attempt."""


class CommunicatorError(AssertionError):
    """A rule of unique ids was broken."""


@dataclass
class IdLedger:
    """Who minted what, who was given what."""

    slots: dict[tuple[int, bytes], Slot] = field(default_factory=dict)
    """By epoch and id: where it was handed out. A server that forgot everything cannot know what it took before."""
    ids: dict[Slot, bytes] = field(default_factory=dict)
    offered: list[tuple[int, bytes]] = field(default_factory=list)
    """Epochs, and ids that the server has taken in them."""
    delivered = refused = 0

    def told(self, slot: Slot, raw: bytes) -> None:
        """A rank was given an id (S18, S20)."""
        self.delivered += 1
        first = self.ids.setdefault(slot, raw)
        if first != raw:
            raise CommunicatorError(f"S20: two ids for {slot}")
        place = self.slots.setdefault((slot[1].epoch, raw), slot)
        if place != slot:
            raise CommunicatorError(f"S18: the id of {place} was handed out for {slot}")


class Communicators:
    """The communicator of all members of one generation, made again and again."""

    GROUP = "world"

    def __init__(self, agent: "Member", mine: Joined) -> None:
        world = agent.world
        self._agent, self._mine, self._ledger = agent, mine, world.id_ledger
        self._rng, self._clock, self._server = agent.rng, world.clock, world.server
        self.waiting_since: float | None = None
        self._holds: int | None = None
        """The attempt whose id it holds, and whose communicator it makes."""
        self._soon(self._get)

    def _soon(self, act: Callable[[], None]) -> None:
        self._clock.after(
            self._rng.uniform(0.2, 2.5),
            lambda: self._agent.client.when_running(lambda: self._turn(act)),
        )

    def _turn(self, act: Callable[[], None]) -> None:
        if self._agent.runs(self._mine):
            act()

    def _slot(self, attempt: int) -> Slot:
        return self._agent.run, self._mine.fence, self.GROUP, attempt

    def revoked(self, push: NcclRevoked) -> None:
        """What it holds leads nowhere: it aborts the init and asks for the next attempt."""
        if push.fence == self._mine.fence and push.attempt == self._holds:
            self._holds = None
            self._soon(self._get)

    def _get(self) -> None:
        mine = self._mine
        self.waiting_since = self._clock.now
        ask = NcclGet(
            fence=mine.fence, group=self.GROUP, rank=mine.group_rank, nranks=mine.world_size,
            timeout_ms=round(ID_S * 1000), init_timeout_ms=round(INIT_S * 1000),
        )  # fmt: skip
        self._agent.ask(ask, self._got)

    def _got(self, reply: AnyReply) -> None:
        self.waiting_since = None
        if isinstance(reply, Error) and reply.code == ErrorCode.ALREADY_USED:
            raise CommunicatorError(
                f"L3: the next attempt of {self.GROUP!r} is an old one: {reply.message}"
            )
        if not isinstance(reply, NcclIds):
            self._soon(self._get)
        elif reply.mint:
            if self._mine.group_rank != 0:
                raise CommunicatorError(f"S19: rank {self._mine.group_rank} is to mint")
            self._mint(reply.attempt)
        else:
            if len(reply.ids) != 1:
                raise CommunicatorError(
                    f"S20: {len(reply.ids)} ids for {self._slot(reply.attempt)}"
                )
            self._ledger.told(self._slot(reply.attempt), reply.ids[0])
            self._holds = reply.attempt
            self._soon(lambda: self._made(reply.attempt))
            if self._mine.group_rank != 0 and self._rng.random() < 0.1:
                self._offer_as_stranger(reply.attempt)

    def _made(self, attempt: int) -> None:
        if self._holds != attempt:
            return
        self._holds = None
        fence, rank = self._mine.fence, self._mine.group_rank
        ask: NcclFail | NcclReady = NcclReady(
            fence=fence, group=self.GROUP, attempt=attempt, rank=rank
        )
        if self._rng.random() < 0.15:
            ask = NcclFail(
                fence=fence, group=self.GROUP, attempt=attempt, rank=rank, reason="no route"
            )
        self._agent.ask(ask, lambda _: self._soon(self._get))

    # --- minting ------------------------------------------------------------------------------

    def _mint(self, attempt: int) -> None:
        if self._rng.random() < 0.15 and self._ledger.offered:
            self._offer_again(attempt)
            return
        raw, epoch = new_id(self._rng), self._server.epoch

        def told(reply: AnyReply) -> None:
            if isinstance(reply, Done):
                self._ledger.offered.append((epoch, raw))
                if self._rng.random() < 0.3:
                    self._offer_another(attempt)
            self._turn(self._get)

        self._agent.ask(self._put(attempt, raw), told)

    def _put(self, attempt: int, raw: bytes) -> NcclPut:
        return NcclPut(
            fence=self._mine.fence, group=self.GROUP, attempt=attempt, rank=self._mine.group_rank, index=0, id=raw
        )  # fmt: skip

    def _offer_again(self, attempt: int) -> None:
        """An id that was used before, as a library that forks after minting does."""
        epoch, raw = self._rng.choice(self._ledger.offered)

        def told(reply: AnyReply) -> None:
            if isinstance(reply, Done) and epoch == self._server.epoch:
                raise CommunicatorError(
                    f"S18: an id was taken twice, the second time for {self._slot(attempt)}"
                )
            self._ledger.refused += (
                isinstance(reply, Error) and reply.code == ErrorCode.DUPLICATE_ID
            )
            self._turn(self._get)

        self._agent.ask(self._put(attempt, raw), told)

    def _offer_another(self, attempt: int) -> None:
        """The first write wins (S19)."""

        def told(reply: AnyReply) -> None:
            if isinstance(reply, Done):
                raise CommunicatorError(f"S19: a second id was taken for {self._slot(attempt)}")

        self._agent.ask(self._put(attempt, new_id(self._rng)), told)

    def _offer_as_stranger(self, attempt: int) -> None:
        """Only the rank that was told to mint may (S19)."""

        def told(reply: AnyReply) -> None:
            if isinstance(reply, Done):
                raise CommunicatorError(
                    f"S19: an id of a stranger was taken for {self._slot(attempt)}"
                )

        self._agent.ask(self._put(attempt, new_id(self._rng)), told)


def new_id(rng: random.Random) -> bytes:
    """As NCCL makes them: a random magic, and the root's address."""
    address = (
        (2).to_bytes(2, "little")
        + rng.randint(1024, 65535).to_bytes(2, "big")
        + bytes((10, 0, 0, 9))
    )
    return rng.randbytes(8) + address + bytes(limits.NCCL_ID_BYTES - 16)
