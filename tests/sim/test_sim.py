"""The simulator as a test: some seeds each time, and its own guarantees."""

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import AnyReply, Error, Fence, Released
from tests.sim.meeting import Ledger, MeetingError
from tests.sim.world import ViolationError, World

SEEDS = 250
"""A few seconds; `make sim` plays thousands."""


@pytest.mark.parametrize("server", ["stays", "crashes", "crashes and resumes"])
def test_no_seed_breaks_a_rule(server: str) -> None:
    generations = faults = releases = reads = 0
    for seed in range(SEEDS):
        world = World(seed, server_crashes=server == "crashes", durable="resumes" in server)
        try:
            world.play()
        except AssertionError as error:
            raise AssertionError(f"python -m tests.sim --seed {seed} --trace: {error}") from error
        generations += world.generations
        faults += world.faults
        releases += world.ledger.releases
        reads += world.ledger.reads
    assert releases > 10 * SEEDS
    assert reads > 10 * SEEDS
    assert generations > SEEDS
    assert faults > 10 * SEEDS


def test_one_seed_is_one_history() -> None:
    hashes = []
    for _ in range(2):
        world = World(7)
        world.play()
        hashes.append(world.hash.hexdigest())
    assert hashes[0] == hashes[1]


def test_a_healthy_node_declared_lost_is_a_violation() -> None:
    world = World(3)
    world.clock.run_until(10)
    agent = next(a for a in world.agents if a.alive)
    agent.impaired_until = 0.0
    with pytest.raises(ViolationError, match="S33"):
        world._check_lost(agent.incarnation)


def test_two_holders_of_one_rank_are_a_violation() -> None:
    world = World(3)
    world.clock.run_until(10)
    joined = [a for a in world.agents if a.joined is not None]
    assert joined
    other = next(a for a in world.agents if a is not joined[0])
    other.run = joined[0].run
    told = joined[0].joined
    assert told is not None
    with pytest.raises(ViolationError, match="S1"):
        world._check_told(other, told)


PLACE = ("run", Fence(1, 1), "b")
BOTH = Released(round=1, payloads=[b"a", b"b"])
LATE = Error(code=ErrorCode.BARRIER_TIMEOUT, message="barrier 'b' of run 'run', round 1: 1 of 2")


@pytest.mark.parametrize(
    ("told", "rule"),
    [
        ([(0, Released(round=1, payloads=[b"a"]))], "S13: 1 payloads"),
        ([(0, Released(round=1, payloads=[b"a", b"?"]))], "S13: rank 1 never came"),
        ([(0, Released(round=1, payloads=[b"b", b"a"]))], "S13: rank 0 never came"),
        ([(0, BOTH), (1, Released(round=2, payloads=[b"a", b"b"]))], "S13: .* counted twice"),
        ([(0, BOTH), (1, LATE)], "S14"),
        ([(0, BOTH), (0, BOTH)], "S15"),
    ],
)
def test_a_round_that_is_not_right_is_a_violation(
    told: list[tuple[int, AnyReply]], rule: str
) -> None:
    ledger = Ledger(lambda run: (1, 0))
    ledger.arrives(PLACE, 0, b"a")
    ledger.arrives(PLACE, 1, b"b")
    *good, (rank, last) = told
    for member, reply in good:
        ledger.decided(PLACE, member, [0, 1], reply)
    with pytest.raises(MeetingError, match=rule):
        ledger.decided(PLACE, rank, [0, 1], last)
