"""A port that stays ours until worker 0 listens on it.

The agent keeps a socket bound to the port, with SO_REUSEADDR and without listening. The kernel then
gives the port to nobody who asks for any port, and worker 0's TCPStore, which also sets SO_REUSEADDR,
can bind and listen beside it. Unlike a port parked in TIME_WAIT this does not expire.
"""

import socket


class ReservedPort:
    """Holds a free port of this machine.

    Attributes:
        port: its number.
    """

    def __init__(self) -> None:
        self._sock = _bind()
        self.port: int = self._sock.getsockname()[1]

    def release(self) -> None:
        """Give the port back. Safe to call twice."""
        self._sock.close()


def _bind() -> socket.socket:
    """Bind `::` for both families, as TCPStore does, or IPv4 where there is no IPv6."""
    try:
        return _bound(socket.AF_INET6, "::")
    except OSError:
        return _bound(socket.AF_INET, "0.0.0.0")  # nosec B104 (never listens)


def _bound(family: socket.AddressFamily, host: str) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, 0))
    except OSError:
        sock.close()
        raise
    return sock
