from collections.abc import Callable

import pytest

from rdzv_server.shell.laggards import FRAME_SWEEPS, SWEEP_S, UNREAD_SWEEPS, Laggards


class Peer:
    def __init__(self) -> None:
        self.sent_bytes = 0
        self.why: list[str] = []
        self.read = 0

    def reads(self) -> None:
        self.read += 1

    def cut(self, event: str, text: str) -> None:
        self.why.append(event)


class Clock:
    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.laggards = Laggards(self._later)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        assert delay_s == SWEEP_S
        self.due.append(action)

    def sweep(self, times: int = 1) -> None:
        for _ in range(times):
            (action,) = self.due
            self.due.clear()
            action()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def peer() -> Peer:
    return Peer()


def test_t11_a_frame_that_is_never_complete_ends_the_connection(clock: Clock, peer: Peer) -> None:
    clock.laggards.half_frame(peer, anew=True)
    clock.sweep(FRAME_SWEEPS)
    assert not peer.why
    clock.sweep()
    assert peer.why == ["half_frame"]


def test_t11_a_byte_now_and_then_does_not_help(clock: Clock, peer: Peer) -> None:
    clock.laggards.half_frame(peer, anew=True)
    for _ in range(FRAME_SWEEPS + 1):
        clock.laggards.half_frame(peer, anew=False)
        clock.sweep()
    assert peer.why == ["half_frame"]


def test_one_large_frame_after_another_is_no_half_frame(clock: Clock, peer: Peer) -> None:
    for _ in range(5 * FRAME_SWEEPS):
        clock.laggards.half_frame(peer, anew=True)
        clock.sweep()
    assert not peer.why


def test_a_complete_frame_is_late_no_more(clock: Clock, peer: Peer) -> None:
    clock.laggards.half_frame(peer, anew=True)
    clock.sweep(FRAME_SWEEPS)
    clock.laggards.whole(peer)
    clock.sweep()
    assert not peer.why
    assert not clock.due, "nobody is late, and it still looks"


def test_t13_a_peer_that_reads_nothing_is_cut(clock: Clock, peer: Peer) -> None:
    peer.sent_bytes = 500
    clock.laggards.unread(peer)
    clock.sweep(UNREAD_SWEEPS - 1)
    assert not peer.why
    clock.sweep()
    assert peer.why == ["slow_reader"]


def test_t13_a_slow_peer_that_reads_on_stays(clock: Clock, peer: Peer) -> None:
    clock.laggards.unread(peer)
    for _ in range(10 * UNREAD_SWEEPS):
        peer.sent_bytes += 1
        clock.sweep()
    assert not peer.why
    assert peer.read == 10 * UNREAD_SWEEPS, "it is known to be alive"


def test_a_peer_that_has_read_everything_or_is_gone_is_forgotten(clock: Clock, peer: Peer) -> None:
    other = Peer()
    clock.laggards.unread(peer)
    clock.laggards.unread(other)
    clock.laggards.half_frame(other, anew=True)
    clock.laggards.drained(peer)
    clock.laggards.gone(other)
    clock.sweep()
    assert not clock.due
    assert not peer.why + other.why


def test_s32_time_in_which_the_server_did_not_run_is_charged_to_nobody(
    clock: Clock, peer: Peer
) -> None:
    """Only sweeps count, whatever the clock says between two of them."""
    clock.laggards.half_frame(peer, anew=True)
    clock.sweep(3)
    assert not peer.why
