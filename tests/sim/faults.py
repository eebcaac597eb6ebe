"""What goes wrong in a simulated world. Each fault takes the world and a victim, and is drawn from the seed."""

import random
from typing import TYPE_CHECKING

from rdzv_client import backoff
from rdzv_client.reconnect import HELLO_S
from tests.sim.agent import LEASE_S, Agent
from tests.sim.client import Client
from tests.sim.strangers import Foreigner, Thief, Tool

if TYPE_CHECKING:
    from tests.sim.world import World

LATE = 0.1
"""Part of the processes whose first connection to a server breaks before its welcome comes, or soon after."""


def kill(world: "World", agent: Agent) -> None:
    agent.kill()
    if world.rng.random() < 0.7:
        world.clock.after(
            world.rng.uniform(0, 4), world.starter(agent.run, agent.name, agent.policy)
        )


def vanish(world: "World", agent: Agent) -> None:
    """Its host loses power."""
    agent.vanish()


def replace(world: "World", agent: Agent) -> None:
    """A new process with the same node id, while the old one lives or after it died."""
    if world.rng.random() < 0.5:
        agent.kill()
    world.start(agent.run, agent.name, agent.policy, node_id=agent.node_id)


def freeze(world: "World", agent: Agent) -> None:
    _freeze(world, agent.client)


def _freeze(world: "World", client: Client) -> None:
    client.freeze(world.rng.uniform(0.2, 3 * LEASE_S))


def zombie(world: "World", agent: Agent) -> None:
    """A node is replaced while it stands still, and goes on later."""
    agent.client.freeze(LEASE_S + world.rng.uniform(0.5, 3))
    at = LEASE_S + world.rng.uniform(-1, 1)
    world.clock.after(at, world.starter(agent.run, agent.name, agent.policy, agent.node_id))


def reset(world: "World", agent: Agent) -> None:
    _reset(world, agent.client)


def _reset(world: "World", client: Client) -> None:
    if client.link is not None:
        client.link.reset()


def all_reset(world: "World", agent: Agent) -> None:
    for other in world.of_run(agent.run):
        if other.client.link is not None:
            other.client.link.reset()


def hole(world: "World", agent: Agent) -> None:
    """Nothing gets through, both ways or one way, for a while."""
    _hole(world, agent.client)


def _hole(world: "World", client: Client) -> None:
    link = client.link
    if link is not None:
        after = world.rng.uniform(0.1, 2 * LEASE_S)
        client.impaired(after)
        for pipe in world.rng.choice((link.pipes, link.pipes[:1], link.pipes[1:])):
            pipe.hole = True
            world.clock.after(after, pipe.heal)


def swizzle(world: "World", agent: Agent) -> None:
    """The links of a run are clogged one by one, and opened again in another order."""
    rng = world.rng
    clients = [other.client for other in world.of_run(agent.run) if other.client.link is not None]
    rng.shuffle(clients)
    links = [client.link for client in clients if client.link is not None]
    at = 0.0
    for client in clients:
        client.impaired(len(clients) * 1.5 + LEASE_S)
    for link in links:
        at += rng.uniform(0, 0.5)
        for pipe in link.pipes:
            world.clock.after(at, lambda pipe=pipe: setattr(pipe, "hole", True))  # type: ignore[misc]
    rng.shuffle(links)
    at += rng.uniform(0, LEASE_S)
    for link in links:
        at += rng.uniform(0, 1.0)
        for pipe in link.pipes:
            world.clock.after(at, pipe.heal)


def slow(world: "World", agent: Agent) -> None:
    """A link with jitter, for a while."""
    link = agent.client.link
    if link is not None:
        seconds, most = world.rng.uniform(1, 8), world.rng.uniform(0.05, 1.0)
        agent.client.impaired(seconds + most)
        for pipe in link.pipes:
            pipe.slow_s = most
            world.clock.after(seconds, lambda pipe=pipe: setattr(pipe, "slow_s", 0.0))  # type: ignore[misc]


def late_times(rng: random.Random) -> tuple[float, float]:
    """When a connection breaks, and when what was said on it arrives."""
    return rng.uniform(0.001, 0.6), rng.uniform(0.7, LEASE_S)


def late(world: "World", agent: Agent) -> None:
    """A connection breaks for its client; what was said on it reaches the server after what is said on the next."""
    _late(world, agent.client)


