"""Faults of the members of one run. Each leaves the run whole, and waits until it is.

Where a fault is surely shorter or surely longer than a lease, it is known who is lost, and the run must be together
again within the lease and a second. Around a lease, and where a member comes back, it may have to be waited for.
"""

import time
from collections.abc import Callable

from tests.chaos import rig
from tests.chaos.crew import Crew, Member
from tests.chaos.meter import Kind, Meter
from tests.chaos.rig import Way
from tests.e2e.kit.wait import until

Fault = Callable[[Crew, Meter], None]

SHORT, EDGE, LONG = (0.2, 0.4), (0.4, 1.5), (1.5, 3.0)
"""In leases. After a cut of half a lease TCP may repeat itself only when the lease is over."""

RESET_S = 0.3
FENCED_S = 30.0


def killed(crew: Crew, meter: Meter) -> None:
    """SIGKILL; the others go on, and new processes come."""
    victims = crew.victims()
    since = meter.fault("SIGKILL")
    crew.kill(victims)
    meter.measure([crew], since, "loss", "SIGKILL")
    meter.pause(crew.rng.uniform(0, crew.lease_s / 2))
    _replaced(crew, meter, victims, "SIGKILL")


def too_many_killed(crew: Crew, meter: Meter) -> None:
    """Fewer than the minimum are left: they wait for new ones. If nobody is left, the new ones come before the last
    lease is over: it would be the end of the run, and of its keys, of which clients cannot know."""
    victims = crew.victims(crew.size)
    if len(victims) <= crew.size - crew.min_nodes:
        more = [m for m in crew.members if m.sound][: crew.size - crew.min_nodes + 1]
        for member in more:
            member.sound = False
        victims += more
    meter.fault("SIGKILL below min")
    crew.kill(victims)
    longest_s = crew.lease_s if crew.members else crew.lease_s / 2
    meter.pause(crew.rng.uniform(0, longest_s))
    _replaced(crew, meter, victims, "SIGKILL below min")


def stopped(crew: Crew, meter: Meter) -> None:
    """SIGSTOP for a part of a lease up to several; SIGCONT."""
    victims = crew.victims()
    _for_a_while(crew, meter, victims, "SIGSTOP", lambda: crew.stop(victims),
                 lambda: crew.go_on(victims))  # fmt: skip


def cut(crew: Crew, meter: Meter) -> None:
    """Nothing gets through in one direction, or in both."""
    ways: tuple[Way, ...] = crew.rng.choice((("up",), ("down",), ("up", "down")))
    victims = crew.victims()
    addresses = [member.address for member in victims]

    def begin() -> None:
        for way in ways:
            rig.cut(addresses, way)

    def heal() -> None:
        for way in ways:
            rig.heal(addresses, way)
        for member in victims:
            member.sound = True

    _for_a_while(crew, meter, victims, f"cut {'+'.join(ways)}", begin, heal)


def reset(crew: Crew, meter: Meter) -> None:
    """Connections are reset, any number of them, and stay so for less than the reconnect grace."""
    victims = crew.victims(crew.size)
    addresses = [member.address for member in victims]
    meter.fault("reset")
    rig.cut(addresses, "refused")
    meter.pause(RESET_S)
    rig.heal(addresses, "refused")
    for member in victims:
        member.sound = True
    meter.measure([crew], time.monotonic(), "loss", "reset")


def twin(crew: Crew, meter: Meter) -> None:
    """A second process with the node id of a living one, which may be stopped meanwhile: that one must learn
    that it is fenced, and end. A server that lost its memory meanwhile cannot know which of them is newer: then
    it is one of the two."""
    (old,) = crew.victims(1)
    paused = crew.rng.random() < 0.5
    if paused:
        crew.stop([old])
    since = meter.fault("twin of a stopped process" if paused else "twin")
    new = crew.start(old.place, old.node_id)
    crew.members.remove(old)
    crew.members.append(new)
    if paused:
        meter.measure([crew], since, "return", "twin of a stopped process")
        crew.go_on([old])

    def fenced() -> Member | None:
        either = (old,) if crew.remembers else (old, new)
        return next((member for member in either if crew.ended(member) is not None), None)

    if meter.stopping.is_set():
        return
    if until(fenced, FENCED_S, f"{old.name} is fenced and ends") is new:
        crew.members.remove(new)
        crew.members.append(old)
        old.sound = True
    meter.measure([crew], time.monotonic(), "return", "the end of a twin")


ALL: tuple[tuple[int, Fault], ...] = (
    (6, killed), (1, too_many_killed), (6, stopped), (6, cut), (3, reset), (2, twin),
)  # fmt: skip
"""With how often each is drawn."""


def any_fault(crew: Crew) -> Fault:
    """One of them, drawn."""
    weights, kinds = zip(*ALL, strict=True)
    return crew.rng.choices(kinds, weights)[0]


def _for_a_while(
    crew: Crew,
    meter: Meter,
    victims: list[Member],
    name: str,
    begin: Callable[[], None],
    heal: Callable[[], None],
) -> None:
    rng = crew.rng
    shortest, longest = rng.choice((SHORT, EDGE, LONG))
    seconds = rng.uniform(shortest, longest) * crew.lease_s
    since = meter.fault(name)
    begin()
    try:
        if (shortest, longest) == LONG:
            meter.measure([crew], since, "loss", f"{name} for {seconds:.1f} s")
        meter.pause(max(0.0, since + seconds - time.monotonic()))
    finally:
        heal()
    kind: Kind = "loss" if (shortest, longest) == SHORT else "return"
    meter.measure([crew], time.monotonic(), kind, f"the end of {name} for {seconds:.1f} s")


def _replaced(crew: Crew, meter: Meter, victims: list[Member], what: str) -> None:
    since = time.monotonic()
    crew.replace(victims)
    meter.measure([crew], since, "return", f"new processes after {what}")
