"""The server's process: standing by where there are several servers, serving, and the end of it."""

import asyncio
import gc
import secrets
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from rdzv_proto import __version__, agreement
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Goodbye
from rdzv_server.config import Config
from rdzv_server.core.coordinator import Coordinator
from rdzv_server.core.durable.restoring import UnreadableError
from rdzv_server.core.settings import Identity
from rdzv_server.first_of import first_of
from rdzv_server.http.health import Health
from rdzv_server.http.numbers import Sources
from rdzv_server.shell import log
from rdzv_server.shell.accept import Acceptor
from rdzv_server.shell.gate import Gate
from rdzv_server.shell.levels import Levels
from rdzv_server.shell.limiter import Lines
from rdzv_server.shell.notify import Notifier
from rdzv_server.shell.opened import Opened
from rdzv_server.shell.reload import Reloads
from rdzv_server.shell.server import Server
from rdzv_server.shell.standing_by import StandingBy, join_cluster
from rdzv_server.shell.store_listener import StorePorts
from rdzv_server.shell.stored import Stored, new_epoch, unreadable
from rdzv_server.storage.lead import Lead

if TYPE_CHECKING:
    from rdzv_server.http.side import Side
    from rdzv_server.storage.etcd.cluster import Cluster

_BUSY = agreement.SPOKEN.oldest.encode(
    0,
    Goodbye(
        code=ErrorCode.SERVER_BUSY,
        message="the server has as many connections as it may have",
        retry_after_ms=1_000,
    ),
)

GARBAGE_OBJECTS = 20_000
"""Made between two searches for garbage in cycles, of which a server makes little: a few MiB at most. With Python's 700
all that lives is walked over again and again while a large world forms: a fifth of the time that everybody waits for
it (150 ms of one step for 9,000 nodes, 120 with this)."""


class Process:
    """A server process, with one event loop after the other if it leads several times.

    Args:
        config: of the server.
        levels: of its log.
    """

    def __init__(self, config: Config, levels: Levels) -> None:
        self._config, self._levels = config, levels
        self._notifier = Notifier()
        self._ready_said = False
        self._owed: set[str] = set()

    async def serve(self, opened: Opened) -> int | None:
        """From what was opened to the end of it.

        Returns:
            Exit code; None if another server leads, and this one is to begin anew.

        Raises:
            StorageError: etcd cannot be used.
        """
        reloads = opened.access.reloads(*self._levels.reloadable())
        cluster = join_cluster(self._config, self._owed)
        once = _Once(self._config, opened, cluster, reloads, self._notifier, self._say_ready)
        try:
            await once.run(first=not self._ready_said)
        finally:
            await once.close()
        if not once.stopped:
            return None
        self._notifier.stop_watchdog()
        log.event("stopped")
        return 0

    def _say_ready(self, opened: Opened, epoch: int, instance: str) -> None:
        """The one line on stdout; scripts wait for it. Its form is fixed."""
        if self._ready_said:
            return
        self._ready_said = True
        config, port = self._config, opened.port
        if config.insecure_no_auth:
            log.event(
                "insecure", "warning", host=config.host, port=port,
                text="no authentication: whoever reaches this port can join and end runs",
            )  # fmt: skip
        http_port = opened.http[0].getsockname()[1] if opened.http else "off"
        line = (
            f"READY host={config.host} port={port} http_port={http_port} instance={instance} "
            f"epoch={epoch} state={opened.state}"
        )
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        log.event("ready", host=config.host, port=port, instance=instance, epoch=epoch)


