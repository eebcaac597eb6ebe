"""Whether MASTER_ADDR:MASTER_PORT can be reached: what is told, when, and that nobody is disturbed."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from rdzv_client import Client
from rdzv_client.blocking import Generation
from rdzv_client.endpoint import Endpoint
from rdzv_client.torch import probe, workers
from rdzv_client.torch.probe import Judge, Outcome, Probe
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Address,
    Ended,
    Error,
    MasterProbe,
    View,
    ViewChanged,
    WorkersStarted,
)
from tests.e2e.kit.wait import stays, until
from tests.unit.client.fake_server import FENCE, PATIENCE_S, FakeServer

REACHED, REFUSED = Outcome(), Outcome("connection refused", refused=True)
TIMEOUT = Outcome("timed out")


# --- what is told ---------------------------------------------------------------------------------


def told(*attempts: tuple[float, Outcome]) -> list[tuple[float, str]]:
    judge = Judge()
    said = [(after_s, judge.take(after_s, outcome)) for after_s, outcome in attempts]
    return [(after_s, outcome.error) for after_s, outcome in said if outcome is not None]


def test_nobody_listening_is_not_told_before_its_time_and_then_once() -> None:
    quiet = [(s, REFUSED) for s in (0.0, 1.0, 30.0, 59.9)]
    assert told(*quiet) == []
    assert told(*quiet, (60.0, REFUSED), (70.0, REFUSED)) == [
        (60.0, "nobody listens there yet (60 s)")
    ]


def test_a_failure_is_told_after_two_in_a_row_and_then_once() -> None:
    assert told((3.0, TIMEOUT)) == []
    assert told((3.0, TIMEOUT), (3.3, REFUSED), (6.5, TIMEOUT)) == []
    assert told((3.0, TIMEOUT), (6.3, TIMEOUT), (9.7, TIMEOUT)) == [(6.3, "timed out")]


def test_success_is_told_whether_or_not_something_was_before() -> None:
    assert told((0.3, REFUSED), (0.9, REACHED)) == [(0.9, "")]
    assert told((3.0, TIMEOUT), (6.0, TIMEOUT), (12.0, REACHED)) == [(6.0, "timed out"), (12.0, "")]


def test_a_host_that_is_reached_at_last_but_does_not_listen_is_told_as_such() -> None:
    said = told((3.0, TIMEOUT), (6.0, TIMEOUT), (30.0, REFUSED), (61.0, REFUSED))
    assert said == [(6.0, "timed out"), (61.0, "nobody listens there yet (61 s)")]


# --- one attempt ----------------------------------------------------------------------------------


@pytest.fixture
def wake() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours


def test_a_listener_is_reached_and_sees_only_a_client_that_goes_away(wake: socket.socket) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        where = Endpoint("127.0.0.1", listener.getsockname()[1])
        assert probe.attempt(where, wake) == REACHED
        peer, _ = listener.accept()
        with peer:
            assert peer.recv(10) == b""


def test_a_reserved_port_without_a_listener_is_refused(wake: socket.socket) -> None:
    from rdzv_client.torch.port import ReservedPort

    port = ReservedPort()
    assert probe.attempt(Endpoint("127.0.0.1", port.port), wake) == REFUSED
    port.release()


def test_a_name_that_nobody_knows_is_said(wake: socket.socket) -> None:
    outcome = probe.attempt(Endpoint("never.invalid", 5), wake)
    assert outcome is not None
    assert outcome.error.startswith("name lookup failed: ")


@pytest.fixture
def silent() -> Iterator[Endpoint]:
    """A port that answers nobody, as behind a firewall that drops packets: its queue is full."""
    with socket.socket() as listener, socket.socket() as first:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        first.connect(listener.getsockname())
        yield Endpoint("127.0.0.1", listener.getsockname()[1])


def test_packets_that_are_dropped_are_a_time_out(
    monkeypatch: pytest.MonkeyPatch, wake: socket.socket, silent: Endpoint
) -> None:
    monkeypatch.setattr(probe, "ATTEMPT_S", 0.05)
    assert probe.attempt(silent, wake) == TIMEOUT


def test_an_attempt_ends_at_once_when_it_is_woken(
    monkeypatch: pytest.MonkeyPatch, silent: Endpoint
) -> None:
    monkeypatch.setattr(probe, "ATTEMPT_S", 3600.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"\0")
        assert probe.attempt(silent, ours) is None


def test_a_host_that_refuses_tells_more_than_an_address_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, wake: socket.socket, silent: Endpoint
) -> None:
    from rdzv_client.torch.port import ReservedPort

    port = ReservedPort()
    rows = [
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", number))
        for number in (port.port, silent.port)
    ]
    monkeypatch.setattr(probe, "ATTEMPT_S", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: rows)
    assert probe.attempt(Endpoint("both.test", 1), wake) == REFUSED
    port.release()


# --- the thread -----------------------------------------------------------------------------------


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    made = Client(server.address, run="llama", name="node-3", node_id="node-3")
    yield made
    made.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts and pauses of hundredths of a second; no workers here."""
    for name in ("ATTEMPT_S", "PAUSE_MIN_S", "PAUSE_MAX_S"):
        monkeypatch.setattr(probe, name, 0.02)
    monkeypatch.setattr(probe, "WORKERS_S", 0.0)


