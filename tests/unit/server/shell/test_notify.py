"""What systemd is told, over real sockets of both forms."""

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdzv_server.shell.notify import STATUS_CHARS_MAX, Notifier
from tests.unit.server.shell.waiting import PATIENCE_S, pause


class Systemd:
    """The other end of the socket."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(address)
        self.sock.settimeout(PATIENCE_S)
        self.name = address.replace("\0", "@")

    def heard(self) -> list[str]:
        """The lines of the next message."""
        return self.sock.recv(4096).decode().split("\n")

    def heard_nothing(self) -> bool:
        self.sock.setblocking(False)
        try:
            self.sock.recv(4096)
        except BlockingIOError:
            return True
        return False

    async def hears(self) -> list[str]:
        """The lines of the next message; meanwhile the loop runs."""
        self.sock.setblocking(False)
        loop = asyncio.get_running_loop()
        return (
            (await asyncio.wait_for(loop.sock_recv(self.sock, 4096), PATIENCE_S))
            .decode()
            .split("\n")
        )


@pytest.fixture(params=["path", "abstract"])
def systemd(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Systemd]:
    abstract = f"\0rdzv-test-{os.getpid()}-{os.urandom(4).hex()}"
    made = Systemd(str(tmp_path / "notify") if request.param == "path" else abstract)
    yield made
    made.sock.close()


def watched(systemd: Systemd, usec: str, pid: str = "") -> Notifier:
    more = {"WATCHDOG_PID": pid} if pid else {}
    return Notifier({"NOTIFY_SOCKET": systemd.name, "WATCHDOG_USEC": usec, **more})


def test_each_state_is_told_in_one_message(systemd: Systemd) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": systemd.name})
    notifier.status("reading the state")
    assert systemd.heard() == ["STATUS=reading the state"]
    notifier.ready("serving on 127.0.0.1:29500")
    assert systemd.heard() == ["READY=1", "STATUS=serving on 127.0.0.1:29500"]
    notifier.stopping()
    assert systemd.heard()[0] == "STOPPING=1"


def test_a_reload_carries_the_time_of_its_beginning(systemd: Systemd) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    Notifier({"NOTIFY_SOCKET": systemd.name}).reloading()
    first, second = systemd.heard()
    assert first == "RELOADING=1"
    assert second.startswith("MONOTONIC_USEC=")
    assert (
        before
        <= int(second.partition("=")[2])
        <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    )


def test_a_status_cannot_say_anything_else_to_systemd(systemd: Systemd) -> None:
    Notifier({"NOTIFY_SOCKET": systemd.name}).status("disk\nREADY=1" + "x" * 1000)
    (line,) = systemd.heard()
    assert line.startswith("STATUS=disk\\nREADY=1")
    assert len(line) <= STATUS_CHARS_MAX + 10


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "/nowhere/at/all"},
        {"NOTIFY_SOCKET": "@nobody-listens-here"},
        {"NOTIFY_SOCKET": "/" + "a" * 500},
        {"NOTIFY_SOCKET": "vsock:2:1234"},
        {"NOTIFY_SOCKET": "@"},
        {"NOTIFY_SOCKET": "/a\0b"},
    ],
    ids=lambda each: each.get("NOTIFY_SOCKET", "none")[:20].replace("\0", "0"),
)
async def test_without_anybody_who_listens_nothing_happens(environment: dict[str, str]) -> None:
    notifier = Notifier({**environment, "WATCHDOG_USEC": "1000000"})
    notifier.ready("x")
    notifier.reloading()
    notifier.start_watchdog()
    notifier.stopping()
    notifier.stop_watchdog()


def test_a_systemd_that_does_not_read_holds_nobody_up(systemd: Systemd) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": systemd.name})
    for _ in range(10_000):
        notifier.status("again")
    assert systemd.heard() == ["STATUS=again"]


async def test_the_loop_pings_twice_in_the_time_of_the_watchdog(systemd: Systemd) -> None:
    loop = asyncio.get_running_loop()
    notifier = watched(systemd, "400000")
    began = loop.time()
    notifier.start_watchdog()
    for _ in range(4):
        assert await systemd.hears() == ["WATCHDOG=1"]
    # The first ping comes at once, the others every 0.2 s; a busy machine only makes it longer.
    assert loop.time() - began >= 0.55
    notifier.stop_watchdog()


async def test_pinging_begun_twice_ends_with_one_stop(systemd: Systemd) -> None:
    """A server that stood by begins again when it leads."""
    notifier = watched(systemd, "100000")
    notifier.start_watchdog()
    notifier.start_watchdog()
    notifier.stop_watchdog()
    assert [systemd.heard() for _ in range(2)] == [["WATCHDOG=1"]] * 2
    await pause(0.2)
    assert systemd.heard_nothing()


async def test_a_loop_that_hangs_does_not_ping(systemd: Systemd) -> None:
    notifier = watched(systemd, "100000")
    notifier.start_watchdog()
    assert systemd.heard() == ["WATCHDOG=1"]
    time.sleep(0.3)  # hangs: this is what the watchdog is for
    assert systemd.heard_nothing()
    assert await systemd.hears() == ["WATCHDOG=1"]
    notifier.stop_watchdog()


@pytest.mark.parametrize(
    ("usec", "pid"), [("", ""), ("0", ""), ("soon", ""), ("-5", ""), ("1000", "1")]
)
async def test_nobody_is_pinged_without_a_watchdog_or_for_another_process(
    systemd: Systemd, usec: str, pid: str
) -> None:
    notifier = watched(systemd, usec, pid)
    notifier.start_watchdog()
    await pause(0.05)
    assert systemd.heard_nothing()


async def test_a_watchdog_for_this_process_is_pinged(systemd: Systemd) -> None:
    notifier = watched(systemd, "60000000", str(os.getpid()))
    notifier.start_watchdog()
    assert systemd.heard() == ["WATCHDOG=1"]
    notifier.stop_watchdog()
    notifier.stop_watchdog()