class _Once:
    """One time from standing by to the end.

    Args:
        config: of the server.
        opened: what it needs from outside.
        cluster: its part, where there are several servers.
        reloads: what is read again on SIGHUP.
        notifier: to systemd.
        ready: says READY, if nobody has.
    """

    def __init__(
        self,
        config: Config,
        opened: Opened,
        cluster: "Cluster | None",
        reloads: Reloads,
        notifier: Notifier,
        ready: Callable[[Opened, int, str], None],
    ) -> None:
        self._config, self._opened, self._notifier = config, opened, notifier
        self._ready = ready
        self._health, self._lines = Health(), Lines()
        self._instance = secrets.token_hex(8)
        self._stop = asyncio.Event()
        self._signals: list[signal.Signals] = []
        self._reloads = reloads
        self._status = self._serving = f"serving on {config.host}:{opened.port}"
        self._cluster = cluster
        self._side: Side | None = None
        self._sources: Sources | None = None

    @property
    def stopped(self) -> bool:
        """A signal ended it."""
        return self._stop.is_set()

    async def run(self, *, first: bool) -> None:
        """Stand by, if there are several servers, and serve.

        Args:
            first: of the process; then etcd has to be there.
        """
        _on_signals(self._stop, self._signals, self._reload)
        self._reloads.start()
        self._side = self._open_side()
        stored, lead = self._opened.stored, Lead()
        if self._cluster is not None:
            if first:
                await self._cluster.check()
            turn = await self._stand_by(self._cluster)
            if turn is None:
                return
            stored, lead = turn
        await self._serve(stored, lead)

    async def close(self) -> None:
        """Let go of what is left."""
        self._reloads.stop()
        if self._side is not None:
            await self._side.close()
        if self._cluster is not None:
            await self._cluster.close()
        for sock in self._opened.sockets:
            sock.close()

    async def _stand_by(self, cluster: "Cluster") -> tuple[Stored, Lead] | None:
        """Until it is this server's turn; None if a signal came before that."""
        standing_by = StandingBy(
            cluster, self._opened, self._health, self._lines.tell, self._say_status
        )
        turn = asyncio.create_task(standing_by.turn(lambda: self._listens(0)))
        await first_of(turn, self._stop.wait())
        won = not self.stopped
        if not won:
            self._stopping()
        await standing_by.over(leads=won and turn.exception() is None)
        return turn.result() if won else None

    async def _serve(self, stored: Stored | None, lead: Lead) -> None:
        """Until a signal comes, or another server leads."""
        opened = self._opened
        found = None if stored is None else stored.epoch
        identity = Identity(
            version=f"rdzv {__version__}",
            instance=self._instance,
            epoch=new_epoch() if found is None else found,
            key=secrets.token_bytes(32),
        )
        server = self._make_server(identity, stored, lead)
        self._show(server, stored)
        tls = opened.access.tls
        acceptor = Acceptor(
            opened.sockets, server.protocol, opened.admission, self._lines.tell,
            tls=None if tls is None else lambda: tls.context, behind=server.behind, busy=_BUSY,
        )  # fmt: skip
        acceptor.start()
        self._status = self._serving
        self._listens(identity.epoch)
        if self._cluster is not None:
            log.event("leading", address=self._cluster.address, epoch=identity.epoch)
        gc.collect()
        gc.set_threshold(GARBAGE_OBJECTS)
        gc.freeze()  # what lives now lives for ever: full collections need not walk it
        await first_of(self._stop.wait(), lead.over.wait())
        if self.stopped:
            self._stopping()
            await acceptor.close()
            await server.shut_down(None if self._cluster is None else self._cluster.resign)
        else:
            text = "its clients go to the next leader; this server stands by"
            log.event("deposed", "error", reason=lead.why, text=text)
            await acceptor.close()
            await server.abandon()

    def _listens(self, epoch: int) -> None:
        """Clients are answered from now on, by this server or with the name of the one that leads (epoch 0)."""
        self._health.started = True
        self._ready(self._opened, epoch, self._instance)
        self._notifier.ready(self._status)
        self._notifier.start_watchdog()

    def _stopping(self) -> None:
        log.event("signal", signal=self._signals[0].name)
        self._health.stopping = True
        self._notifier.stopping()

    def _reload(self) -> None:
        self._notifier.reloading()
        self._reloads.all()
        self._notifier.ready(self._status)

    def _say_status(self, text: str) -> None:
        self._status = text
        self._notifier.status(text)

    def _make_server(self, identity: Identity, stored: Stored | None, lead: Lead) -> Server:
        config, opened = self._config, self._opened
        tokens = opened.access.tokens
        try:
            return Server(
                config.settings(opened.state),
                identity,
                StorePorts(config.host, *config.store_port_range()),
                tcpstore=config.tcpstore,
                gate=None if tokens is None else Gate(tokens),
                admission=opened.admission,
                stored=stored,
                health=self._health,
                lead=lead,
                lines=self._lines,
            )
        except UnreadableError as error:
            assert stored is not None, "nothing to read"
            stored.store.close()
            raise unreadable(stored.place, error) from None

    def _open_side(self) -> "Side | None":
        """Health and metrics, if they are to be had: of a server without any runs, until it serves."""
        config, opened = self._config, self._opened
        if not opened.http:
            return None
        from rdzv_server.http.side import Side

        nobody = Identity(version=f"rdzv {__version__}", instance=self._instance, epoch=0, key=b"")
        self._sources = Sources(
            tables=Coordinator(config.settings(opened.state), nobody).tables,
            admission=opened.admission,
            health=self._health,
            requests=lambda: 0,
            refusals=self._lines.told,
            insecure=config.insecure_no_auth,
            name_runs=config.metrics_runs,
            storage=opened.state,
        )
        side = Side(opened.http, self._sources, self._lines.tell, most=opened.http_most)
        side.start()
        return side

    def _show(self, server: Server, stored: Stored | None) -> None:
        """The numbers of a server that serves."""
        if self._sources is not None:
            self._sources.tables = server.tables
            self._sources.requests = lambda: server.requests
            self._sources.commits = None if stored is None else server.commits


def _on_signals(
    stop: asyncio.Event, came: list[signal.Signals], reload: Callable[[], None]
) -> None:
    running = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        came.append(number)
        if len(came) > 1:
            log.event("killed", "warning", signal=number.name)
            _exit_now()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, on_signal, number)
    running.add_signal_handler(signal.SIGHUP, reload)


def _exit_now() -> None:
    sys.stderr.flush()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)
