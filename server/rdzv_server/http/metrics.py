"""Numbers as Prometheus reads them: names, help texts, labels. Rendered in a thread of its own.

Names end in their unit, counters in `_total`. Labels are closed lists, but for a run's name when asked for.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from rdzv_server.http.buckets import Buckets
from rdzv_server.http.health import STATES
from rdzv_server.http.numbers import RunNumbers, Snapshot

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""Every Prometheus and every agent that imitates one reads this form."""

FRESH_S = 1.0
"""Who asks within a second of somebody else gets the same page: however many ask, rendering takes a few
milliseconds a second. Prometheus asks every 15 to 60 s."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _Page(Collector):
    """One snapshot, for one rendering."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from _server(self._snapshot)
        yield from _process()
        yield from _connections(self._snapshot)
        yield from _runs(self._snapshot)
        yield from _named(self._snapshot.named)
        yield from _work(self._snapshot)
        yield from _storage(self._snapshot)


def render(snapshot: Snapshot) -> bytes:
    """The page, from a registry of its own: the global one holds what other libraries put there."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(snapshot))
    return generate_latest(registry)


class Renderer:
    """Makes pages off the loop, one at a time and at most one each `FRESH_S`.

    Args:
        take: reads the numbers; called in the thread of the loop.
        clock: monotonic seconds.
    """

    def __init__(
        self, take: Callable[[], Snapshot], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._take = take
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "rdzv-metrics")
        self._page: asyncio.Future[bytes] | None = None
        self._made_at = 0.0

    async def page(self) -> bytes:
        """The present page. All who wait for one share it.

        Raises:
            RuntimeError: it is closed.
        """
        now = self._clock()
        if self._page is None or now - self._made_at >= FRESH_S or _failed(self._page):
            self._made_at = now
            loop = asyncio.get_running_loop()
            self._page = loop.run_in_executor(self._thread, render, self._take())
        return await asyncio.shield(self._page)  # who goes away must not take it from the others

    def close(self) -> None:
        """Render nothing any more. A page that is being made is finished."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def _failed(page: "asyncio.Future[bytes]") -> bool:
    return page.done() and (page.cancelled() or page.exception() is not None)


# --- families -------------------------------------------------------------------------------------


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=(label,)), values)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=(label,)), values)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]) -> Metric:
    for each, value in values.items():
        family.add_metric((each,), value)
    return family


def _histogram(name: str, text: str, seen: Buckets) -> Metric:
    return HistogramMetricFamily(name, text, buckets=seen.cumulative(), sum_value=seen.sum_s)


def _server(s: Snapshot) -> Iterable[Metric]:
    info = GaugeMetricFamily(
        "rdzv_info", "About this start of the server; always 1.",
        labels=("version", "instance", "storage"),
    )  # fmt: skip
    info.add_metric((s.version, s.instance, s.storage), 1)
    yield info
    yield _gauge(
        "rdzv_epoch", "Epoch of all fences; a new one means that the server forgot.", s.epoch
    )
    yield _gauge("rdzv_uptime_seconds", "Time since the start.", s.uptime_s)
    yield _gauge(
        "rdzv_insecure", "1 if nobody has to prove who they are to join and end runs.", s.insecure
    )
    yield _gauges(
        "rdzv_state", "What the server does now: 1 for one state, 0 for the others.", "state",
        {state: state == s.state for state in STATES},
    )  # fmt: skip
    yield _histogram("rdzv_loop_lag_seconds", "How late the event loop ran a timer.", s.lag)
    yield _counter("rdzv_stalls_total", "Times that the whole server did not run.", s.stalls)
    yield _counter(
        "rdzv_stalled_seconds_total", "Time that it did not run; deadlines moved by as much.",
        s.stalled_s,
    )  # fmt: skip


def _process() -> Iterable[Metric]:
    # prometheus_client's own collector needs /proc/stat, which the systemd unit hides.
    yield _counter("process_cpu_seconds_total", "Processor time used.", time.process_time())
    try:
        with open("/proc/self/statm", "rb") as file:
            resident = int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return
    yield _gauge("process_resident_memory_bytes", "Memory in use.", resident)


def _connections(s: Snapshot) -> Iterable[Metric]:
    yield _gauge("rdzv_connections", "Open connections, ports of stores among them.", s.connections)
    yield _gauge(
        "rdzv_connections_limit", "Connections that may be open at a time.", s.connections_max
    )
    yield _gauge("rdzv_openings", "Connections that have not said a good hello yet.", s.openings)
    yield _counter(
        "rdzv_openings_evicted_total", "Connections cut to make room before their hello.", s.evicted
    )
    yield _counter(
        "rdzv_turned_away_total", "Connections told that the server is full.", s.turned_away
    )
    yield _gauge("rdzv_sessions", "Nodes and workers that are known, connected or not.", s.sessions)
    yield _counter(
        "rdzv_auth_denied_total", "Attempts with a wrong token, proof or certificate.", s.denied
    )
    yield _counters(
        "rdzv_refused_total", "Input that was refused, and connections cut for it.", "event",
        s.refusals,
    )  # fmt: skip


def _runs(s: Snapshot) -> Iterable[Metric]:
    yield _gauges("rdzv_runs", "Runs by phase.", "phase", s.phases)
    yield _gauge("rdzv_members", "Nodes in all runs.", s.all_runs.members)
    yield _gauge(
        "rdzv_participants", "Nodes with a rank in a live generation.", s.all_runs.participants
    )
    yield _gauge("rdzv_standbys", "Nodes that wait beside a live generation.", s.all_runs.standbys)
    yield _counter(
        "rdzv_generations_formed_total", "Generations that formed.", s.generations_formed
    )
    yield _counters(
        "rdzv_generations_ended_total", "Generations that ended, by why.", "kind",
        s.generations_ended,
    )  # fmt: skip


def _named(runs: Mapping[str, RunNumbers]) -> Iterable[Metric]:
    if runs:
        label = "run"
        yield _gauges("rdzv_run_members", "Nodes of a run.", label,
                      {run: each.members for run, each in runs.items()})  # fmt: skip
        yield _gauges("rdzv_run_participants", "Nodes with a rank in its live generation.", label,
                      {run: each.participants for run, each in runs.items()})  # fmt: skip
        yield _gauges("rdzv_run_standbys", "Nodes that wait beside it.", label,
                      {run: each.standbys for run, each in runs.items()})  # fmt: skip


def _work(s: Snapshot) -> Iterable[Metric]:
    yield _counter("rdzv_requests_total", "Requests that were read.", s.requests)
    yield _counters(
        "rdzv_barrier_rounds_total", "Barrier rounds that were decided.", "outcome",
        {"released": s.rounds_released, "failed": s.rounds_failed},
    )  # fmt: skip


def _storage(s: Snapshot) -> Iterable[Metric]:
    if s.commits is not None:
        yield _histogram("rdzv_commit_seconds", "Time until a commit was on the disk.", s.commits)
        yield _counter(
            "rdzv_commit_failures_total", "Commits that failed; nothing of them was acknowledged.",
            s.commit_failures,
        )  # fmt: skip
