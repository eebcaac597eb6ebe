"""Mutants of keys, and of replies that must be given again."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from rdzv_proto.messages import KvCas, KvNumber, KvSwapped
from rdzv_server.core import key_writes, replies
from rdzv_server.core.kv import Namespace, Wait
from rdzv_server.core.model import Session
from rdzv_server.core.tables import Tables
from tests.sim.mutants.mutant import Collection, Patch

MUTANTS = Collection()
mutant = MUTANTS.mutant


@mutant("S23")
def replies_are_forgotten(patch: Patch) -> None:
    """no reply is recorded, so a repeated request is done again"""
    patch(Session, "record", lambda session, request_id, reply, **_: None)


@mutant("S23")
def added_twice(patch: Patch) -> None:
    """a repeated addition is done again, though the reply is that of the first one"""
    outdated = replies.outdated

    def recounted(tables: Tables, session: Session, recorded: Any) -> bool:
        run = tables.runs.get(session.run_id)
        if recorded.op == "kv_number" and run is not None and run.kv.find("sum") is not None:
            run.kv.add("sum", 1)
        return outdated(tables, session, recorded)

    patch(replies, "outdated", recounted)


@mutant("S23")
def acknowledged_too_far(patch: Patch) -> None:
    """one reply more is forgotten than the client has acknowledged"""
    acknowledge = replies.acknowledge
    patch(
        replies,
        "acknowledge",
        lambda tables, session, up_to: acknowledge(tables, session, up_to + 1),
    )


@mutant("S23")
def change_under_an_old_revision(patch: Patch) -> None:
    """now and then an append or an addition tells the revision of the change before it"""

    def told(value: int, revision: int = 0) -> KvNumber:
        return KvNumber(value=value, revision=revision - (revision > 0 and revision % 8 == 0))

    patch(key_writes, "KvNumber", told)


@mutant("S23")
def failed_swap_tells_an_old_revision(patch: Patch) -> None:
    """a swap that finds another revision than the one it compares with tells the one before"""
    swap = key_writes._compare_and_set

    def swapping(space: Namespace, ask: KvCas) -> tuple[KvSwapped, Sequence[Wait]]:
        reply, woken = swap(space, ask)
        wrong = not reply.swapped and reply.revision > 0
        return (replace(reply, revision=reply.revision - 1) if wrong else reply), woken

    patch(key_writes, "_compare_and_set", swapping)


@mutant("S23")
def swap_without_compare(patch: Patch) -> None:
    """a swap succeeds from any revision"""
    swap = key_writes._compare_and_set

    def swapping(space: Namespace, ask: Any) -> Any:
        entry = space.find(ask.key)
        return swap(space, replace(ask, revision=0 if entry is None else entry.revision))

    patch(key_writes, "_compare_and_set", swapping)


@mutant("S23")
def append_overwrites(patch: Patch) -> None:
    """two appends within one piece of input keep only the last"""
    append = Namespace.append

    def appending(space: Namespace, key: str, value: bytes) -> Any:
        entry = space.find(key)
        if entry is not None and len(entry.value) > 64:
            space.set((key,), (entry.value[:-8],))
        return append(space, key, value)

    patch(Namespace, "append", appending)


@mutant("S24")
def wake_up_lost(patch: Patch) -> None:
    """only the first of those who wait for a key is woken"""
    wake = Namespace._wake

    def waking(space: Namespace, key: str) -> Iterator[Wait]:
        yield from list(wake(space, key))[:1]

    patch(Namespace, "_wake", waking)


@mutant("S24")
def set_wakes_nobody(patch: Patch) -> None:
    """a key that is set in a group wakes nobody"""
    put = Namespace.set

    def setting(space: Namespace, names: Any, values: Any) -> list[Wait]:
        woken = put(space, names, values)
        return [] if len(names) > 1 else woken

    patch(Namespace, "set", setting)
