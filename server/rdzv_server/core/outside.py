"""Events that are no requests: what the shell found out, and what comes from the workers' stores."""

from rdzv_server.core import sessions
from rdzv_server.core.events import (
    Agreed,
    Behind,
    Denied,
    Identified,
    ListenerFailed,
    ListenerOpened,
    StorageTrouble,
    StoreLost,
    StoreOpened,
    StoreReceived,
)
from rdzv_server.core.events import Alive as TakesAnswers
from rdzv_server.core.tables import Tables
from rdzv_server.core.tcpstore import clients as store_clients
from rdzv_server.core.tcpstore import stores


def of_shell(
    tables: Tables, event: Agreed | Identified | Denied | TakesAnswers | StorageTrouble | Behind
) -> None:
    """What the shell found out."""
    match event:
        case Agreed(conn, version):
            connection = tables.connections.get(conn)
            if connection is not None:
                connection.protocol = version
        case Identified(conn, grant, names):
            connection = tables.connections.get(conn)
            if connection is not None:
                connection.grant, connection.names = grant, names
        case Denied():
            tables.denied += 1
        case TakesAnswers(conn):
            connection = tables.connections.get(conn)
            if connection is not None and connection.session is not None:
                sessions.heard(tables, connection.session)
        case StorageTrouble(reason):
            tables.read_only = reason
            if not reason:
                tables.stored_again_at = tables.t
        case Behind(behind):
            sessions.fell_behind(tables, behind)


def of_stores(
    tables: Tables, event: StoreReceived | StoreOpened | StoreLost | ListenerOpened | ListenerFailed
) -> None:
    """From the ports and clients of workers' stores."""
    match event:
        case StoreReceived():
            store_clients.received(tables, event)
        case StoreOpened():
            store_clients.opened(tables, event)
        case StoreLost():
            store_clients.lost(tables, event)
        case ListenerOpened():
            stores.listener_opened(tables, event)
        case ListenerFailed():
            stores.listener_failed(tables, event)
