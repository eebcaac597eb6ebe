"""From a configuration to a running server and back to an exit code."""

import asyncio
import gc
import resource
import secrets
import signal
import socket
import sys
import time
from pathlib import Path

from rdzv_proto import __version__, codec
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Goodbye
from rdzv_server.config import Config
from rdzv_server.core.settings import Identity
from rdzv_server.shell import log, loop
from rdzv_server.shell.accept import Acceptor
from rdzv_server.shell.admission import Admission, capacity
from rdzv_server.shell.gate import Gate
from rdzv_server.shell.listen import listeners
from rdzv_server.shell.reload import Reloadable, Reloads
from rdzv_server.shell.server import Server
from rdzv_server.shell.store_listener import StorePorts
from rdzv_server.shell.tls import Tls
from rdzv_server.shell.tokens import TokenBook

_BUSY = codec.encode(
    0,
    Goodbye(
        code=ErrorCode.SERVER_BUSY,
        message="the server has as many connections as it may have",
        retry_after_ms=1_000,
    ),
)


class AccessError(Exception):
    """A token file or certificate cannot be used; the text is for the operator."""


class Access:
    """Who may come in: tokens and certificates, as the configuration names them.

    Args:
        config: of the server.

    Raises:
        AccessError
    """

    def __init__(self, config: Config) -> None:
        self.tokens: TokenBook | None = None
        self.tls: Tls | None = None
        try:
            if config.token_file:
                self.tokens = TokenBook(Path(config.token_file))
            if config.tls_cert:
                key, ca = (Path(p) if p else None for p in (config.tls_key, config.tls_client_ca))
                self.tls = Tls(Path(config.tls_cert), key, ca)
        except ValueError as error:
            raise AccessError(str(error)) from None

    def reloads(self) -> Reloads:
        """What keeps them current."""
        items = []
        if self.tokens is not None:
            items.append(Reloadable("tokens", [self.tokens.path], self.tokens.reload))
        if self.tls is not None:
            items.append(Reloadable("certificate", self.tls.paths, self.tls.reload))
        return Reloads(items)


def serve(config: Config) -> int:
    """Run the server until a signal ends it.

    Returns:
        Exit code: 0 after an orderly shutdown.

    Raises:
        ListenError: the address cannot be listened on.
        AccessError: a token file or certificate cannot be used.
        ImportError: uvloop was asked for by name and is missing.
    """
    log.set_up(config.log_format, config.log_level)
    name = loop.pick(config.loop)
    if name == "asyncio" and config.loop == "auto":
        log.event("uvloop_missing", text="running on asyncio's own loop")
    access = Access(config)
    sockets = listeners(config.host, config.port)
    admission = Admission(capacity(_raise_nofile()))
    return loop.run(_serve(config, sockets, access, admission), name)


async def _serve(
    config: Config, sockets: list[socket.socket], access: Access, admission: Admission
) -> int:
    # The wall clock decides nothing but this: a start without state must never repeat an epoch.
    epoch = time.time_ns() // 1_000_000
    identity = Identity(
        version=f"rdzv {__version__}",
        instance=secrets.token_hex(8),
        epoch=epoch,
        key=secrets.token_bytes(32),
    )
    running = asyncio.get_running_loop()
    stop = asyncio.Event()
    signals: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        signals.append(number)
        if len(signals) > 1:
            log.event("killed", "warning", signal=number.name)
            _exit_now()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, on_signal, number)
    server = Server(
        config.settings(),
        identity,
        StorePorts(config.host, *config.store_port_range()),
        tcpstore=config.tcpstore,
        gate=None if access.tokens is None else Gate(access.tokens),
        admission=admission,
    )
    port = sockets[0].getsockname()[1]
    tls = access.tls
    acceptor = Acceptor(
        sockets, server.protocol, admission, server.tell,
        tls=None if tls is None else lambda: tls.context, behind=server.behind, busy=_BUSY,
    )  # fmt: skip
    acceptor.start()
    reloads = access.reloads()
    reloads.start()
    running.add_signal_handler(signal.SIGHUP, reloads.all)
    _warn_insecure(config, port)
    _ready(config.host, port, identity)
    gc.collect()
    gc.freeze()  # what lives now lives for ever: full collections need not walk it
    await stop.wait()
    log.event("signal", signal=signals[0].name)
    reloads.stop()
    await acceptor.close()
    await server.shut_down()
    log.event("stopped")
    return 0


def _exit_now() -> None:
    sys.stderr.flush()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


def _ready(host: str, port: int, identity: Identity) -> None:
    """The one line on stdout; scripts wait for it. Its form is fixed."""
    line = (
        f"READY host={host} port={port} http_port=off instance={identity.instance} "
        f"epoch={identity.epoch} state=memory"
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
