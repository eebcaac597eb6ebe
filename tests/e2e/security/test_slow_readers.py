"""T13: those who ask and do not read."""

import contextlib
import itertools
import time
from collections.abc import Iterator

import pytest

from rdzv_proto import codec, limits
from rdzv_proto.messages import Alive, Barrier, Heartbeat, KvGet, KvSet, Released
from tests.e2e.conftest import Cluster
from tests.e2e.kit.attackers import OPS, fill
from tests.e2e.kit.gauges import MIB, descriptors, log_grows_slowly, rss_mib, rss_peak_mib
from tests.e2e.kit.hostile import Raw, many, world
from tests.e2e.kit.pulse import live_run
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until

NO_PROGRESS_S = 5.0
SLACK_S = 3.0
QUEUE_MIB = (limits.FRAME_BYTES_MAX_CLIENT + MIB) / MIB
"""What the server may hold for one connection (SEMANTICS 4, T13 and S25)."""


@contextlib.contextmanager
def deaf(server: Server, op: str, asks: int, count: int) -> Iterator[int]:
    """Sessions that ask for much and never read; gives the server's descriptors without them. That they
    were cut shows there only: what the kernel has still to deliver stands before the end of the stream."""
    with Raw(server).node("deaf", "filler", lease_s=600) as filler:
        fill(filler)
        before = descriptors(server)

        def make() -> Raw:
            raw = Raw(server, receive_bytes=4096).node("deaf", f"d{next(numbers)}", lease_s=600)
            for _ in range(asks):
                raw.post(OPS[op]())
            return raw

        numbers = itertools.count()
        with many(make, count):
            yield before


@pytest.mark.parametrize(
    ("op", "asks"),
    [
        ("get large", 64),
        pytest.param("get large", 8, marks=pytest.mark.full),
        pytest.param("get many", 200, marks=pytest.mark.full),
    ],
)
def test_a_client_that_asks_for_much_and_never_reads_is_cut(
    cluster: Cluster, op: str, asks: int
) -> None:
    """T13: at once if more is waiting than may wait, else after five seconds without progress. 64 MiB
    are asked for, or 8 MiB, or thousands of small values over and over: in any case more than the 4 MiB
    that the kernel takes, which the server cannot see."""
    server = cluster.server()
    with (
        live_run(cluster, server, calm_s=0.5, steady=False),
        log_grows_slowly(server, "slow_reader"),
        deaf(server, op, asks, 1) as before,
    ):
        began, limit_s = time.monotonic(), NO_PROGRESS_S + SLACK_S
        until(lambda: descriptors(server) <= before, limit_s, "the deaf one is cut")
        print(f"{op} × {asks}: cut after {time.monotonic() - began:.1f} s")
    assert server.log_lines("slow_reader")


def test_l10_many_slow_readers_hold_no_more_than_their_queues_and_delay_nobody(
    cluster: Cluster,
) -> None:
    """T13: eight of them (full: 24), each asking for just less than its queue may hold."""
    server = cluster.server()
    count = 24 if cluster.full else 8
    with live_run(cluster, server, calm_s=0.5, at_least_s=NO_PROGRESS_S):
        before = rss_mib(server)
        with deaf(server, "get large", int(QUEUE_MIB) - 1, count) as open_before:
            gone = f"{count} deaf ones are cut"
            until(lambda: descriptors(server) <= open_before, NO_PROGRESS_S + SLACK_S, gone)
            peak = rss_peak_mib(server)
        print(f"{before:.0f} MiB before, {peak:.0f} MiB at most, {rss_mib(server):.0f} MiB after")
        assert peak - before < count * (QUEUE_MIB + 2) + 32


def test_one_small_write_of_many_requests_builds_no_more_answers_than_may_wait(
    cluster: Cluster,
) -> None:
    """T13, T14: 3 KiB ask for 128 MiB. What is built before anything is sent counts as well."""
    server = cluster.server()
    with Raw(server).node("deaf", "filler", lease_s=60) as filler:
        fill(filler)
        before = rss_peak_mib(server)
        with Raw(server, receive_bytes=4096).node("deaf", "d", lease_s=60) as raw:
            raw.send(b"".join(codec.encode(100 + i, OPS["get large"]()) for i in range(128)))
            until(lambda: server.log_lines("slow_reader"), NO_PROGRESS_S + SLACK_S, "it is cut")
        grown = rss_peak_mib(server) - before
        print(f"{grown:.0f} MiB more at the peak")
        assert grown < 2 * QUEUE_MIB + 8


def test_a_member_that_does_not_read_a_gather_holds_up_nobody_else(cluster: Cluster) -> None:
    """T13: 16 members give 256 KiB each; one of them never reads the 4 MiB that all get."""
    server = cluster.server()
    with (
        live_run(cluster, server, calm_s=0.5, steady=False),
        world(server, "gather", 16) as (nodes, told),
    ):
        fence = told[0].fence
        others = nodes[1:]  # the first is deaf
        began, rounds = time.monotonic(), 0
        for number in range(6):
            ask = Barrier(
                fence=fence, name=f"b{number}", payload=bytes(256 << 10), timeout_ms=20_000
            )
            ids = [node.post(ask) for node in nodes]
            for node, request_id in zip(others, ids[1:], strict=True):
                reply = node.answer(request_id)
                if not isinstance(reply, Released):
                    break  # the deaf one was cut, which ends the generation for all
                assert len(reply.payloads) == 16
            else:
                rounds += 1
                continue
            break
        print(f"{rounds} rounds in {time.monotonic() - began:.1f} s")
        assert rounds >= 2, "more than 4 MiB wait for the deaf one; until then nobody notices"
        until(
            lambda: server.log_lines("slow_reader"), NO_PROGRESS_S + SLACK_S, "the deaf one is cut"
        )
        for node in others:
            node.good(Heartbeat(), Alive)


@pytest.mark.full
def test_a_client_that_reads_slowly_but_steadily_is_not_cut(cluster: Cluster) -> None:
    """T13: a megabyte every third of a second is progress, however long the whole takes."""
    server = cluster.server()
    with Raw(server, receive_bytes=1 << 16).node("attack", "patient", lease_s=60) as raw:
        raw.ask(KvSet(key="large", value=bytes(limits.VALUE_BYTES_MAX)))
        whole = 14 * limits.VALUE_BYTES_MAX
        for _ in range(14):
            raw.post(KvGet(key="large"))
        step = whole // (100 if cluster.full else 70)
        began, got = time.monotonic(), 0
        while got < whole:
            due = began + 0.1 * (got // step)
            until(lambda at=due: time.monotonic() >= at, 5, "the next helping")  # type: ignore[misc]
            data = raw.sock.recv(65536)
            assert data, f"it was cut after {got} bytes"
            got += len(data)
    assert not server.log_lines("slow_reader")
