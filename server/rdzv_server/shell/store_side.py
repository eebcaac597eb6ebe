"""The side of the server that TCPStore clients see: their ports and their connections."""

from typing import TYPE_CHECKING

from rdzv_server.core.coordinator import Coordinator
from rdzv_server.core.events import (
    CloseListener,
    ListenerFailed,
    ListenerOpened,
    StoreClose,
    StoreLost,
    StoreOpened,
    StoreReceived,
    StoreSend,
)
from rdzv_server.shell.admission import Admission
from rdzv_server.shell.store_connection import StoreConnection
from rdzv_server.shell.store_listener import NoPortError, StoreListeners, StorePorts

if TYPE_CHECKING:
    from rdzv_server.shell.server import Server


class StoreSide:
    """Ports and connections of all stores.

    Args:
        server: what they belong to.
        core: who reads their bytes.
        admission: the books of all connections.
        ports: where stores may listen.
    """

    def __init__(
        self, server: "Server", core: Coordinator, admission: Admission, ports: StorePorts
    ) -> None:
        self._server = server
        self._core = core
        self._admission = admission
        self._connections: dict[int, StoreConnection] = {}
        self._listeners = StoreListeners(ports, self.protocol, admission, server.lines.tell)

    def protocol(self, listener: int) -> StoreConnection:
        """The end of a new client's connection."""
        return StoreConnection(self._server, self._server.next_conn(), listener)

    def close_all(self) -> None:
        """The server ends."""
        self._listeners.close_all()
        for connection in list(self._connections.values()):
            connection.finish()

    # --- from connections ---------------------------------------------------------------------

    def opened(self, connection: StoreConnection) -> None:
        """A client connected."""
        self._server.count(1)
        self._connections[connection.conn] = connection
        self._server.handle(StoreOpened(connection.conn, connection.listener, connection.peer_host))
        self._server.flush()

    def received(self, connection: StoreConnection, data: bytes) -> None:
        """Bytes came."""
        self._server.handle(StoreReceived(connection.conn, data))
        if not connection.greeted and self._core.store_greeted(connection.conn):
            connection.greeted = True
            self._admission.greeted(connection)

    def lost(self, connection: StoreConnection) -> None:
        """A client is gone."""
        self._connections.pop(connection.conn, None)
        self._admission.closed(connection)
        self._server.count(-1)
        self._server.handle(StoreLost(connection.conn))
        self._server.flush()

    # --- from the core ------------------------------------------------------------------------

    def execute(self, effect: CloseListener | StoreSend | StoreClose) -> None:
        """What the core wants."""
        match effect:
            case StoreSend(conn, data):
                connection = self._connections.get(conn)
                if connection is not None:
                    connection.send(data)
            case StoreClose(conn):
                connection = self._connections.get(conn)
                if connection is not None:
                    connection.finish()
            case CloseListener(listener):
                self._listeners.close(listener)

    def listen(self, listener: int) -> ListenerOpened | ListenerFailed:
        """Open a port."""
        try:
            return ListenerOpened(listener, self._listeners.open(listener))
        except NoPortError as error:
            return ListenerFailed(listener, str(error))
