"""Mutants of generations: who is in one, what it is called, when it begins and ends."""

from typing import Any

from msgspec.structs import replace

from rdzv_proto.messages import Ended, Fence
from rdzv_server.core import forming, generations, membership, quorum, ranks, replies, waits
from rdzv_server.core.kv import Namespace
from rdzv_server.core.model import Generation, Member, Run
from rdzv_server.core.tables import Tables
from rdzv_server.core.tcpstore import stores
from tests.sim.mutants.mutant import Collection, Patch
from tests.sim.world import Mode

MUTANTS = Collection()
mutant = MUTANTS.mutant


@mutant("S1")
def rank_given_twice(patch: Patch) -> None:
    """the last two nodes of a world are told the same rank"""
    joined = generations.joined

    def told(tables: Tables, run: Run, session: Any) -> Any:
        reply = joined(tables, run, session)
        return replace(reply, group_rank=max(0, min(reply.group_rank, reply.world_size - 2)))

    patch(generations, "joined", told)


@mutant("S1")
def below_the_minimum(patch: Patch) -> None:
    """a world forms with one node too few"""
    patch(
        quorum,
        "seats",
        lambda policy, nodes: min(nodes, policy.max_nodes) * (nodes >= policy.min_nodes - 1),
    )


@mutant("S2", Mode.CRASHES)
def epoch_not_raised(patch: Patch) -> None:
    """a server without memory begins with the epoch of the one before"""
    patch(generations, "Fence", lambda epoch, generation: Fence(1, generation))


@mutant("S2")
def number_not_kept(patch: Patch) -> None:
    """a run that was forgotten begins with generation 1 again"""
    forget = Tables.forget_run

    def forgetting(tables: Tables, run: Run) -> None:
        forget(tables, run)
        tables.tombstones.pop(run.id, None)

    patch(Tables, "forget_run", forgetting)


@mutant("S8")
def reply_without_recheck(patch: Patch) -> None:
    """a recorded "you are in" is repeated after its generation has ended"""
    patch(replies, "outdated", lambda tables, session, recorded: False)


@mutant("S9")
def loss_is_no_end(patch: Patch) -> None:
    """a generation goes on without a member that was lost"""
    end = generations.end

    def ending(tables: Tables, run: Run, ended: Ended) -> None:
        if ended.kind != "lost":
            end(tables, run, ended)

    patch(generations, "end", ending)


@mutant("S9")
def two_reasons(patch: Patch) -> None:
    """a second reason takes the place of the first"""
    end = generations.end

    def ending(tables: Tables, run: Run, ended: Ended) -> None:
        if run.live is None and run.generation is not None:
            run.generation.ended = ended
        end(tables, run, ended)

    patch(generations, "end", ending)


@mutant("S9")
def survivors_are_not_told(patch: Patch) -> None:
    """the end of a generation is not pushed to its members"""
    patch(generations, "push_view", lambda tables, run: None)


@mutant("S10")
def generation_not_fenced(patch: Patch) -> None:
    """a request of an old generation is done in the present one"""

    def of(tables: Tables, session: Any, fence: Fence) -> tuple[Run, Generation]:
        run = tables.runs[session.run_id]
        generation = run.generation
        assert generation is not None
        return run, waits.usable(run, generation.fence)

    patch(waits, "generation_of", of)


@mutant("S11")
def keys_are_inherited(patch: Patch) -> None:
    """a generation begins with the keys of the one before"""
    form = generations.form

    over = waits.generation_over
    kept: dict[tuple[int, str], Any] = {}

    def forming_with(tables: Tables, run: Run, chosen: Any, reason: str) -> None:
        form(tables, run, chosen, reason)
        assert run.generation is not None
        for name, entry in kept.pop((id(tables), run.id), ()):
            run.generation.kv.set((name,), (entry.value,))

    def keeping(tables: Tables, run: Run, generation: Generation) -> None:
        if len(generation.kv):
            kept[id(tables), run.id] = generation.kv.page("", "", 1000)
        over(tables, run, generation)

    patch(waits, "generation_over", keeping)
    patch(generations, "form", forming_with)


@mutant("S11")
def keys_are_kept(patch: Patch) -> None:
    """the keys of a generation that ended stay"""
    patch(Namespace, "clear", lambda space: None)


@mutant("S11")
def waits_go_on(patch: Patch) -> None:
    """who waits for a key of a generation that ended is not told"""
    patch(waits, "generation_over", lambda tables, run, generation: generation.kv.clear())


@mutant("S12")
def newcomer_ends_the_world(patch: Patch) -> None:
    """a join ends the generation that it is not in"""
    park = membership._park

    def parking(tables: Tables, run: Run, member: Member, *rest: Any) -> None:
        park(tables, run, member, *rest)
        if run.live is not None:
            text = "somebody came"
            generations.end(
                tables, run, Ended(kind="scale_up", reason=text, node_id=member.node_id)
            )

    patch(membership, "_park", parking)


@mutant("B29")
def standby_counted(patch: Patch) -> None:
    """nodes above the maximum are announced"""
    announce = forming._announce

    def announcing(tables: Tables, run: Run) -> float | None:
        at = announce(tables, run)
        if run.live is not None and not run.live.finished and run.counts.ready_new:
            forming._set_announced(tables, run, run.counts.ready_new)
        return at

    patch(forming, "_announce", announcing)


@mutant("L1")
def last_call_stretched(patch: Patch) -> None:
    """each join begins the last call anew"""
    note = forming._note_min

    def noting(tables: Tables, run: Run, policy: Any) -> None:
        note(tables, run, policy)
        if run.min_met_at is not None:
            run.min_met_at = max(
                [run.min_met_at, *(m.join.since for m in run.joins.values() if m.join)]
            )

    patch(forming, "_note_min", noting)


@mutant("L4")
def last_call_without_end(patch: Patch) -> None:
    """nobody looks again when the last call is over"""
    decide = quorum.decide
    patch(
        forming,
        "decide",
        lambda now, roster, policy: decide(now, roster, policy)._replace(retry_at=None),
    )


@mutant("L8")
def youngest_first(patch: Patch) -> None:
    """the newcomer that came last gets the free place"""
    choose = ranks.choose

    def choosing(candidates: Any, size: int) -> Any:
        return choose([c._replace(order=-c.order) for c in candidates], size)

    patch(quorum, "choose", choosing)


@mutant("S1")
def survivors_move(patch: Patch) -> None:
    """survivors lose their order"""
    patch(quorum, "arrange", lambda chosen, last: sorted(chosen, key=lambda c: c.name[::-1]))


@mutant("S11")
def store_outlives_its_generation(patch: Patch) -> None:
    """the workers' store of a generation that ended takes clients"""
    patch(stores, "retire", lambda tables, generation: None)
