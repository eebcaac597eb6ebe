from collections.abc import Callable

from rdzv_server.shell.portions import (
    FLUSH_BYTES_PER_TURN,
    FLUSHES_PER_TURN,
    LOSSES_S,
    Ends,
    Outbox,
)


class Loop:
    def __init__(self) -> None:
        self.time = 0.0
        self.due: list[Callable[[], None]] = []

    def soon(self, action: Callable[[], None]) -> None:
        self.due.append(action)

    def turn(self) -> None:
        due, self.due = self.due, []
        for action in due:
            action()


class Peer:
    def __init__(self, size: int = 100) -> None:
        self.size, self.flushed = size, 0

    def flush(self) -> int:
        self.flushed += 1
        return self.size


def outbox(loop: Loop, peers: list[Peer]) -> Outbox:
    made = Outbox(loop.soon)
    made.told.extend(peers)  # type: ignore[arg-type]
    return made


def test_what_a_turn_allows_is_written_at_once() -> None:
    loop, peers = Loop(), [Peer() for _ in range(FLUSHES_PER_TURN)]
    box = outbox(loop, peers)
    box.flush()
    assert not box.told
    assert not loop.due
    assert {peer.flushed for peer in peers} == {1}


def test_l10_thousands_are_written_to_in_turns_in_order() -> None:
    loop, peers = Loop(), [Peer() for _ in range(3 * FLUSHES_PER_TURN)]
    box = outbox(loop, peers)
    box.flush()
    box.flush()  # in the same turn: the rest follows by itself
    assert sum(peer.flushed for peer in peers) == FLUSHES_PER_TURN
    assert all(peer.flushed for peer in peers[:FLUSHES_PER_TURN])
    loop.turn()
    loop.turn()
    assert not box.told
    assert {peer.flushed for peer in peers} == {1}


def test_l10_answers_do_not_wait_for_what_goes_to_thousands() -> None:
    loop, peers = Loop(), [Peer() for _ in range(3 * FLUSHES_PER_TURN)]
    box = outbox(loop, peers)
    box.flush()
    asked = [Peer() for _ in range(2 * FLUSHES_PER_TURN)]
    box.answered.extend(asked)  # type: ignore[arg-type]
    box.flush()
    assert {peer.flushed for peer in asked} == {1}
    assert not box.answered
    assert sum(peer.flushed for peer in peers) == FLUSHES_PER_TURN


def test_l10_large_answers_are_written_in_turns() -> None:
    loop, peers = Loop(), [Peer(FLUSH_BYTES_PER_TURN) for _ in range(3)]
    outbox(loop, peers).flush()
    assert [peer.flushed for peer in peers] == [1, 0, 0]
    loop.turn()
    assert [peer.flushed for peer in peers] == [1, 1, 0]


def test_l10_thousands_of_ends_are_told_in_turns_in_order() -> None:
    loop = Loop()
    told: list[str] = []

    def lose(_connection: object, reason: str) -> None:
        loop.time += LOSSES_S / 10
        told.append(reason)

    ends = Ends(loop.soon, lambda: loop.time, lose)
    for number in range(25):
        ends.add(None, str(number))  # type: ignore[arg-type]
    assert not told
    loop.turn()
    assert len(told) in (10, 11)
    while loop.due:
        loop.turn()
    assert told == [str(number) for number in range(25)]
