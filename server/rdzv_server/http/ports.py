"""Where the HTTP side listens, and whether it can: what `--http-port` and `--http-host` mean."""

import socket
from importlib.util import find_spec

from rdzv_server.shell.listen import ListenError, bind

OFF = "off"

NEEDS = ("aiohttp", "prometheus_client")
"""Packages of the extra `http`."""


def check(text: str) -> None:
    """Whether `--http-port` is a port, `off`, or empty for the default.

    Raises:
        ValueError
    """
    if text not in ("", OFF) and not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise ValueError(f"--http-port {text}: must be a port (0 takes a free one) or off")


def open_sockets(text: str, host: str, main_port: int) -> list[socket.socket]:
    """Bound and listening sockets; none if there is to be no HTTP side.

    Args:
        text: `--http-port`. Empty: one above the main port, or none where that cannot be.
        host: name or address.
        main_port: as it was asked for; 0 stands for any, and so does the default then.

    Raises:
        ListenError: it was asked for and cannot be had; or the port is in use.
    """
    from rdzv_server.shell import (
        log,  # not for whoever only checks a configuration: it needs structlog
    )

    if text == OFF:
        return []
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing and text:
        raise ListenError(
            f'--http-port {text} needs the extra "http": pip install "rdzv[server,http]"'
        )
    if missing:
        why = f'without the extra "http" there is no /healthz, /readyz and /metrics: {missing[0]} is missing'
        log.event("http_off", text=why)
        return []
    if not text and main_port == 65535:
        log.event("http_off", text="there is no port above 65535; --http-port can name one")
        return []
    port = int(text) if text else main_port and main_port + 1
    try:
        return bind(host, port)
    except OSError as error:
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise ListenError(
            f"cannot listen on {shown} for HTTP: {error.strerror or error} (choose another --http-port, or off)"
        ) from None
