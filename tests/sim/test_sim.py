"""The simulator as a test: some seeds each time, and its own guarantees."""

import pytest

from tests.sim.world import ViolationError, World

SEEDS = 250
"""A few seconds; `make sim` plays thousands."""


@pytest.mark.parametrize("crashes", [False, True], ids=["server stays", "server crashes"])
def test_no_seed_breaks_a_rule(crashes: bool) -> None:
    generations = faults = 0
    for seed in range(SEEDS):
        world = World(seed, server_crashes=crashes)
        try:
            world.play()
        except AssertionError as error:
            raise AssertionError(f"python -m tests.sim --seed {seed} --trace: {error}") from error
        generations += world.generations
        faults += world.faults
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
