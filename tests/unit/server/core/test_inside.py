"""What tools see of a generation from inside."""

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Error, GenerationStatus, KvSet, ShowGeneration
from rdzv_server.core import inside
from tests.lab import RUN, Lab, policy


def show(lab: Lab) -> GenerationStatus:
    reply = lab.send(lab.admin(), 2, ShowGeneration(run=RUN))
    assert isinstance(reply, GenerationStatus), reply
    return reply


def test_a_run_that_is_not_there_is_refused() -> None:
    lab = Lab()
    reply = lab.send(lab.admin(), 2, ShowGeneration(run="nope"))
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.UNKNOWN_RUN


def test_a_run_without_a_generation_shows_its_keys() -> None:
    lab = Lab()
    lab.node("a").ask(KvSet(key="k", value=b"1234"))
    reply = show(lab)
    assert (reply.fence, reply.run_keys, reply.keys, reply.value_bytes) == (None, 1, 0, 5)


def test_keys_of_the_generation_and_of_the_run_are_counted_apart() -> None:
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    a.set("x", b"1")
    a.ask(KvSet(key="y", value=b"1"))
    a.ask(KvSet(key="z", value=b"1"))
    reply = show(lab)
    assert (reply.fence, reply.keys, reply.run_keys) == (a.live_fence(), 1, 2)
    assert reply.value_bytes == 6


def test_only_so_many_open_rounds_are_shown_the_oldest_first() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    for i in range(inside.BARRIERS_SHOWN_MAX + 3):
        a.meet(f"b{i:03}", timeout_s=60)
        lab.advance(0.01)
    rows = show(lab).barriers
    assert [row.name for row in rows[:2]] == ["b000", "b001"]
    assert len(rows) == inside.BARRIERS_SHOWN_MAX
    b.beat()
