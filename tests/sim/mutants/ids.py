"""Mutants of unique ids."""

from typing import Any

from rdzv_proto.messages import Done
from rdzv_server.core import generations
from rdzv_server.core.model import Generation, Run, Session
from rdzv_server.core.nccl import ends, requests, unique_id
from rdzv_server.core.nccl.ids import Ids, Record, Shape
from rdzv_server.core.nccl.seen import SeenIds
from rdzv_server.core.tables import Tables
from tests.sim.mutants.mutant import Collection, Patch

MUTANTS = Collection()
mutant = MUTANTS.mutant


@mutant("S18")
def id_serves_twice(patch: Patch) -> None:
    """nobody remembers which ids were taken"""
    patch(SeenIds, "find", lambda seen, digest: None)


@mutant("S19")
def second_id_wins(patch: Patch) -> None:
    """a second id of the minter takes the place of the first"""
    put = requests._put

    def putting(
        tables: Tables, run: Run, generation: Generation, session: Session, ask: Any
    ) -> Any:
        record = generation.ids.find(ask.group, ask.attempt)
        there = b"" if record is None or record.state.over else record.digests[ask.index]
        if record is not None and there and there != unique_id.digest(ask.id):
            generation.ids.put(record, ask.index, ask.id, tables.t)
            return Done()
        return put(tables, run, generation, session, ask)

    patch(requests, "_put", putting)


@mutant("S19")
def anybody_mints(patch: Patch) -> None:
    """an id is taken from a rank that was not told to mint"""
    put = requests._put

    def putting(
        tables: Tables, run: Run, generation: Generation, session: Session, ask: Any
    ) -> Any:
        record = generation.ids.find(ask.group, ask.attempt)
        if record is not None and ask.rank != 0 and not record.state.over:
            return Done()
        return put(tables, run, generation, session, ask)

    patch(requests, "_put", putting)


@mutant("S20")
def ids_are_inherited(patch: Patch) -> None:
    """a generation hands out the ids of the one before"""
    form = generations.form
    kept: dict[tuple[int, str], Ids] = {}

    def forming_with(tables: Tables, run: Run, chosen: Any, reason: str) -> None:
        form(tables, run, chosen, reason)
        assert run.generation is not None
        run.generation.ids = kept.setdefault((id(tables), run.id), run.generation.ids)

    patch(generations, "form", forming_with)
    patch(ends, "generation_over", lambda tables, run, generation, text: None)


@mutant("S20")
def every_rank_mints(patch: Patch) -> None:
    """each rank is told to mint an id of its own"""
    patch(Shape, "slots", lambda shape, rank: [0])


@mutant("L3")
def id_waits_for_ever(patch: Patch) -> None:
    """an id that comes wakes nobody, and waits for ids have no end"""

    def published(tables: Tables, run: Run, generation: Generation, record: Record) -> None:
        for wait in list(record.waits.values()):
            generation.ids.drop(wait.waiter)
            tables.deadlines.cancel(("wait", *wait.waiter))

    patch(requests, "_published", published)


@mutant("S19")
def spent_id_is_given_again(patch: Patch) -> None:
    """a rank that is ready does not move on to the next attempt"""
    patch(Ids, "finish", lambda ids, record, number: None)
