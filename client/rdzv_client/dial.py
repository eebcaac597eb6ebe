"""Connecting: from a name and a port to a socket."""

import errno
import socket
import time

from rdzv_client.endpoint import Endpoint


def connect(endpoint: Endpoint, patience_s: float) -> socket.socket:
    """Connect to the first address that answers, with a fresh name lookup.

    Args:
        endpoint: the server.
        patience_s: for all of its addresses together; the lookup has the resolver's own limit.

    Returns:
        A non-blocking socket without Nagle's delay.

    Raises:
        OSError: the lookup failed, or the last address tried did.
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
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            failure = error
            continue
        return sock
    raise failure or TimeoutError(errno.ETIMEDOUT, "no answer")


def hosts(sock: socket.socket) -> tuple[str, str]:
    """Addresses of this end and of the other, IPv4 in IPv6 clothes undressed; empty if the connection
    has broken meanwhile."""
    try:
        ends = sock.getsockname(), sock.getpeername()
    except OSError:
        return "", ""
    near, far = (str(end[0]).removeprefix("::ffff:") for end in ends)
    return near, far


def reason(error: OSError) -> str:
    """What the operating system said, in words for people."""
    if isinstance(error, socket.gaierror):
        return f"name lookup failed: {error.strerror}"
    return error.strerror or str(error) or type(error).__name__
