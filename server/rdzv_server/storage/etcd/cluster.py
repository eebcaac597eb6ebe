"""This server's part in a cluster: etcd, the election, and the store of whoever leads."""

import asyncio
import contextlib
import math
from collections.abc import Callable

from rdzv_server.storage.base import StorageError
from rdzv_server.storage.etcd.election import Election, Term, Told
from rdzv_server.storage.etcd.gateway import Gateway
from rdzv_server.storage.etcd.place import Credentials, Place
from rdzv_server.storage.etcd.store import EtcdStore, check_cluster
from rdzv_server.storage.lead import Lead


class Cluster:
    """One server's part, from the start of an event loop to its end.

    Args:
        place: of the cluster in etcd.
        credentials: for etcd.
        address: own, as HOST:PORT.
        lease_s: of the leader.
        name: of the cluster.
        owed: leases of this process that could not be given back yet; one set for all of its clusters.

    Raises:
        StorageError: a file of the credentials cannot be used.
    """

    def __init__(
        self,
        place: Place,
        credentials: Credentials,
        *,
        address: str,
        lease_s: float,
        name: str,
        owed: set[str],
    ) -> None:
        self.address, self._place, self._name = address, place, name
        self._gateway = Gateway(place, credentials, lease_s)
        self._election = Election(self._gateway, place, address, math.ceil(lease_s), owed)
        self._term: Term | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def where(self) -> str:
        """For people."""
        return self._place.name

    async def check(self) -> str:
        """Whether etcd answers and the prefix is ours. Returns who leads, as HOST:PORT; empty: nobody.

        Raises:
            StorageError
        """
        await check_cluster(self._gateway, self._place, self._name)
        leader, _ = await self._election.leader()
        return leader

    async def win(
        self, told: Told, trouble: Callable[[str], None]
    ) -> tuple[EtcdStore, dict[bytes, bytes], Lead]:
        """Stand by until this server leads; returns its store, and what is in it.

        Args:
            told: who leads now, again and again, and whether it renews its lease.
            trouble: why etcd cannot be asked, or an empty text.
        """
        while True:
            term, lead = await self._election.win(told, trouble)
            self._term = term
            self._keeping = asyncio.create_task(self._election.keep(term, lead))
            store = EtcdStore(self._gateway, self._place, term, lead, self._name)
            try:
                return store, await asyncio.to_thread(store.load), lead
            except StorageError as error:
                await self.resign()
                if error.cause in ("owned", "corrupt", "newer", "older"):
                    raise
                trouble(str(error))

    async def resign(self) -> None:
        """Let another server lead at once."""
        term, self._term = self._term, None
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
            self._keeping = None
        if term is not None:
            await self._election.resign(term)

    async def close(self) -> None:
        """Let go of everything; a lease that is still held is given back."""
        await self.resign()
        await self._gateway.close()
