"""The checks. Each takes a bench and returns a detail for its line, or raises what was wrong."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.e2e.kit.nodes import Line, Node
from tests.e2e.kit.processes import kill as kill_process
from tests.e2e.kit.wait import until
from tests.gpu.bench import Bench

START_S = 60.0
"""Starting Python, torch and a CUDA context, on a machine that does it for the first time."""

STEP_S = 30.0


@dataclass(frozen=True)
class Check:
    """One of them."""

    name: str
    play: Callable[[Bench], str]
    limit_s: float
    needs: tuple[str, ...] = ("torch",)
    """Modules."""


def _world(bench: Bench, size: int = 2, **options: object) -> list[Node]:
    """Processes on as many GPUs, in one generation, by rank."""
    nodes = [bench.rank("comm", gpu, size, rank=gpu, **options) for gpu in range(size)]
    for node in nodes:
        node.joined(size, START_S)
    return nodes


def _reduced(nodes: list[Node], count: int = 1) -> list[Line]:
    for node in nodes:
        line = until(
            lambda node=node: node.last("reduced") or node.last("failed"),  # type: ignore[misc]
            START_S,
            f"{node.name} has reduced: {node.lines[-3:]}",
        )
        assert line["event"] == "reduced", line
    lines = [node.wait_for("reduced", STEP_S, count) for node in nodes]
    assert all(line["right"] for line in lines), lines
    return lines


def _comm(nodes: list[Node], **options: object) -> None:
    for node in nodes:
        node.do("comm", nranks=len(nodes), **options)


def _times(nodes: list[Node], count: int = 1) -> str:
    ids = max(node.wait_for("ids", STEP_S, count)["took_s"] for node in nodes)
    comm = [node.wait_for("comm", STEP_S, count) for node in nodes]
    took_s = max(line["took_s"] for line in comm)
    return f"id {ids * 1000:.1f} ms, init {took_s * 1000:.0f} ms, NCCL {comm[0]['version']}"


def _communicators(via: str, n_ids: int) -> Callable[[Bench], str]:
    """Two communicators after one another in the same processes: each with an id of its own."""

    def play(bench: Bench) -> str:
        nodes = _world(bench)
        _comm(nodes, via=via, n_ids=n_ids)
        _reduced(nodes)
        cold = _times(nodes)
        _comm(nodes, via=via, n_ids=n_ids)
        _reduced(nodes, 2)
        attempts = [line["attempt"] for line in nodes[0].all("ids")]
        assert attempts == [0, 1], attempts
        nodes[0].do("comm", nranks=2, n_ids=n_ids, attempt=0)
        refused = nodes[0].wait_for("failed", STEP_S)
        assert refused["error"] == "AlreadyUsed", refused
        return f"{cold}; warm: {_times(nodes, 2)}"

    return play


def _kill_one(bench: Bench) -> str:
    """In the middle of all-reduces: abort, a new generation, a new id, a right all-reduce."""
    nodes = _world(bench)
    _comm(nodes, loop=True)
    _reduced(nodes)
    nodes[1].kill()
    began = time.monotonic()
    aborted = nodes[0].wait_for("aborted", STEP_S)
    assert "was lost" in aborted["why"], aborted
    told_s = aborted["at"] - aborted["took_s"] - began
    again = bench.rank("comm", 1, 2, rank=1)
    for node in (nodes[0], again):
        node.joined(2, START_S, above=1 if node is nodes[0] else 0)
    recovered, before = time.monotonic(), len(nodes[0].all("reduced"))
    _comm([nodes[0], again])
    _reduced([again])
    line = nodes[0].wait_for("reduced", STEP_S, before + 1)
    assert line["right"], line
    assert nodes[0].number > 1
    return (
        f"told after {told_s:.1f} s, abort {aborted['took_s'] * 1000:.0f} ms, communicator "
        f"{(time.monotonic() - recovered) * 1000:.0f} ms after the new generation"
    )


def _lost_in_init(bench: Bench) -> str:
    """A rank has the id and dies before it joins: NCCL would wait for ever, the server takes it back."""
    nodes = _world(bench)
    nodes[0].do("comm", nranks=2, blocking=False)
    nodes[1].do("comm", nranks=2, join=False)
    nodes[0].wait_for("in_init", START_S)
    nodes[1].wait_for("ids", START_S)
    nodes[1].kill()
    began = time.monotonic()
    aborted = nodes[0].wait_for("aborted", STEP_S)
    assert "was lost" in aborted["why"], aborted
    nodes[0].wait_for("failed", STEP_S)
    freed_s = time.monotonic() - began
    again = bench.rank("comm", 1, 2, rank=1)
    nodes[0].joined(2, START_S, above=1)
    again.joined(2, START_S)
    _comm([nodes[0], again])
    again.wait_for("reduced", START_S)
    line = nodes[0].wait_for("reduced", STEP_S)
    assert line["right"], line
    return f"out of a stuck init after {freed_s:.1f} s"


def _torch(store: str, kill: bool, backend: str = "nccl") -> Callable[[Bench], str]:
    """`init_process_group` under torchrun; with `kill`, a worker is killed in mid-job."""

    def play(bench: Bench) -> str:
        steps = 400 if kill else 20
        agents = [
            bench.agent("job", gpu, store=store, backend=backend, steps=steps) for gpu in (0, 1)
        ]
        for agent in agents:
            agent.wait_for("reduced", START_S * 2)
        detail = ""
        if kill:
            victim = agents[1].said("start")[-1]
            began = time.monotonic()
            kill_process(victim["pid"])
            for agent in agents:
                line = agent.wait_for("reduced", START_S * 2, 2)
                assert line["fence"] != victim["fence"], line
            detail = f"right all-reduce in a new generation {time.monotonic() - began:.1f} s later"
        for agent in agents:
            line = agent.wait_for("done", START_S)
            assert line["world"] == 2, line
            until(lambda agent=agent: agent.process.poll() is not None, STEP_S, "the agent ends")  # type: ignore[misc]
            assert agent.process.returncode == 0, agent.tail()
        return detail or "all-reduce, new_group, barrier, destroy"

    return play


CHECKS = [
    Check("comm_ctypes", _communicators("ctypes", 1), 120),
    Check("comm_ctypes_scalable", _communicators("ctypes", 2), 120),
    Check("comm_cupy", _communicators("cupy", 1), 120, ("cupy",)),
    Check("kill_one_rank", _kill_one, 150),
    Check("lost_in_init", _lost_in_init, 150),
    Check("torch_rank0", _torch("rank0", kill=False), 150),
    Check("torch_server", _torch("server", kill=False), 150),
    Check("torch_rank0_kill", _torch("rank0", kill=True), 200),
    Check("torch_server_kill", _torch("server", kill=True), 200),
]
"""In this order."""
