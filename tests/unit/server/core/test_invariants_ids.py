"""The checker of the rules about unique ids: a broken state must be found, and its rule named."""

from collections.abc import Callable

import pytest

from rdzv_proto.messages import Ended, Notice
from rdzv_server.core.events import Broadcast, Report, Send
from rdzv_server.core.invariants import check, check_effects
from rdzv_server.core.model import Generation
from rdzv_server.core.nccl.ids import Ids, Record, State
from tests.ids import processes, publish, unique_id
from tests.lab import Lab


def _two_slots(ids: Ids, record: Record) -> None:
    other = Record("tp", 0, 0, record.shape, "rank 0", 0.0, 300.0)
    ids.open(other)
    ids.put(other, 0, record.ids[0], 1.0)


def _overwritten(ids: Ids, record: Record) -> None:
    record.ids[0] = unique_id(7)


def _short(ids: Ids, record: Record) -> None:
    record.ids[0] = record.ids[0][:-1]


def _kept(ids: Ids, record: Record) -> None:
    raw = list(record.ids)
    ids.close(record, State.SPENT, 1.0)
    record.ids = raw


def _too_early(ids: Ids, record: Record) -> None:
    record.state = State.MINTING


def _lost_rank(ids: Ids, record: Record) -> None:
    record.ranks[0].session_id = 99


def _unnoticed(ids: Ids, record: Record) -> None:
    for rank in record.ranks.values():
        rank.ready = True
    record.unready = 0


@pytest.mark.parametrize(
    ("breach", "rule"),
    [
        (_two_slots, "S18"),
        (_overwritten, "S19"),
        (_short, "S19"),
        (_kept, "S22"),
        (_too_early, "S20"),
        (_lost_rank, "S21"),
        (_unnoticed, "spent, unnoticed"),
    ],
)
def test_a_breach_is_found_and_named(breach: Callable[[Ids, Record], None], rule: str) -> None:
    lab, generation, record = published()
    check(lab.core.tables)
    breach(generation.ids, record)
    with pytest.raises(AssertionError, match=rule):
        check(lab.core.tables)


def test_ids_of_a_dead_generation_are_found() -> None:
    lab, generation, _ = published()
    run = lab.run()
    generation.ended = Ended(kind="lost", reason="it is over")
    run.phase = type(run.phase).ENDED
    with pytest.raises(AssertionError, match="S20"):
        check(lab.core.tables)


def test_an_id_in_a_push_or_a_report_is_found() -> None:
    lab, _, record = published()
    raw = record.ids[0]
    conn = next(iter(lab.wires))
    for effect in (
        Report("leak", fields={"magic": raw[:8].hex()}),
        Send(conn, 3, Notice(message=repr(raw))),
        Broadcast((conn,), Notice(message=repr(raw))),
    ):
        with pytest.raises(AssertionError, match="S22"):
            check_effects(lab.core.tables, [effect])


def published() -> tuple[Lab, Generation, Record]:
    lab = Lab()
    _, all_of = processes(lab)
    publish(all_of)
    generation = lab.run().generation
    assert generation is not None
    return lab, generation, generation.ids.records()[0]