def _late(world: "World", client: Client) -> None:
    rng = world.rng
    times = late_times(rng)
    if client.link is not None and rng.random() < 0.5:
        client.break_late(client.link, *times)
    else:
        client.late_s = times
        _reset(world, client)


def stall(world: "World", agent: Agent) -> None:
    world.server.stall(world.rng.uniform(0.3, 2 * LEASE_S))


def edge(world: "World", agent: Agent) -> None:
    """A node is heard at the last moment, by a server that stands still just then (S33)."""
    after = LEASE_S - world.rng.uniform(0, 1.0)
    agent.client.freeze(after)
    begins = after - world.rng.uniform(0, 0.2)
    world.clock.after(begins, lambda: world.server.stall(world.rng.uniform(0.25, 1.0)))


def away(world: "World", agent: Agent) -> None:
    """A node's connection breaks without a word to the server, and new ones are refused; when one comes about, the
    server stands still for about as long as the node waits for an answer to its hello (S33)."""
    link = agent.client.link
    if link is not None:
        seconds = world.rng.uniform(1.0, LEASE_S - 0.5)
        agent.client.refused_until = world.clock.now + seconds
        agent.client.break_late(link, 0.0, seconds)
        stalled_s = world.rng.uniform(HELLO_S - 1.0, HELLO_S + backoff.CAP_S)
        world.clock.after(seconds, lambda: world.server.stall(stalled_s))


def fail(world: "World", agent: Agent) -> None:
    agent.worker_fails()


def finish(world: "World", agent: Agent) -> None:
    """One node's work is done; mostly the others' soon after."""
    agent.worker_finishes()
    if world.rng.random() < 0.8:
        for other in world.of_run(agent.run):
            if other is not agent:
                world.clock.after(world.rng.uniform(0, 2), other.worker_finishes)


def drain(world: "World", agent: Agent) -> None:
    agent.terminate()


def newcomer(world: "World", agent: Agent) -> None:
    """In any run: also in one that is over, which then lives again."""
    run = world.rng.choice(list(world.policies))
    world.start(run, f"{run}-new{world.processes}", world.policies[run])


def close(world: "World", agent: Agent) -> None:
    """An operator ends the run; seldom, since nothing happens in it for a while after that."""
    if world.rng.random() < 0.3:
        Tool(world, agent.run, world.master, close=True)
    else:
        Tool(world, agent.run, world.master, close=False)


def intrude(world: "World", agent: Agent) -> None:
    """Somebody wants what is not his."""
    if world.master is None:
        Thief(world, agent, world.rng)
    else:
        Foreigner(world, agent.run, world.token_of("another run"))


def worker_away(world: "World", agent: Agent) -> None:
    """A training process stands still, or its connection does."""
    if agent.worker is not None and agent.worker.alive:
        world.rng.choice((_freeze, _reset, _hole, _late))(world, agent.worker.client)


def worker_dies(world: "World", agent: Agent) -> None:
    """A training process is killed; its agent sees that."""
    if agent.worker is not None:
        agent.worker.fails()


def crash(world: "World", agent: Agent) -> None:
    """In the crowd that comes back some connections break before their welcome comes, or soon after."""
    if world.server.up:
        world.server.crash()
        for other in world.agents:
            if other.alive and world.rng.random() < LATE:
                other.client.late_s = late_times(world.rng)
        world.clock.after(world.rng.uniform(0.1, 5), world.server.restart)


def wall_jump(world: "World", agent: Agent) -> None:
    """The clock on the wall is set, by up to ten years; or the server starts on another machine (S31)."""
    most = world.rng.choice((5_000, 3_600_000, 315_360_000_000))
    world.server.wall_ahead_ms = world.rng.randint(-most, most)


def disk_full(world: "World", agent: Agent) -> None:
    disk = world.server.disk
    if disk is not None:
        seconds = world.rng.uniform(0.2, 6)
        disk.full_until = world.clock.now + seconds
        for client in (other.client for other in world.agents):
            client.impaired(seconds + 1.0)  # whoever was away meanwhile cannot be let in


ALWAYS = (
    kill, vanish, replace, freeze, zombie, reset, all_reset, hole, hole, swizzle, slow, late, late, stall, edge, away,
    fail, finish, drain, newcomer, close, intrude,
)  # fmt: skip
"""Faults of nodes, networks, jobs and operators, and stalls of the server. Some count twice."""

OF_WORKERS = (worker_away, worker_away, worker_away, worker_dies)
"""Where training processes have sessions of their own."""