Start = Callable[[Endpoint], "tuple[Generation, Probe]"]


@pytest.fixture
def start(client: Client) -> Iterator[Start]:
    made: list[Probe] = []

    def begin(where: Endpoint) -> tuple[Generation, Probe]:
        generation = client.join()
        made.append(Probe(generation, where, client.engine, client.options.name))
        return generation, made[-1]

    yield begin
    for one in made:
        one.cancel()
        one.join(PATIENCE_S)
    assert not [t for t in threading.enumerate() if t.name == "rdzv-probe"]


def over(one: Probe) -> bool:
    one.join(0.01)
    return not one._thread.is_alive()


@pytest.mark.usefixtures("quick")
def test_a_master_that_cannot_be_reached_is_told_to_the_log_and_the_server(
    server: FakeServer, start: Start, silent: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    start(silent)
    report = server.wait_for(MasterProbe)
    assert (report.fence, report.error, report.refused) == (FENCE, "timed out", False)
    assert report.master == Address(host="127.0.0.1", port=silent.port)
    assert 0 < report.after_ms < PATIENCE_S * 1000
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warning.startswith(
        f"rdzv[llama] node-3 cannot reach MASTER_ADDR:MASTER_PORT 127.0.0.1:{silent.port} of "
        "generation 1 (timed out"
    )
    assert "firewall" in warning
    assert "--local-addr" in warning


@pytest.mark.usefixtures("quick")
def test_a_master_that_comes_later_is_told_again_and_ends_the_probe(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer, start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    from rdzv_client.torch.port import ReservedPort

    caplog.set_level(logging.INFO, logger="rdzv")
    monkeypatch.setattr(probe, "REFUSED_S", 0.0)
    port = ReservedPort()
    _, one = start(Endpoint("127.0.0.1", port.port))
    first = server.wait_for(MasterProbe)
    assert (first.error, first.refused) == ("nobody listens there yet (0 s)", True)
    assert "nothing is wrong if your script never does" in caplog.text
    with closing(socket.create_server(("127.0.0.1", port.port))):
        assert server.wait_for(MasterProbe, 2).error == ""
        until(lambda: over(one), PATIENCE_S, "the probe ends")
    assert f"node-3 reached MASTER_ADDR:MASTER_PORT 127.0.0.1:{port.port}" in caplog.text
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    port.release()


@pytest.mark.usefixtures("quick")
def test_nothing_is_said_while_worker_0_takes_its_time(
    server: FakeServer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    from rdzv_client.torch.port import ReservedPort

    caplog.set_level(logging.INFO, logger="rdzv")
    port = ReservedPort()
    _, one = start(Endpoint("127.0.0.1", port.port))
    stays(lambda: not over(one) and not server.all(MasterProbe), 0.3, "nothing is said")
    assert "MASTER_PORT" not in caplog.text
    port.release()


def test_the_probe_ends_with_its_generation_even_in_the_middle_of_an_attempt(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer, start: Start, silent: Endpoint
) -> None:
    monkeypatch.setattr(probe, "ATTEMPT_S", 3600.0)
    _, one = start(silent)
    ended = Ended(kind="lost", reason="b was lost")
    server.push(ViewChanged(view=View(fence=FENCE, waiting=1, ended=ended)))
    until(lambda: over(one), PATIENCE_S, "the probe ends")
    assert server.all(MasterProbe) == []


@pytest.mark.usefixtures("quick")
def test_the_probe_ends_after_its_own_limit(
    monkeypatch: pytest.MonkeyPatch, start: Start, silent: Endpoint
) -> None:
    monkeypatch.setattr(probe, "PROBE_S", 0.2)
    _, one = start(silent)
    until(lambda: over(one), PATIENCE_S, "the probe ends")


@pytest.mark.usefixtures("quick")
def test_a_server_that_refuses_the_report_disturbs_nobody(
    server: FakeServer, start: Start, silent: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = Error(code=ErrorCode.UNSUPPORTED, message="unknown operation")
    server.on(MasterProbe, lambda m: refusal)
    generation, _ = start(silent)
    server.wait_for(MasterProbe)
    generation.kv.set("a", b"1")
    assert [r.levelno for r in caplog.records] == [logging.WARNING], "only what it found"


@pytest.mark.usefixtures("quick")
def test_the_workers_of_the_agent_are_told_once(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer, start: Start
) -> None:
    monkeypatch.setattr(probe, "WORKERS_S", 3600.0)
    looks: list[str] = []

    def find(fence: str) -> workers.Workers:
        looks.append(fence)
        ranks = {1002: 2} if len(looks) < 3 else {1002: 2, 1003: 3}
        return workers.Workers(ranks, local_world_size=2, world_size=4)

    monkeypatch.setattr(workers, "find", find)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        _, one = start(Endpoint("127.0.0.1", listener.getsockname()[1]))
        until(lambda: over(one), PATIENCE_S, "the probe ends")
    assert looks == [str(FENCE)] * 3
    (report,) = server.all(WorkersStarted)
    assert (report.fence, report.ranks, report.pids) == (FENCE, [2, 3], [1002, 1003])
    assert report.world_size == 4


@pytest.mark.usefixtures("quick")
def test_a_fault_of_the_probe_stays_in_its_thread(
    monkeypatch: pytest.MonkeyPatch, start: Start, silent: Endpoint,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def broken(*arguments: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(probe, "attempt", broken)
    generation, one = start(silent)
    until(lambda: over(one), PATIENCE_S, "the probe ends")
    assert "internal error of the probe" in caplog.text
    generation.kv.set("a", b"1")


@pytest.mark.torch
@pytest.mark.parametrize("use_libuv", [True, False])
def test_torchs_store_server_takes_a_probe_for_a_client_that_went_away(
    use_libuv: bool, wake: socket.socket, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from torch.distributed import TCPStore

    store = TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=use_libuv
    )  # fmt: skip
    for _ in range(50):
        assert probe.attempt(Endpoint("127.0.0.1", store.port), wake) == REACHED
    store.set("a", b"1")
    other = TCPStore("127.0.0.1", store.port, is_master=False, use_libuv=use_libuv)
    assert other.get("a") == b"1"
    assert "127.0.0.1" not in capfd.readouterr().err, "no complaint about strange clients"
