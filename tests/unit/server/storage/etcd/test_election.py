"""One leads, under a lease that it counts by its own clock (S30)."""

import asyncio
import time
from typing import cast

from rdzv_server.storage.base import StorageError
from rdzv_server.storage.etcd.election import MARGIN, Election, Term
from rdzv_server.storage.etcd.gateway import Gateway
from rdzv_server.storage.etcd.place import Place
from rdzv_server.storage.lead import Lead
from tests.unit.server.shell.waiting import until
from tests.unit.server.storage.etcd.fake import FakeGateway

PATIENCE_S = 10.0
PLACE = Place(("h:1",), "p")


def candidate(etcd: FakeGateway, address: str) -> Election:
    return Election(cast("Gateway", etcd), PLACE, address, 3, set())


async def win(election: Election, seen: list[tuple[str, bool]] | None = None) -> tuple[Term, Lead]:
    seen = [] if seen is None else seen
    won = election.win(lambda *told: seen.append(told), lambda text: None)
    return await asyncio.wait_for(won, PATIENCE_S)


async def test_the_first_leads_and_the_next_one_stands_by_until_its_lease_is_over() -> None:
    etcd, seen = FakeGateway(), list[tuple[str, bool]]()
    first, lead = await win(candidate(etcd, "a:1"))
    assert 3 * (1 - MARGIN) - 1 < lead.until - time.monotonic() <= 3 * (1 - MARGIN)
    second = asyncio.create_task(win(candidate(etcd, "b:1"), seen))
    await until(lambda: ("a:1", True) in seen)
    etcd.leases[first.lease] = 1.0
    await until(lambda: ("a:1", False) in seen)
    assert not second.done()
    etcd.expire(first.lease)
    term, _ = await second
    assert term.fence > first.fence
    assert seen[-1] == ("", False)


async def test_a_leader_that_resigns_is_followed_at_once() -> None:
    etcd = FakeGateway()
    election = candidate(etcd, "a:1")
    term, _ = await win(election)
    await election.resign(term)
    assert (await win(candidate(etcd, "b:1")))[0].fence != term.fence


async def test_of_two_at_the_same_time_one_wins_and_the_other_keeps_no_lease() -> None:
    etcd = FakeGateway()
    both = [asyncio.create_task(win(candidate(etcd, name))) for name in ("a:1", "b:1")]
    done, pending = await asyncio.wait(
        both, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S
    )
    assert len(done) == len(pending) == 1
    assert len(etcd.leases) == 1
    for task in pending:
        task.cancel()


async def test_a_lost_answer_to_the_election_is_found_out() -> None:
    """The gateway asks again: the second time it finds our own key."""
    etcd = FakeGateway()
    call = etcd.call

    async def twice(path: str, body: object, deadline_s: float) -> dict[str, object]:
        if path == "kv/txn":
            await call(path, body, deadline_s)  # type: ignore[arg-type]
        return await call(path, body, deadline_s)  # type: ignore[arg-type]

    etcd.call = twice  # type: ignore[method-assign]
    term, _ = await win(candidate(etcd, "a:1"))
    assert term.fence == etcd.rows[b"/p/leader"].created


async def test_the_lead_ends_when_etcd_took_the_lease() -> None:
    etcd = FakeGateway()
    election = candidate(etcd, "a:1")
    term, lead = await win(election)
    etcd.expire(term.lease)
    await asyncio.wait_for(election.keep(term, lead), PATIENCE_S)
    assert lead.why == "etcd ended its lease"
    assert lead.lapsed(0.0)


async def test_the_lead_ends_when_etcd_does_not_answer_in_time() -> None:
    etcd = FakeGateway()
    election = candidate(etcd, "a:1")
    term, lead = await win(election)

    async def silent(path: str, body: object, deadline_s: float) -> dict[str, object]:
        raise StorageError("no answer from etcd", "io")

    etcd.call = silent  # type: ignore[method-assign]
    await asyncio.wait_for(election.keep(term, lead), PATIENCE_S)
    assert lead.why == "no answer from etcd"


async def test_a_lease_that_could_not_be_given_back_is_given_back_before_anything_else() -> None:
    """Else a leader that lost etcd for a while would stand by for itself."""
    etcd, owed = FakeGateway(), set[str]()
    gateway, call = cast("Gateway", etcd), etcd.call
    election = Election(gateway, PLACE, "a:1", 3, owed)
    term, _ = await win(election)

    async def silent(path: str, body: object, deadline_s: float) -> dict[str, object]:
        raise StorageError("no answer from etcd", "io")

    etcd.call = silent  # type: ignore[method-assign]
    await election.resign(term)
    assert owed == {term.lease}
    etcd.call = call  # type: ignore[method-assign]
    seen: list[tuple[str, bool]] = []
    again, _ = await win(Election(gateway, PLACE, "a:1", 3, owed), seen)
    assert again.fence > term.fence
    assert seen == [("", False)]
    assert not owed


async def test_while_it_is_renewed_it_goes_on() -> None:
    etcd = FakeGateway()
    election = candidate(etcd, "a:1")
    term, lead = await win(election)
    before = lead.until
    keeping = asyncio.create_task(election.keep(term, lead))
    await until(lambda: lead.until > before)
    assert not lead.over.is_set()
    lead.end("the test is over")
    await asyncio.wait_for(keeping, PATIENCE_S)


async def test_it_is_renewed_at_once_when_etcd_has_a_new_leader_of_its_own() -> None:
    """That one has made it longer, by as much as a successor would have to wait."""
    etcd = FakeGateway()
    election = Election(cast("Gateway", etcd), PLACE, "a:1", 3000, set())
    term, lead = await win(election)
    keeping = asyncio.create_task(election.keep(term, lead))
    await until(lambda: etcd.renewals == 1)
    etcd.elected.set()
    await until(lambda: etcd.renewals == 2)
    lead.end("the test is over")
    etcd.elected.set()
    await asyncio.wait_for(keeping, PATIENCE_S)
    assert etcd.renewals == 2


async def test_a_renewal_that_waits_for_the_old_leader_is_asked_again() -> None:
    etcd = FakeGateway()
    election = candidate(etcd, "a:1")
    term, lead = await win(election)
    call, before, hung = etcd.call, lead.until, asyncio.Event()

    async def hangs(path: str, body: object, deadline_s: float) -> dict[str, object]:
        hung.set()
        await asyncio.Event().wait()
        return {}

    etcd.call = hangs  # type: ignore[method-assign]
    keeping = asyncio.create_task(election.keep(term, lead))
    await asyncio.wait_for(hung.wait(), PATIENCE_S)
    etcd.call = call  # type: ignore[method-assign]
    etcd.elected.set()
    await until(lambda: lead.until > before)
    keeping.cancel()


def test_a_server_alone_leads_for_ever() -> None:
    lead = Lead()
    assert not lead.lapsed(time.monotonic() + 1e9)
    lead.end("one")
    lead.end("two")
    assert lead.why == "one"
