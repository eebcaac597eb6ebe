"""Whose turn it is: the leader key under a lease, whose create_revision is the fence in every write.

A server that leads keeps its lease alive, and counts by its own clock how long that is sure to hold: from when it
asked, not from when etcd answered, and with a margin. When that time is over it does not lead any more, whatever
etcd may say later (SEMANTICS S30).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rdzv_server.first_of import first_of
from rdzv_server.storage.base import StorageError
from rdzv_server.storage.etcd.gateway import Gateway, encoded, first, pause, value_of
from rdzv_server.storage.etcd.place import Place
from rdzv_server.storage.lead import Lead

LOOK_S = 0.1
"""Between two looks at who leads, of a server that stands by: ten small reads a second. What is left of the second that a
change of leaders may take beyond the lease, etcd needs to notice that it ran out (0.5 s) and to write that down, and
the new leader to read what is stored and to let its clients in."""

MARGIN = 0.1
"""Of the lease: for clocks that run unlike, and for what happens between a look at the clock and a send."""

LEASE_S_MIN = 2
"""etcd's own least lease with its usual settings."""


Told = Callable[[str, bool], None]


@dataclass(frozen=True, slots=True)
class Term:
    """One time of leading."""

    fence: int
    """create_revision of the leader key: no other term has it."""
    lease: str


class Election:
    """The part of one server.

    Args:
        gateway: to etcd.
        place: of the cluster.
        address: own, as HOST:PORT; what clients are sent to.
        lease_s: asked for; what etcd grants counts.
        owed: leases of this process that could not be given back yet. A leader that lost etcd for a while would
            otherwise wait for the end of its own lease, which etcd lengthens when it elects a leader of its own.
    """

    def __init__(
        self, gateway: Gateway, place: Place, address: str, lease_s: int, owed: set[str]
    ) -> None:
        self._gateway, self.address, self._owed = gateway, address, owed
        self._key = encoded(place.key(b"leader"))
        self._lease_s = float(lease_s)

    async def leader(self) -> tuple[str, bool]:
        """Who leads (HOST:PORT), and whether it renews its lease: it does so when a third has passed, so less than
        half of it is left only when it cannot. Empty and False: nobody leads.

        Raises:
            StorageError: etcd does not answer.
        """
        answer = await self._gateway.call("kv/range", {"key": self._key}, self._lease_s)
        found = first(answer)
        if found is None:
            return "", False
        ask = {"ID": str(found.get("lease", "0"))}
        left = await self._gateway.call("lease/timetolive", ask, self._lease_s)
        alive = float(left.get("TTL", -1)) >= float(left.get("grantedTTL", 0)) / 2
        return value_of(found).decode(errors="replace"), alive

    async def win(self, told: Told, trouble: Callable[[str], None]) -> tuple[Term, Lead]:
        """Stand by until this server leads.

        Args:
            told: who leads now, with every look, and whether it renews its lease; empty if nobody does.
            trouble: why etcd cannot be asked, and an empty text when it can be again.
        """
        while True:
            try:
                for lease in list(self._owed):
                    await self._revoke(lease)
                leader, alive = await self.leader()
                trouble("")
                told(leader, alive)
                if not leader and (won := await self._run()) is not None:
                    return won
            except StorageError as error:
                trouble(str(error))
                told("", False)
            await pause(LOOK_S)

    async def _run(self) -> tuple[Term, Lead] | None:
        """Try to become the leader while there is none."""
        asked_at = time.monotonic()
        grant = await self._gateway.call(
            "lease/grant", {"TTL": str(int(self._lease_s))}, self._lease_s
        )
        lease = str(grant["ID"])
        self._lease_s = float(grant.get("TTL", self._lease_s))
        body = {
            "compare": [
                {"key": self._key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
            ],
            "success": [
                {"request_put": {"key": self._key, "value": encoded(self.address.encode()), "lease": lease}},
                {"request_range": {"key": self._key}},
            ],
            "failure": [{"request_range": {"key": self._key}}],
        }  # fmt: skip
        answer = await self._gateway.call("kv/txn", body, self._lease_s)
        found = first(answer["responses"][-1].get("response_range", {}))
        # Where the answer to a first attempt was lost, the second finds our own key.
        if found is None or str(found.get("lease", "")) != lease:
            await self._revoke(lease)
            return None
        lead = Lead(asked_at + self._sure_s)
        return Term(int(found["create_revision"]), lease), lead

    async def keep(self, term: Term, lead: Lead) -> None:
        """Renew the lease until the end of the lead, which this brings about if the lease is gone.

        It is renewed at once when etcd has elected a leader of its own: that one makes every lease longer by the time
        of an election (1 s), and if this server dies before it renews, its successor comes so much later.
        """
        elected = self._gateway.elected
        while not lead.over.is_set():
            elected.clear()
            asked_at = time.monotonic()
            if lead.lapsed(asked_at):
                return
            try:
                answer = await self._renew(term, max(0.1, lead.until - asked_at))
            except StorageError as error:
                lead.end(str(error))
                return
            if answer is None:
                continue
            if int(answer.get("result", {}).get("TTL", 0)) <= 0:
                lead.end("etcd ended its lease")
                return
            lead.until = max(lead.until, asked_at + self._sure_s)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(elected.wait(), self._lease_s / 3)

    async def _renew(self, term: Term, deadline_s: float) -> dict[str, Any] | None:
        """Ask for more time. None: etcd has a new leader, and whoever was asked before may still wait for the old one.

        Raises:
            StorageError: no answer, or a refusal.
        """
        call = self._gateway.call("lease/keepalive", {"ID": term.lease}, deadline_s)
        renewal = asyncio.create_task(call)
        await first_of(renewal, self._gateway.elected.wait())
        return None if renewal.cancelled() else renewal.result()

    async def resign(self, term: Term) -> None:
        """Let another one lead at once."""
        await self._revoke(term.lease)

    async def _revoke(self, lease: str) -> None:
        self._owed.add(lease)
        try:
            await self._gateway.call("lease/revoke", {"ID": lease}, 1.0)
        except StorageError as error:
            if "not found" not in str(error):
                return  # later, or it runs out by itself
        self._owed.discard(lease)

    @property
    def _sure_s(self) -> float:
        return self._lease_s * (1 - MARGIN)
