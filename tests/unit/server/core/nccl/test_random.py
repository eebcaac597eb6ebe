"""Any order of requests, losses and time: the invariants hold after every step, and every wait ends."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rdzv_proto.messages import Heartbeat, NcclIds
from tests.ids import processes, unique_id, workers
from tests.lab import Lab

RANKS = 3
WAIT_S = 20.0

step = st.one_of(
    st.tuples(st.just("get"), st.integers(0, RANKS - 1), st.integers(1, 2)),
    st.tuples(st.just("put"), st.integers(0, RANKS - 1), st.integers(0, 1)),
    st.tuples(st.just("ready"), st.integers(0, RANKS - 1), st.integers(0, 2)),
    st.tuples(st.just("fail"), st.integers(0, RANKS - 1), st.integers(0, 2)),
    st.tuples(st.just("cut"), st.integers(0, RANKS - 1), st.just(0)),
    st.tuples(st.just("time"), st.integers(1, 30), st.just(0)),
    st.tuples(st.just("rejoin"), st.just(0), st.just(0)),
)


class Play:
    def __init__(self) -> None:
        self.lab = Lab()
        self.nodes, _ = processes(self.lab, RANKS)
        self.minted = 0
        self.given: dict[tuple[str, int], set[bytes]] = {}
        self.attach()

    def attach(self) -> None:
        self.processes = workers(self.lab, self.nodes)

    def take(self, what: str, number: int, more: int) -> None:
        lab, process = self.lab, self.processes[number % RANKS]
        if what == "time":
            self.pass_time(number / 10)
        elif what == "rejoin":
            for node in self.nodes:
                node.join()
            self.attach()
        elif process.wire.closed:
            return
        elif what == "get":
            process.get(RANKS, n_ids=more, timeout_s=WAIT_S, init_timeout_ms=15_000)
        elif what == "put":
            self.minted += 1
            for attempt in range(3):
                process.put(unique_id(self.minted), index=more, attempt=attempt)
        elif what == "ready":
            process.ready(attempt=more)
        elif what == "fail":
            process.fail(attempt=more)
        else:
            lab.lose(process.wire)
        self.note()

    def note(self) -> None:
        """S18, S20: all that was ever handed out for one attempt is the same."""
        for process in self.processes:
            for reply in process.wire.all(NcclIds):
                if reply.ids:
                    key = (str(process.fence), reply.attempt)
                    self.given.setdefault(key, set()).add(b"".join(reply.ids))
        assert all(len(ids) == 1 for ids in self.given.values())
        every = [raw for ids in self.given.values() for raw in ids]
        assert len(every) == len(set(every))

    def pass_time(self, seconds: float) -> None:
        ends_at = self.lab.now + seconds
        while self.lab.now < ends_at:
            for node in self.nodes:
                node.beat()
            for process in self.processes:
                if not process.wire.closed:
                    self.lab.send(process.wire, next(process.request_ids), Heartbeat())
            self.lab.advance(min(1.0, ends_at - self.lab.now))


@settings(max_examples=150, deadline=None)
@given(st.lists(step, max_size=40))
def test_l3_s18_s20_whatever_happens_ids_agree_and_waits_end(
    steps: list[tuple[str, int, int]],
) -> None:
    play = Play()
    for what, number, more in steps:
        play.take(what, number, more)
    play.pass_time(WAIT_S + 1)
    generation = play.lab.run().generation
    assert generation is not None
    assert generation.ids.waiters() == []
    for process in play.processes:
        session = play.lab.wires[process.wire.conn]
        assert session.closed or process.wire.replies(process.last) or process.last == 0
