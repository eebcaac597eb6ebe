"""From a configuration to a running server and back to an exit code."""

import asyncio
import gc
import resource
import secrets
import signal
import socket
import sys
import time

from rdzv_proto import __version__
from rdzv_server.config import Config
from rdzv_server.core.settings import Identity
from rdzv_server.shell import log, loop
from rdzv_server.shell.listen import BACKLOG, listeners
from rdzv_server.shell.server import Server
from rdzv_server.shell.store_listener import StorePorts


def serve(config: Config) -> int:
    """Run the server until a signal ends it.

    Returns:
        Exit code: 0 after an orderly shutdown.

    Raises:
        ListenError: the address cannot be listened on.
        ImportError: uvloop was asked for by name and is missing.
    """
    log.set_up(config.log_format, config.log_level)
    name = loop.pick(config.loop)
    if name == "asyncio" and config.loop == "auto":
        log.event("uvloop_missing", text="running on asyncio's own loop")
    sockets = listeners(config.host, config.port)
    _raise_nofile()
    return loop.run(_serve(config, sockets), name)


async def _serve(config: Config, sockets: list[socket.socket]) -> int:
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
    low, high = config.store_port_range()
    ports = StorePorts(config.host, low, high)
    server = Server(config.settings(), identity, ports, tcpstore=config.tcpstore)
    accepting = [
        await running.create_server(server.protocol, sock=sock, backlog=BACKLOG) for sock in sockets
    ]  # without a backlog of its own, the loop would set back the sockets' to 100
    port = sockets[0].getsockname()[1]
    _warn_insecure(config, port)
    _ready(config.host, port, identity)
    gc.collect()
    gc.freeze()  # what lives now lives for ever: full collections need not walk it
    await stop.wait()
    log.event("signal", signal=signals[0].name)
    for listener in accepting:
        listener.close()
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


def _raise_nofile() -> None:
    """Each node costs a descriptor: take all that the hard limit gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        log.event("descriptors", was=soft, now=hard)
