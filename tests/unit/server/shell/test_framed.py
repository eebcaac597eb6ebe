"""Requests of one connection: as many in a turn as are allowed, no more a second than its rate."""

from collections.abc import Callable
from typing import Any

import pytest

from rdzv_proto import limits
from rdzv_proto.framing import FrameTooLargeError
from rdzv_server.shell.framed import Framed
from rdzv_server.shell.portions import Outbox
from rdzv_server.shell.turns import (
    BURST,
    OUT_BYTES_MAX,
    PER_CONNECTION_S,
    PER_TURN_S,
    RATE_PER_S,
    STEP,
    UNREAD_BYTES_MAX,
    Budget,
    Turns,
)

SLICE = 256
COST_S = PER_CONNECTION_S / SLICE
"""Of one request."""


class FakeServer:
    """What a connection needs of the server, with time and turns in the test's hands."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.time = 100.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.half: dict[object, bool] = {}
        self.laggards = self
        self.requests = 0
        self.outbox = Outbox(lambda action: None)
        self.flush_at = 0.0
        self.on_begin: Callable[[], None] = lambda: None

    def begin(self) -> float:
        self.on_begin()
        return self.now()

    def now(self) -> float:
        return self.time

    def flush(self) -> None:
        self.outbox.flush()

    def next_turn(self, connection: Framed) -> None:
        self.turns.wait(connection.share, connection)

    @property
    def waiting(self) -> bool:
        return bool(self.turns._waited_for)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.due.append((self.time + delay_s, action))

    def half_frame(self, peer: object, *, anew: bool) -> None:
        self.half[peer] = anew

    def whole(self, peer: object) -> None:
        self.half.pop(peer, None)

    def unread(self, peer: object) -> None: ...

    def drained(self, peer: object) -> None: ...

    def turn(self) -> None:
        """The next turn of the loop."""
        self.turns.next()
        self.time += 0.0001
        self.turns.go_on()
        due = [entry for entry in self.due if entry[0] <= self.time]
        self.due = [entry for entry in self.due if entry[0] > self.time]
        for _, action in due:
            action()


class FakeTransport:
    def __init__(self) -> None:
        self.reading = True
        self.unsent = 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None: ...

    def write(self, data: bytes) -> None:
        self.unsent += len(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.unsent += sum(map(len, parts))

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Taker(Framed):
    """Takes requests that cost time and have answers."""

    write_bytes_max = 100 << 20
    cost_s = COST_S
    answer = b""

    def __init__(self, server: Any) -> None:
        super().__init__(server, 1)
        self.taken: list[bytes] = []
        self.errors: list[FrameTooLargeError] = []
        self.looked: list[Taker] = []
        self.transport = FakeTransport()
        self._transport = self.transport  # type: ignore[assignment]

    def go_on(self) -> None:
        self.looked.append(self)
        super().go_on()

    def take(self, body: bytes) -> None:
        self.taken.append(body)
        self._server.time += self.cost_s  # type: ignore[attr-defined]
        if self.answer:
            self.send(self.answer)

    def too_large(self, error: FrameTooLargeError) -> None:
        self.errors.append(error)
        self.abort()

    def is_read(self) -> bool:
        return self.transport.reading

    def greeted_in(self, run: str) -> "Taker":
        self._budget = Budget(self._server.now())
        self.share = self._server.turns.share(run)
        return self


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def taker(server: FakeServer) -> Taker:
    return Taker(server)


def frames(count: int, start: int = 0) -> bytes:
    return b"".join(b"\0\0\0\4" + n.to_bytes(4, "big") for n in range(start, start + count))


def numbers(taker: Taker) -> list[int]:
    return [int.from_bytes(body, "big") for body in taker.taken]


def test_answers_are_written_together_at_the_end_of_the_turn_or_when_it_is_long() -> None:
    server = FakeServer()
    server.flush_at = server.time + 0.001
    first, second, late = (Taker(server) for _ in range(3))
    for taker in (first, second, late):
        taker.answer = b"yes"
    first.cost_s = second.cost_s = 0.0004
    first.work(frames(1))
    second.work(frames(1))
    assert first.transport.unsent == second.transport.unsent == 0
    late.cost_s = 0.0004
    late.work(frames(1))  # beyond the time that answers may wait
    assert [t.transport.unsent for t in (first, second, late)] == [3, 3, 3]


def test_s30_what_came_is_not_looked_at_once_another_server_leads() -> None:
    server = FakeServer()
    taker = Taker(server)
    server.on_begin = taker.abort  # as `begin` does when it finds that its lead is over
    taker.work(frames(1))
    taker.work(frames(2))
    assert not taker.taken


def test_what_fits_into_a_turn_is_done_at_once(server: FakeServer, taker: Taker) -> None:
    taker.work(frames(SLICE // 2))
    assert numbers(taker) == list(range(SLICE // 2))
    assert taker.is_read()
    assert not server.waiting


def test_l10_the_rest_waits_for_the_next_turns_in_order_and_unread(
    server: FakeServer, taker: Taker
) -> None:
    count = 3 * SLICE + 7
    taker.work(frames(count))
    assert len(taker.taken) == pytest.approx(SLICE, abs=1)
    assert not taker.is_read()
    taker.work(frames(5, count))  # was read before it was held
    for _ in range(4):
        server.turn()
    assert numbers(taker) == list(range(count + 5))
    assert taker.is_read()
    assert not server.waiting


def test_l10_dear_requests_count_for_what_they_cost(server: FakeServer, taker: Taker) -> None:
    taker.cost_s = PER_CONNECTION_S * 0.6
    taker.work(frames(10))
    assert len(taker.taken) == 2
    for _ in range(4):
        server.turn()
    assert len(taker.taken) == 10


def test_l10_many_connections_of_a_run_have_no_more_than_its_share(server: FakeServer) -> None:
    other = Taker(server).greeted_in("other")
    flood = [Taker(server).greeted_in("flood") for _ in range(8)]
    began = server.time
    for connection in flood:
        connection.work(frames(SLICE))
    assert server.time - began == pytest.approx(PER_TURN_S, abs=2 * COST_S)
    other.work(frames(3))
    assert len(other.taken) == 3
    for _ in range(8):
        server.turn()
    assert all(numbers(connection) == list(range(SLICE)) for connection in flood)


def test_l10_those_whom_a_turn_cannot_serve_cost_it_nothing(server: FakeServer) -> None:
    """Thousands wait after the end of a switch: looking at each of them in every turn took longer than serving
    them (found by the herd bench)."""
    other = Taker(server).greeted_in("other")
    flood = [Taker(server).greeted_in("flood") for _ in range(1000)]
    for connection in flood:
        connection.work(frames(SLICE // 8))
    looks: list[Taker] = []
    for connection in flood:
        connection.looked = looks
    server.turn()
    assert 0 < len(looks) < 20
    assert not other.taken
    for _ in range(100):
        server.turn()
    assert all(len(connection.taken) == SLICE // 8 for connection in flood)


def test_l10_a_session_is_never_ahead_of_its_rate_by_more_than_a_step(
    server: FakeServer, taker: Taker
) -> None:
    """A turn had room for a thousand requests that were done on credit (found by a flood on a busy machine)."""
    taker.cost_s = 0.0
    taker.greeted_in("flood")
    began = server.time
    taker.work(frames(BURST + 2_000))
    server.time += 0.001
    for _ in range(50):
        server.turn()
        server.time += 0.01
        assert len(taker.taken) <= BURST + STEP + (server.time - began) * RATE_PER_S
    assert len(taker.taken) == BURST + 2_000, "and it gets what is its due"


def test_t13_a_turn_ends_when_its_answers_are_large(server: FakeServer, taker: Taker) -> None:
    taker.cost_s, taker.answer = 0.0, b"x" * (OUT_BYTES_MAX // 4)
    taker.work(frames(20))
    assert len(taker.taken) == 5
    assert taker.transport.unsent == 5 * len(taker.answer)


def test_t13_a_peer_that_does_not_read_its_answers_is_not_read_either(
    server: FakeServer, taker: Taker
) -> None:
    taker.cost_s, taker.answer = 0.0, b"x" * (OUT_BYTES_MAX // 4)
    taker.work(frames(1000))
    for _ in range(50):
        server.turn()
    assert UNREAD_BYTES_MAX < taker.transport.unsent <= UNREAD_BYTES_MAX + 2 * OUT_BYTES_MAX
    assert not taker.is_read()
    assert not server.waiting
    before = len(taker.taken)
    taker.transport.unsent = 0
    taker.resume_writing()
    server.turn()
    assert len(taker.taken) > before


def test_t14_a_session_that_asks_too_fast_is_read_more_slowly_and_loses_nothing(
    server: FakeServer, taker: Taker
) -> None:
    taker.greeted_in("a")
    count, taker.cost_s = BURST + RATE_PER_S, COST_S
    began = server.time
    taker.work(frames(count))
    while len(taker.taken) < count:
        server.turn()
        assert server.time < began + 5
    assert server.time - began == pytest.approx(1.0, abs=0.1)
    while server.waiting or server.due:
        server.turn()
    assert numbers(taker) == list(range(count))
    assert taker.is_read()


def test_a_connection_that_is_closed_while_it_waits_does_nothing_more(
    server: FakeServer, taker: Taker
) -> None:
    taker.work(frames(3 * SLICE))
    taker.abort()
    before = len(taker.taken)
    server.turn()
    assert len(taker.taken) == before


def test_t8_a_length_beyond_the_limit_ends_it_after_what_came_before(taker: Taker) -> None:
    taker.work(frames(2) + (limits.FRAME_BYTES_MAX_HELLO + 1).to_bytes(4, "big") + frames(1))
    assert numbers(taker) == [0, 1]
    assert len(taker.errors) == 1


def test_t11_a_frame_that_is_not_complete_is_watched_until_it_is(
    server: FakeServer, taker: Taker
) -> None:
    taker.work(frames(1)[:5])
    assert server.half == {taker: False}
    taker.work(frames(1)[5:6])
    assert server.half == {taker: False}
    taker.work(frames(1)[6:] + frames(1)[:3])
    assert server.half == {taker: True}
    taker.work(frames(1)[3:])
    assert not server.half


def test_t11_the_wait_for_a_turn_is_not_charged_as_a_half_frame(
    server: FakeServer, taker: Taker
) -> None:
    taker.work(frames(2 * SLICE) + b"\0")
    assert not server.half
    for _ in range(3):
        server.turn()
    assert taker in server.half
