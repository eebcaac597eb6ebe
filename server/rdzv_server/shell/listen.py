"""Sockets to listen on: which addresses, dual stack where it is meant, and errors in one line."""

import ipaddress
import socket

BACKLOG = 4096
"""A whole cluster connects within a second. With the default of 100, thousands of connects wait for
SYN retries of 1 and 3 s (SEMANTICS D3)."""


class ListenError(Exception):
    """The server cannot listen there; the text is for the operator."""


def listeners(host: str, port: int) -> list[socket.socket]:
    """Bound and listening sockets for every address that `host` stands for.

    Args:
        host: name or IP literal. `::` listens on IPv4 as well.
        port: 0 takes a free one, the same for all addresses.

    Raises:
        ListenError: name unknown, port in use, address not of this machine.
    """
    try:
        return bind(host, port)
    except OSError as error:
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        reason = error.strerror or str(error)
        advice = " (is another rdzv-server running there? choose another --port)"
        in_use = error.errno is not None and "in use" in reason.lower()
        raise ListenError(f"cannot listen on {shown}: {reason}{advice if in_use else ''}") from None


def bind(host: str, port: int) -> list[socket.socket]:
    """As `listeners`, with the error of the system.

    Raises:
        OSError
    """
    sockets: list[socket.socket] = []
    try:
        for family, address in _resolve(host, port):
            if sockets and port == 0:
                port = sockets[0].getsockname()[1]
            sockets.append(_listen(family, (address[0], port, *address[2:])))
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def is_loopback(host: str) -> bool:
    """True if every address of that name is a loopback one.

    Raises:
        ListenError: the name is unknown.
    """
    try:
        return all(
            ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
            for _, address in _resolve(host, 0)
        )
    except OSError as error:
        raise ListenError(f"cannot resolve {host!r}: {error.strerror or error}") from None


_Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, _Address]]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    unique = {(family, address): None for family, _, _, _, address in found}
    return list(unique)


def _listen(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            both = 0 if address[0] == "::" else 1
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, both)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
