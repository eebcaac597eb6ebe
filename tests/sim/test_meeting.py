"""How often simulated members take their turns: what the simulator finds depends on it."""

import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from rdzv_proto.messages import AnyReply, AnyRequest, Barrier, Fence, Joined, KvAdd
from tests.sim.meeting import CALM, KEY_TURN_S_MAX, OF_WORKERS, TURN_S_MAX, Ledger, Meetings
from tests.sim.net import Clock

FENCE = Fence(1, 1)
MINE = Joined(fence=FENCE, group_rank=0, world_size=2, digest=b"", reason="all are here")


class _Slowest(random.Random):
    """Every pause is as long as it may be."""

    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


class _Member:
    """Notes when it asks for what; only barriers are over at once."""

    def __init__(self) -> None:
        self.clock = Clock()
        ledger = Ledger(lambda run: (1, False))
        self.world: Any = SimpleNamespace(clock=self.clock, ledger=ledger, calm=False)
        self.client: Any = SimpleNamespace(frozen=False)
        self.run, self.met = "run", dict[Fence, float]()
        self.rng: random.Random = _Slowest(1)
        self.asked: list[tuple[float, AnyRequest]] = []
        self.meetings: Meetings

    def runs(self, mine: Joined) -> bool:
        return mine is MINE

    def ask(self, message: AnyRequest, done: Callable[[AnyReply], None]) -> None:
        self.asked.append((self.clock.now, message))
        if isinstance(message, Barrier):
            self.meetings.waiting.clear()

    def pauses(self, kind: type[AnyRequest]) -> set[float]:
        """Between requests of that kind, on keys of the generation or at the barrier of all."""
        times = [
            at
            for at, message in self.asked
            if type(message) is kind
            and getattr(message, "fence", None) == FENCE
            and not getattr(message, "members", None)
        ]
        return {round(b - a, 6) for a, b in itertools.pairwise(times)}


def _plays(of: Literal["nodes", "workers"]) -> _Member:
    member = _Member()
    member.meetings = Meetings(member, MINE, of)
    return member


@pytest.mark.parametrize(("of", "longer"), [("nodes", 1.0), ("workers", OF_WORKERS)])
def test_turns_come_as_often_after_a_minute_as_at_first(
    of: Literal["nodes", "workers"], longer: float
) -> None:
    member = _plays(of)
    member.clock.run_until(60)
    assert member.pauses(Barrier) == {TURN_S_MAX * longer}
    assert member.pauses(KvAdd) == {KEY_TURN_S_MAX * longer}


def test_in_the_calm_keys_are_asked_for_less_often_and_barriers_as_often() -> None:
    member = _plays("nodes")
    member.clock.run_until(1)
    member.world.calm = True
    member.clock.run_until(60)
    assert member.pauses(Barrier) == {TURN_S_MAX}
    assert member.pauses(KvAdd) == {KEY_TURN_S_MAX * CALM}
