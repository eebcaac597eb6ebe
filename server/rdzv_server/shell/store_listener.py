"""Ports for the workers' stores: opened and closed as the core asks, and who connects to them.

A port is bound and listens before the core hears of it, so that no worker comes too early; the kernel
queues them until the loop accepts.
"""

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rdzv_server.shell.accept import Acceptor, Reporter
from rdzv_server.shell.admission import Admission
from rdzv_server.shell.listen import bind
from rdzv_server.shell.store_connection import StoreConnection

TRIES = 8
"""With several addresses, a free port of the first may be taken on another; then the next is tried."""

RAISE = " (raise the limit of open files of rdzv-server)"


@dataclass(frozen=True)
class StorePorts:
    """Where stores may listen."""

    host: str = "127.0.0.1"
    low: int = 0
    """0: any free port."""
    high: int = 0


class NoPortError(Exception):
    """There is no port; the text is for the operator and for the nodes that wait."""


@dataclass(frozen=True)
class _Listener:
    sockets: list[socket.socket]
    acceptor: Acceptor


class StoreListeners:
    """The open ports.

    Args:
        ports: where they may be.
        protocol: makes a connection's end, given the listener's number.
        admission: the books of all connections; a port takes a descriptor too, and counts in them.
        report: writes to the log.
    """

    def __init__(
        self,
        ports: StorePorts,
        protocol: Callable[[int], StoreConnection],
        admission: Admission,
        report: Reporter,
    ) -> None:
        self._ports = ports
        self._protocol = protocol
        self._admission = admission
        self._report = report
        self._next = ports.low
        self._open: dict[int, _Listener] = {}

    def open(self, listener: int) -> int:
        """Listen.

        Returns:
            The port.

        Raises:
            NoPortError: none is free, or the process has too many descriptors.
        """
        if self._admission.full:
            raise NoPortError(
                f"the server has {self._admission.connections} connections and store ports, as many "
                f"as it may have{RAISE}"
            )
        sockets = self._bind()
        # A TCPStore client would not understand why it is turned away: nothing is sent.
        acceptor = Acceptor(
            sockets, partial(self._protocol, listener), self._admission, self._report
        )
        try:
            acceptor.start()
        except OSError as error:
            acceptor.stop()
            raise NoPortError(_reason(error)) from None
        for sock in sockets:
            self._admission.hold(sock)
        self._open[listener] = _Listener(sockets, acceptor)
        port: int = sockets[0].getsockname()[1]
        return port

    def close(self, listener: int) -> None:
        """Take no new connections. Unknown numbers are fine."""
        entry = self._open.pop(listener, None)
        if entry is None:
            return
        entry.acceptor.stop()
        for sock in entry.sockets:
            self._admission.closed(sock)

    def close_all(self) -> None:
        """The server ends."""
        for listener in list(self._open):
            self.close(listener)

    def _bind(self) -> list[socket.socket]:
        ports = self._ports
        if not ports.low:
            return self._bind_any()
        count = ports.high - ports.low + 1
        for step in range(count):
            # The port that was used longest ago: late clients of an ended store find nobody.
            port = ports.low + (self._next - ports.low + step) % count
            try:
                sockets = bind(ports.host, port)
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    continue
                raise NoPortError(_reason(error)) from None
            self._next = port + 1
            return sockets
        raise NoPortError(
            f"all {count} ports of --store-ports {ports.low}-{ports.high} are in use; each live "
            "run with worker_store=server needs one"
        )

    def _bind_any(self) -> list[socket.socket]:
        reason = ""
        for _ in range(TRIES):
            try:
                return bind(self._ports.host, 0)
            except OSError as error:
                reason = _reason(error)
                if error.errno != errno.EADDRINUSE:
                    break
        raise NoPortError(reason)


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        text += RAISE
    return text
