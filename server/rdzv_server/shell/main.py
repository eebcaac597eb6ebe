"""From a configuration to a running server and back to an exit code."""

import asyncio
import gc
import resource
import secrets
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from rdzv_proto import __version__, codec
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Goodbye
from rdzv_server.config import Config
from rdzv_server.core.durable.restoring import UnreadableError
from rdzv_server.core.settings import Identity
from rdzv_server.http import ports
from rdzv_server.http.door import connections_max
from rdzv_server.http.health import Health
from rdzv_server.http.numbers import Sources
from rdzv_server.shell import log, loop
from rdzv_server.shell.accept import Acceptor
from rdzv_server.shell.access import Access
from rdzv_server.shell.admission import Admission, capacity
from rdzv_server.shell.gate import Gate
from rdzv_server.shell.listen import listeners
from rdzv_server.shell.notify import Notifier
from rdzv_server.shell.server import Server
from rdzv_server.shell.store_listener import StorePorts
from rdzv_server.shell.stored import new_epoch, open_stored, unreadable

if TYPE_CHECKING:
    from rdzv_server.http.side import Side

_BUSY = codec.encode(
    0,
    Goodbye(
        code=ErrorCode.SERVER_BUSY,
        message="the server has as many connections as it may have",
        retry_after_ms=1_000,
    ),
)


class Opened:
    """Everything that a start may fail for, opened before anything runs.

    Args:
        config: of the server.

    Raises:
        ListenError: an address cannot be listened on.
        AccessError: a token file or certificate cannot be used.
        StorageError: the state cannot be read.
    """

    def __init__(self, config: Config) -> None:
        self.access = Access(config)
        self.stored = open_stored(config)
        found = None if self.stored is None else self.stored.epoch
        self.epoch = new_epoch() if found is None else found
        self.sockets = listeners(config.host, config.port)
        self.http = ports.open_sockets(
            config.http_port, config.http_host or config.host, config.port
        )
        if self.http:
            import rdzv_server.http.side  # noqa: F401 (a quarter of a second: a stall, in the loop)
        most = capacity(_raise_nofile())
        self.http_most = connections_max(most) if self.http else 0
        self.admission = Admission(max(1, most - self.http_most))
        self.port: int = self.sockets[0].getsockname()[1]


def serve(config: Config) -> int:
    """Run the server until a signal ends it.

    Returns:
        Exit code: 0 after an orderly shutdown.

    Raises:
        ListenError, AccessError, StorageError: it cannot start; see `Opened`.
        ImportError: uvloop was asked for by name and is missing.
    """
    log.set_up(config.log_format, config.log_level)
    name = loop.pick(config.loop)
    if name == "asyncio" and config.loop == "auto":
        log.event("uvloop_missing", text="running on asyncio's own loop")
    return loop.run(_serve(config, Opened(config)), name)


async def _serve(config: Config, opened: Opened) -> int:
    stop = asyncio.Event()
    signals: list[signal.Signals] = []
    identity = Identity(
        version=f"rdzv {__version__}",
        instance=secrets.token_hex(8),
        epoch=opened.epoch,
        key=secrets.token_bytes(32),
    )
    access, health, notifier = opened.access, Health(), Notifier()
    server = _server(config, identity, opened, health)
    side = _side(config, server, opened, health)
    tls = access.tls
    acceptor = Acceptor(
        opened.sockets, server.protocol, opened.admission, server.tell,
        tls=None if tls is None else lambda: tls.context, behind=server.behind, busy=_BUSY,
    )  # fmt: skip
    acceptor.start()
    reloads = access.reloads()
    reloads.start()
    status = f"serving on {config.host}:{opened.port}"

    def reload() -> None:
        notifier.reloading()
        reloads.all()
        notifier.ready(status)

    _on_signals(stop, signals, reload)
    _warn_insecure(config, opened.port)
    health.started = True
    _ready(config, opened, identity)
    notifier.ready(status)
    notifier.start_watchdog()
    gc.collect()
    gc.freeze()  # what lives now lives for ever: full collections need not walk it
    await stop.wait()
    log.event("signal", signal=signals[0].name)
    health.stopping = True
    notifier.stopping()
    reloads.stop()
    await acceptor.close()
    await server.shut_down()
    if side is not None:
        await side.close()
    notifier.stop_watchdog()
    log.event("stopped")
    return 0


def _server(config: Config, identity: Identity, opened: Opened, health: Health) -> Server:
    tokens, stored = opened.access.tokens, opened.stored
    try:
        return Server(
            config.settings("memory" if stored is None else stored.store.name),
            identity,
            StorePorts(config.host, *config.store_port_range()),
            tcpstore=config.tcpstore,
            gate=None if tokens is None else Gate(tokens),
            admission=opened.admission,
            stored=stored,
            health=health,
        )
    except UnreadableError as error:
        assert stored is not None, "nothing to read"
        stored.store.close()
        raise unreadable(stored.path, error) from None


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


def _side(config: Config, server: Server, opened: Opened, health: Health) -> "Side | None":
    """Health and metrics, if they are to be had."""
    if not opened.http:
        return None
    from rdzv_server.http.side import Side

    sources = Sources(
        tables=server.tables,
        admission=opened.admission,
        health=health,
        requests=lambda: server.requests,
        refusals=server.told,
        insecure=config.insecure_no_auth,
        name_runs=config.metrics_runs,
        commits=None if opened.stored is None else server.commits,
        storage="memory" if opened.stored is None else opened.stored.store.name,
    )
    side = Side(opened.http, sources, server.tell, most=opened.http_most)
    side.start()
    return side


def _ready(config: Config, opened: Opened, identity: Identity) -> None:
    """The one line on stdout; scripts wait for it. Its form is fixed."""
    host, port = config.host, opened.port
    http_port = opened.http[0].getsockname()[1] if opened.http else "off"
    state = "memory" if opened.stored is None else opened.stored.store.name
    line = (
        f"READY host={host} port={port} http_port={http_port} instance={identity.instance} "
        f"epoch={identity.epoch} state={state}"
    )
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    log.event("ready", host=host, port=port, instance=identity.instance, epoch=identity.epoch)


def _warn_insecure(config: Config, port: int) -> None:
    if config.insecure_no_auth:
        log.event(
            "insecure", "warning", host=config.host, port=port,
            text="no authentication: whoever reaches this port can join and end runs",
        )  # fmt: skip


def _raise_nofile() -> int:
    """Each node costs a descriptor: take all that the hard limit gives. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        log.event("descriptors", was=soft, now=hard)
    return hard
