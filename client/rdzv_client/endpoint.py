"""Where the server is: `host`, `host:port`, `[v6]:port`, several of them separated by commas."""

import os
import re
from typing import NamedTuple

from rdzv_proto import PORT_DEFAULT

VARIABLE = "RDZV_ENDPOINT"
FALLBACK = f"127.0.0.1:{PORT_DEFAULT}"

_HOST = re.compile(r"[\w.%:-]+")


class Endpoint(NamedTuple):
    """One server address."""

    host: str
    port: int
    port_given: bool = True

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str) -> list[Endpoint]:
    """Read an endpoint.

    Args:
        text: `a`, `a:29500`, `[::1]:29500`, or several separated by commas.

    Raises:
        ValueError: naming the text and the right form.
    """
    endpoints = [_parse_one(part.strip()) for part in text.split(",") if part.strip()]
    if not endpoints:
        raise ValueError("the endpoint is empty; it must be HOST or HOST:PORT")
    return endpoints


def find(given: str | None = None) -> list[Endpoint]:
    """The endpoint to use: the one given, else `RDZV_ENDPOINT`, else this machine.

    Raises:
        ValueError: as in `parse`.
    """
    return parse(given or os.environ.get(VARIABLE, "") or FALLBACK)


def show(endpoints: list[Endpoint]) -> str:
    """For texts."""
    return ",".join(str(endpoint) for endpoint in endpoints)


def _bracketed(text: str) -> str:
    """What somebody may have meant who wrote an IPv6 address bare: with a port if the part before
    the last group can be an address, so `::1` is one, and `::1:29500` is one with a port."""
    host, _, port = text.rpartition(":")
    return f"[{text}]" if host.endswith(":") or not port.isdecimal() else f"[{host}]:{port}"


def _parse_one(text: str) -> Endpoint:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"endpoint {text!r}: an IPv6 address is written [ADDRESS]:PORT")
        port = rest[1:] if rest else None
    elif text.count(":") > 1:
        raise ValueError(
            f"endpoint {text!r}: an IPv6 address needs brackets, as in {_bracketed(text)}"
        )
    else:
        host, colon, after = text.partition(":")
        port = after if colon else None
    if not _HOST.fullmatch(host):
        raise ValueError(f"endpoint {text!r}: {host!r} is no host name and no address")
    if port is None:
        return Endpoint(host, PORT_DEFAULT, port_given=False)
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"endpoint {text!r}: {port!r} is no port (1 to 65535)")
    return Endpoint(host, int(port))
