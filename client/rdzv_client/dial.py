"""Connecting: from a name and a port to a socket."""

import errno
import socket
import time

from rdzv_client import backoff
from rdzv_client.endpoint import Endpoint
from rdzv_client.tls import DistrustError, Tls


def connect(endpoint: Endpoint, patience_s: float, tls: Tls | None = None) -> socket.socket:
    """Connect to the first address that answers, with a fresh name lookup.

    Args:
        endpoint: the server.
        patience_s: for all of its addresses together; the lookup has the resolver's own limit, and a
            TLS handshake its own patience.
        tls: makes TLS of the connection.

    Returns:
        A non-blocking socket without Nagle's delay.

    Raises:
        DistrustError: a certificate was refused; no other address is tried then.
        OSError: the lookup failed, or the last address tried did.
        ValueError: a file that TLS needs cannot be used, or the host is no name.
    """
    until = time.monotonic() + patience_s
    failure: OSError | None = None
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    for tried, (family, kind, proto, _, address) in enumerate(found):
        left_s = until - time.monotonic()
        if left_s <= 0:
            break
        sock = socket.socket(family, kind, proto)
        try:
            # A share each: one that swallows packets (IPv6 behind a firewall) must not use up all.
            sock.settimeout(left_s / (len(found) - tried))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                sock = _encrypted(sock, endpoint.host, tls)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            if isinstance(error, DistrustError):
                raise
            failure = error
            continue
        except ValueError:
            sock.close()
            raise
        return sock
    raise failure or TimeoutError(errno.ETIMEDOUT, "no answer")


def _encrypted(sock: socket.socket, host: str, tls: Tls) -> socket.socket:
    sock.settimeout(backoff.HANDSHAKE_S)
    try:
        return tls.handshake(sock, host)
    except TimeoutError:
        text = f"no answer to the TLS handshake within {backoff.HANDSHAKE_S:g} s"
        raise TimeoutError(errno.ETIMEDOUT, text) from None


def hosts(sock: socket.socket) -> tuple[str, str]:
    """Addresses of this end and of the other, IPv4 in IPv6 clothes undressed; empty if the connection
    has broken meanwhile."""
    try:
        ends = sock.getsockname(), sock.getpeername()
    except OSError:
        return "", ""
    near, far = (str(end[0]).removeprefix("::ffff:") for end in ends)
    return near, far


def reason(error: Exception) -> str:
    """What the operating system said, in words for people."""
    if not isinstance(error, OSError):
        return str(error)
    if isinstance(error, socket.gaierror):
        return f"name lookup failed: {error.strerror}"
    return error.strerror or str(error) or type(error).__name__
