"""What is done when a time is up: one place for all kinds of deadlines."""

from rdzv_proto.errors import ErrorCode
from rdzv_server.core import barriers, dispatch, forming, sessions
from rdzv_server.core.nccl import ends as nccl_ends
from rdzv_server.core.tables import Tables
from rdzv_server.core.tcpstore import clients as store_clients
from rdzv_server.core.tcpstore import stores

PER_STEP = 256
"""An expiry costs up to 40 µs, so such a step takes 10 ms. A switch may take thousands of nodes along, and the
other runs are heard between their ends (L10)."""


def do(tables: Tables, kind: str, name: str | int, number: int) -> None:
    """Do what a deadline was set for; what it was for may be gone meanwhile.

    Args:
        kind: see `tables.DeadlineKey`.
        name: whose it is.
        number: which one of these.
    """
    match kind, name:
        case "run", str(run_id) if run_id in tables.runs:
            tables.touch(tables.runs[run_id])
        case "forget", str(run_id) if run_id in tables.runs:
            forming.forget(tables, tables.runs[run_id])
        case "session", int(session_id) if session_id in tables.sessions:
            sessions.expire(tables, tables.sessions[session_id])
        case "round", int(serial):
            barriers.time_over(tables, serial)
        case "wait", int(session_id) if session_id in tables.sessions:
            dispatch.wait_over(tables, tables.sessions[session_id], number)
        case "nccl", str(run_id) if run_id in tables.runs:
            nccl_ends.due(tables, tables.runs[run_id], number)
        case "store", int(listener) if listener in tables.stores:
            stores.linger_over(tables, listener)
        case "greet", int(conn) if conn in tables.store_clients:
            store_clients.not_greeted(tables, conn)
        case (("hello" | "idle"), int(conn)) if conn in tables.connections:
            text = (
                f"no hello within {tables.settings.hello_timeout_s:g} s"
                if kind == "hello"
                else f"no request for {tables.settings.admin_idle_s:g} s"
            )
            connection = tables.connections[conn]
            tables.report(f"{kind}_timeout", level="debug", peer=connection.peer_host)
            tables.close(connection, ErrorCode.SESSION_LOST, text)
