"""Faults of the server, its disk and the link before it: all runs feel them."""

import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.chaos.crew import Crew
from tests.chaos.meter import Kind, Meter
from tests.chaos.rig import SmallDisk
from tests.chaos.slowlink import SlowLink
from tests.e2e.kit.server import Server


@dataclass
class Centre:
    """What all runs share.

    Args:
        state: `sqlite` or `memory`.
        disk: of the state.
    """

    server: Server
    link: SlowLink
    disk: SmallDisk
    state: str
    crews: Sequence[Crew]
    lease_s: float
    rng: random.Random


Fault = Callable[[Centre, Meter], None]


def killed(centre: Centre, meter: Meter) -> None:
    """SIGKILL, and a new process on the same state (or on none)."""
    meter.fault("server SIGKILL")
    centre.server.kill()
    _again(centre, meter, "server SIGKILL")


def ended(centre: Centre, meter: Meter) -> None:
    """SIGTERM, and a new process."""
    meter.fault("server SIGTERM")
    centre.server.stop()
    _again(centre, meter, "server SIGTERM")


def stopped(centre: Centre, meter: Meter) -> None:
    """SIGSTOP for up to three leases: nobody is charged with it."""
    seconds = centre.rng.uniform(0.2, 3.0) * centre.lease_s
    meter.fault("server SIGSTOP")
    centre.server.signal(signal.SIGSTOP)
    try:
        meter.pause(seconds)
    finally:
        centre.server.signal(signal.SIGCONT)
    what = f"server SIGSTOP for {seconds:.1f} s"
    meter.measure(centre.crews, time.monotonic(), "loss", what)


def disk_full(centre: Centre, meter: Meter) -> None:
    """Nothing can be stored for a while."""
    meter.fault("disk full")
    centre.disk.fill()
    try:
        meter.pause(centre.rng.uniform(0.2, 1.5) * centre.lease_s)
    finally:
        centre.disk.empty()
    meter.measure(centre.crews, time.monotonic(), "loss", "disk full")


def slow(centre: Centre, meter: Meter) -> None:
    """What some clients send and hear takes a part of a lease."""
    meter.fault("slow link")
    centre.link.delay(centre.rng.uniform(0.02, 0.15) * centre.lease_s)
    meter.pause(centre.rng.uniform(0.5, 1.0) * centre.lease_s)
    centre.link.delay(0)
    meter.measure(centre.crews, time.monotonic(), "loss", "slow link")


def link_reset(centre: Centre, meter: Meter) -> None:
    """All connections over the link end with a reset."""
    since = meter.fault("link reset")
    centre.link.reset()
    meter.measure(centre.crews, since, "loss", "link reset")


def any_fault(centre: Centre, *, on_top: bool) -> Fault:
    """One of them, drawn. On top of other faults none that keeps the server from starting."""
    kinds: list[Fault] = [killed, killed, ended, stopped, stopped, slow, link_reset]
    if centre.state == "sqlite" and not on_top:
        kinds += [disk_full, disk_full]
    return centre.rng.choice(kinds)


def _again(centre: Centre, meter: Meter, what: str) -> None:
    meter.pause(centre.rng.uniform(0, centre.lease_s / 2))
    centre.server.start()
    kind: Kind = "loss" if centre.state == "sqlite" else "return"
    meter.measure(centre.crews, time.monotonic(), kind, f"{what} ({centre.state})")
