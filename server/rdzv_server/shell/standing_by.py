"""A server of a cluster, until it is its turn: clients are sent to the one that leads."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rdzv_server.http.health import Health
from rdzv_server.shell import log
from rdzv_server.shell.accept import Acceptor, Reporter
from rdzv_server.shell.standby import Standby
from rdzv_server.shell.stored import Stored, say_migrated
from rdzv_server.storage.base import StorageError
from rdzv_server.storage.lead import Lead

if TYPE_CHECKING:
    from rdzv_server.config import Config
    from rdzv_server.shell.opened import Opened
    from rdzv_server.storage.etcd.cluster import Cluster

NOBODY = "nobody"
"""Leads, where nobody does: for people and probes."""


def join_cluster(config: "Config", owed: set[str]) -> "Cluster | None":
    """This server's part in the cluster that the configuration names; None: it is alone.

    Args:
        config: of the server.
        owed: what this process still owes etcd; see `Cluster`.

    Raises:
        StorageError: what etcd needs is not installed, or a file cannot be used.
    """
    found = config.etcd_place()
    if found is None:
        return None
    try:
        from rdzv_server.storage.etcd.cluster import Cluster
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        text = '--state etcd:// needs the extra "http": pip install "rdzv[server,http]"'
        raise StorageError(text, "unsupported") from None
    return Cluster(
        found, config.etcd_credentials(),
        address=config.address(), lease_s=config.leader_lease_s, name=config.cluster_id,
        owed=owed,
    )  # fmt: skip


class StandingBy:
    """The time until this server leads.

    Args:
        cluster: its part in it.
        opened: sockets and books; both are used again afterwards.
        health: told who leads.
        report: writes to the log what comes from outside.
        status: told the same, in words for people.
    """

    def __init__(
        self,
        cluster: "Cluster",
        opened: "Opened",
        health: Health,
        report: Reporter,
        status: Callable[[str], None],
    ) -> None:
        self._cluster, self._health, self._status = cluster, health, status
        self._standby = Standby(cluster.address, opened.admission)
        tls = opened.access.tls
        # Others of the same sockets: those of the configuration stay open for the time after.
        self._acceptor = Acceptor(
            [sock.dup() for sock in opened.sockets], self._standby.protocol, opened.admission, report,
            tls=None if tls is None else lambda: tls.context,
        )  # fmt: skip
        self._leader: str | None = None
        self._trouble = ""

    async def turn(self, ready: Callable[[], None]) -> tuple[Stored, Lead]:
        """Stand by until it is this server's turn.

        Args:
            ready: called when it is known that another one leads, or nobody can be asked.
        """
        self._acceptor.start()
        said = False

        def told(leader: str, alive: bool) -> None:
            nonlocal said
            if self._trouble:
                self._standby.blind()
            else:
                self._standby.told(leader, alive)
            self._told(leader)
            if (leader or self._trouble) and not said:
                said = True
                ready()

        store, records, lead = await self._cluster.win(told, self._troubled)
        self._health.standby = ""
        say_migrated(store.migrated, len(records))
        return Stored(store, records, self._cluster.where), lead

    async def over(self, *, leads: bool) -> None:
        """Accept nobody any more, and send those who wait to where they belong: here, if this server leads."""
        if leads:
            self._standby.lead()
        await self._acceptor.close()
        if not leads:
            self._standby.close()

    def _told(self, leader: str) -> None:
        if leader == self._leader:
            return
        known, self._leader, who = self._leader, leader, leader or NOBODY
        self._health.standby = who
        if not leader and not known:
            return  # just started, and about to lead
        self._status(f"standby: {who} leads")
        log.event("standby", leader=who, text="clients are sent to the server that leads")

    def _troubled(self, text: str) -> None:
        if bool(text) == bool(self._trouble):
            return
        self._trouble = text
        if text:
            log.event("etcd_unreachable", "error", reason=text, text="no server can lead meanwhile")
        else:
            log.event("etcd_reachable", "warning")
