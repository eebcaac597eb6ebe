"""Mutants of what survives a restart, and of when something is told."""

from typing import Any

from rdzv_server.core.durable import restoring
from rdzv_server.core.events import Effect, Persist
from rdzv_server.core.tables import Tables
from tests.sim.disk import SimLedger
from tests.sim.mutants.mutant import Collection, Patch
from tests.sim.world import Mode

MUTANTS = Collection()
mutant = MUTANTS.mutant


def _never_saved(patch: Patch, *kinds: str) -> None:
    save, save_all = Tables.save, Tables.save_all

    def saving(tables: Tables, *key: str | int) -> None:
        if key[0] not in kinds:
            save(tables, *key)

    def saving_all(tables: Tables, keys: Any) -> None:
        save_all(tables, [key for key in keys if key[0] not in kinds])

    patch(Tables, "save", saving)
    patch(Tables, "save_all", saving_all)


@mutant("S26", Mode.DURABLE)
def told_before_stored(patch: Patch) -> None:
    """what a step says leaves before what it rests on is stored"""
    take = SimLedger.take

    def taking(ledger: SimLedger, effects: list[Effect]) -> None:
        if effects and isinstance(effects[0], Persist):
            take(ledger, effects[:1])
            effects = effects[1:]
        ledger._execute(effects)

    patch(SimLedger, "take", taking)


@mutant("S26", Mode.DURABLE)
def keys_not_stored(patch: Patch) -> None:
    """keys that were set are not written"""
    _never_saved(patch, "key")


@mutant("S23", Mode.DURABLE)
def replies_not_stored(patch: Patch) -> None:
    """replies on record are not written"""
    _never_saved(patch, "reply")


@mutant("S5", Mode.DURABLE)
def fences_not_stored(patch: Patch) -> None:
    """processes that were superseded are not written"""
    _never_saved(patch, "fenced")


@mutant("S18", Mode.DURABLE)
def ids_seen_not_stored(patch: Patch) -> None:
    """ids that were taken are not written"""
    _never_saved(patch, "seen")


@mutant("S9", Mode.DURABLE)
def end_not_stored(patch: Patch) -> None:
    """that a generation has ended is not written"""
    _never_saved(patch, "end")


@mutant("S14", Mode.DURABLE)
def decisions_not_stored(patch: Patch) -> None:
    """decisions of barriers are not written"""
    _never_saved(patch, "decision", "barrier")


@mutant("L7", Mode.DURABLE)
def no_time_to_come_back(patch: Patch) -> None:
    """after a restart everybody who is not back at once is lost"""
    fill = restoring._fill

    def filling(tables: Tables, by_kind: Any) -> None:
        fill(tables, by_kind)
        for session in tables.sessions.values():
            session.recover_until = tables.t
            tables.deadlines.set(("session", session.id, 0), tables.t)

    patch(restoring, "_fill", filling)


@mutant("S19", Mode.DURABLE)
def restored_attempt_without_ids(patch: Patch) -> None:
    """an attempt from before the restart has no places for its ids"""
    group = restoring._group

    def grouped(tables: Tables, name: str, record: Any) -> Any:
        restored = group(tables, name, record)
        for attempt in restored.records.values():
            attempt.digests = []
        return restored

    patch(restoring, "_group", grouped)
